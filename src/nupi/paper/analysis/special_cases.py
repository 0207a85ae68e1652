"""Target `special-cases`: each method of the paper's Table 2, run by itself and as nuPI with the table's gains."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch

import nupi
from nupi.paper import style
from nupi.paper.analysis import diagram
from nupi.paper.runner import Claim, TargetRun, target

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd
    from matplotlib.figure import Figure

    from nupi.rule import Init

ALPHA, BETA, GAMMA = 0.1, 0.6, 0.4
KI, KP, NU = 0.1, 0.7, 0.6
STEPS = 60
EQUAL = 1e-12


class Row(NamedTuple):
    """A row of the table: the method by itself, and its gains and start as a nuPI."""

    method: str
    itself: Callable[[torch.Tensor], torch.Tensor]
    ki: float
    kp: float
    nu: float
    init: Init


def _with(optimizer: Callable[..., torch.optim.Optimizer], errors: torch.Tensor) -> torch.Tensor:
    """The multiplier after each step of a dual optimizer, from 0."""
    theta = torch.zeros((), dtype=torch.float64)
    dual = optimizer([theta])
    path = []
    for error in errors:
        theta.grad = error.clone()
        dual.step()
        path.append(theta.clone())
    return torch.stack(path)


def _torch_sgd(*, momentum: float = 0.0, nesterov: bool = False) -> Callable[[torch.Tensor], torch.Tensor]:
    """Torch's own optimizer, which shares no code with ours."""
    optimizer = partial(torch.optim.SGD, lr=ALPHA, momentum=momentum, nesterov=nesterov, maximize=True)
    return partial(_with, optimizer)


def _pi(errors: torch.Tensor) -> torch.Tensor:
    """theta_{t+1} = kp e_t + ki (e_0 + .. + e_t)."""
    return KP * errors + KI * errors.cumsum(0)


def _optimistic(errors: torch.Tensor) -> torch.Tensor:
    """theta_{t+1} = theta_t + alpha (2 e_t - e_{t-1}), with e_{-1} = 0."""
    before = torch.cat([torch.zeros(1, dtype=errors.dtype), errors[:-1]])
    return (ALPHA * (2 * errors - before)).cumsum(0)


def _unified(errors: torch.Tensor) -> torch.Tensor:
    """Phi' = beta phi + alpha e;  theta' = theta + phi' + beta gamma (phi' - phi)."""
    theta = phi = torch.zeros((), dtype=torch.float64)
    path = []
    for error in errors:
        after = BETA * phi + ALPHA * error
        theta, phi = theta + after + BETA * GAMMA * (after - phi), after
        path.append(theta)
    return torch.stack(path)


def _in_practice(errors: torch.Tensor) -> torch.Tensor:
    """The recursion from xi_0 = 0: the first step is gradient ascent's."""
    theta, xi = KI * errors[0], torch.zeros((), dtype=torch.float64)
    path = [theta]
    for error in errors[1:]:
        smoothed = NU * xi + (1 - NU) * error
        theta, xi = theta + KI * error + KP * (smoothed - xi), smoothed
        path.append(theta)
    return torch.stack(path)


def rows() -> list[Row]:
    """The table, row by row; the printed gains, except that the row "in practice" has them in their own columns."""
    share = ALPHA / (1 - BETA) ** 2
    ki = ALPHA / (1 - BETA)
    return [
        Row("unified momentum", _unified, ki, -share * BETA * (1 - GAMMA * (1 - BETA)), BETA, "ema"),
        Row("Polyak", _torch_sgd(momentum=BETA), ki, -share * BETA, BETA, "ema"),
        Row("Nesterov", _torch_sgd(momentum=BETA, nesterov=True), ki, -share * BETA**2, BETA, "ema"),
        Row("PI", _pi, KI, KP, 0.0, "error"),
        Row("optimistic gradient ascent", _optimistic, ALPHA, ALPHA, 0.0, "error"),
        Row("nuPI in practice", _in_practice, KI, KP, NU, "zero"),
        Row("gradient ascent", _torch_sgd(), ALPHA, 0.0, 0.0, "zero"),
    ]


def _as_nupi(row: Row, errors: torch.Tensor) -> torch.Tensor:
    return _with(partial(nupi.NuPI, ki=row.ki, kp=row.kp, nu=row.nu, init=row.init, form="velocity"), errors)


@target(
    "special-cases",
    paper="Table 2: classical methods as instances of nuPI",
    about="seven methods by themselves and as nuPI with the table's gains: are they the same?",
    scales=("paper",),
)
def special_cases(run: TargetRun) -> list[Claim]:
    """Run each row both ways on the same errors, and once more as the row "in practice" is printed."""
    import pandas as pd

    errors = torch.randn(STEPS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    table = rows()
    paths = {row.method: (row.itself(errors), _as_nupi(row, errors)) for row in table}
    frames = [
        pd.DataFrame({"method": name, "step": range(1, STEPS + 1), "itself": one, "as nuPI": other})
        for name, (one, other) in paths.items()
    ]
    run.results(pd.concat(frames))
    run.figure(_draw(paths))
    run.figure(diagram.draw(), "figure-diagram")
    gaps = {name: float((one - other).abs().max()) for name, (one, other) in paths.items()}
    run.table("Methods as nuPI, on 60 random errors", _shown(table, gaps))
    swapped = _as_nupi(next(row for row in table if row.init == "zero")._replace(ki=KP, kp=KI), errors)
    off = float((swapped - paths["nuPI in practice"][0]).abs().max())
    claims = [
        Claim(
            f"{row.method} is nuPI with these gains",
            f"ki {row.ki:.3g}, kp {row.kp:.3g}, nu {row.nu:g}",
            f"apart by {gaps[row.method]:.0e} over {STEPS} steps",
            gaps[row.method] < EQUAL,
        )
        for row in table
    ]
    slip = Claim(
        'the row "in practice" has its gains swapped: as printed it is another method',
        "kp column ki, ki column kp",
        f"as printed, apart by {off:.2g}",
        off > 0.1,
    )
    return [*claims, slip]


def _shown(table: list[Row], gaps: dict[str, float]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(
        {
            "method": row.method,
            "start": row.init,
            "ki": f"{row.ki:.3g}",
            "kp": f"{row.kp:.3g}",
            "nu": f"{row.nu:g}",
            "apart": f"{gaps[row.method]:.0e}",
        }
        for row in table
    )


def _draw(paths: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> Figure:
    """The multiplier under each method: a line by itself, dots as nuPI."""
    fig = style.figure(9.0, 4.2)
    panels = fig.subplots(2, 4, sharex=True).flat
    for panel, (name, (one, other)) in zip(panels, paths.items(), strict=False):
        panel.plot(one, color=style.colour("ga"), linewidth=1.4, label="by itself")
        panel.plot(other, ".", color=style.colour("nupi"), markersize=3.5, label="as nuPI")
        panel.set_title(name, fontsize=9)
    last = fig.axes[-1]
    last.axis("off")
    last.legend(*fig.axes[0].get_legend_handles_labels(), loc="center")
    fig.supxlabel("step", fontsize=9)
    fig.supylabel("multiplier", fontsize=9)
    return fig
