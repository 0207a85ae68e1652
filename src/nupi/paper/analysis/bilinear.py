"""A bilinear game (H = 0): no convergence without kp, convergence with any, in theory and in trajectories."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

import nupi
from nupi.paper import style
from nupi.paper.runner import Claim, TargetRun, target
from nupi.theory.discrete import iteration_matrix, spectral_radius
from nupi.theory.flow import FlowProblem, Trajectory, solve_flow
from nupi.theory.spectrum import decay_rate, eigenvalues, system_matrix

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Two variables and two constraints, with singular values 1.34 and 0.89: two frequencies.
A = torch.tensor([[1.2, 0.6], [-0.4, 0.8]], dtype=torch.float64)
NOTHING = torch.zeros(2, 2, dtype=torch.float64)
KI, KPS = 1.0, (0.0, 0.3, 1.0)
LR, STEPS = 0.05, 500
X0 = torch.tensor([1.0, -0.5], dtype=torch.float64)
TIMES = torch.linspace(0.0, 25.0, 501, dtype=torch.float64)
GAME = FlowProblem(f=lambda x: 0.0 * x.sum(), h=lambda x: A @ x)


@target(
    "bilinear",
    paper="Appendix, smooth bilinear games",
    about="H = 0: eigenvalues against kp, and flows and optimizers that agree with them",
    scales=("paper",),
)
def bilinear(run: TargetRun) -> list[Claim]:
    """Eigenvalues, the flow, its matrix exponential and the real optimizers, all of the same game."""
    import pandas as pd

    flows = {
        kp: solve_flow(GAME, X0, ki=KI, kp=kp, times=TIMES, tolerance=1e-9)
        for kp in run.progress(KPS, "integrating the flow")
    }
    walks = {kp: _optimize(run, kp) for kp in KPS}
    run.results(pd.concat([_frame(kp, flows[kp], walks[kp]) for kp in KPS]))
    run.figure(_draw(flows, walks))

    still = eigenvalues(NOTHING, A, KI, 0.0)
    sizes = {kp: _size(path) for kp, path in flows.items()}
    kept = float(sizes[0.0].amax() / sizes[0.0].amin())
    exact = max(float((_exponential(kp) - _states(path)).abs().max()) for kp, path in flows.items())
    positive = [10.0**power for power in (-4, -2, 0, 2)]
    slowest = {kp: float(eigenvalues(NOTHING, A, KI, kp).real.max()) for kp in positive}
    measured = {kp: _fit(sizes[kp], TIMES) for kp in KPS[1:]}
    predicted = {kp: decay_rate(NOTHING, A, KI, kp) for kp in KPS[1:]}
    radii = {kp: _radius(kp) for kp in KPS}
    last = {kp: float(walk[-100:].amax()) for kp, walk in walks.items()}
    rates = {kp: math.exp(-_fit(walks[kp], torch.arange(STEPS).double())) for kp in KPS[1:]}
    return [
        Claim(
            "at kp = 0 every eigenvalue is imaginary or zero",
            "no real part",
            f"greatest |Re| {float(still.real.abs().max()):.0e}, |Im| {_list(still.imag[still.imag > 0])}",
            float(still.real.abs().max()) < 1e-12,
        ),
        Claim(
            "so gradient descent-ascent does not converge",
            "lack of convergence",
            f"|(x, mu)| in [{float(sizes[0.0].amin()):.3f}, {float(sizes[0.0].amax()):.3f}] up to t = 25",
            float(sizes[0.0][-50:].amax()) > 0.5 * float(sizes[0.0][0]) and kept < 10,
        ),
        Claim(
            "kp > 0 makes every real part negative",
            "large enough kp (in fact any)",
            ", ".join(f"{value:.1e} at {kp:g}" for kp, value in slowest.items()),
            max(slowest.values()) < 0.0,
        ),
        Claim(
            "flows agree with the matrix exponential",
            "z' = [[0, I], [0, -U]] z",
            f"apart by {exact:.0e}",
            exact < 1e-6,
        ),
        Claim(
            "and decay at the rate of the slowest eigenvalue",
            "-max Re",
            ", ".join(f"{measured[kp]:.4f} for {predicted[kp]:.4f}" for kp in predicted),
            all(abs(measured[kp] / predicted[kp] - 1) < 0.03 for kp in predicted),
        ),
        Claim(
            "the real optimizers: bounded, without convergence, at kp = 0",
            "alternating updates stay bounded",
            f"spectral radius {radii[0.0]:.6f}; |(x, mu)| up to {last[0.0]:.3f} after {STEPS} steps",
            abs(radii[0.0] - 1) < 1e-9 and 0.1 < last[0.0] < 10,
        ),
        Claim(
            "and convergence for kp > 0, by the predicted factor a step",
            "convergence",
            ", ".join(f"{rates[kp]:.5f} for {radii[kp]:.5f}" for kp in rates),
            all(abs(math.log(rates[kp]) / math.log(radii[kp]) - 1) < 0.03 for kp in rates),
        ),
    ]


def _optimize(run: TargetRun, kp: float) -> torch.Tensor:
    """|(x, mu)| along a run of SGD and NuPI, multipliers first, at ki LR: the flow's time is LR a step."""
    x = X0.clone().requires_grad_()
    lagrangian = nupi.Lagrangian({"rows": nupi.Equality(2)}).double()
    primal = torch.optim.SGD([x], lr=LR)
    dual = nupi.NuPI(lagrangian.parameters(), ki=KI * LR, kp=kp, init="bumpless", form="velocity")
    sizes = []
    for _ in run.progress(range(STEPS), f"optimizing at kp = {kp:g}"):
        sizes.append(torch.cat([x.detach(), lagrangian.multipliers["rows"]]).square().sum().sqrt())
        violations = {"rows": A @ x}
        lagrangian.ascend(dual, violations)
        lagrangian(0.0 * x.sum(), violations).backward()
        primal.step()
        primal.zero_grad()
    return torch.stack(sizes)


def _states(path: Trajectory) -> torch.Tensor:
    return torch.cat([path.x, path.mu], dim=1)


def _size(path: Trajectory) -> torch.Tensor:
    return _states(path).square().sum(dim=1).sqrt()


def _exponential(kp: float) -> torch.Tensor:
    """The same flow from its state-space form: position and velocity under exp([[0, I], [0, -U]] t)."""
    u = system_matrix(NOTHING, A, KI, kp)
    velocity = torch.cat([torch.zeros(2, dtype=torch.float64), KI * A @ X0])
    start = torch.cat([X0, torch.zeros(2, dtype=torch.float64), velocity])
    one, zero = torch.eye(4, dtype=torch.float64), torch.zeros(4, 4, dtype=torch.float64)
    form = torch.cat([torch.cat([zero, one], dim=1), torch.cat([zero, -u], dim=1)])
    step = torch.linalg.matrix_exp(form * (TIMES[1] - TIMES[0]))
    states = [start]
    for _ in TIMES[1:]:
        states.append(step @ states[-1])
    return torch.stack(states)[:, :4]


def _fit(sizes: torch.Tensor, times: torch.Tensor) -> float:
    """The rate of decay: the slope through the logarithms of the peaks, past the first third."""
    logs = sizes.log()
    inside = torch.arange(1, len(logs) - 1)
    peaks = inside[(logs[1:-1] >= logs[:-2]) & (logs[1:-1] >= logs[2:]) & (logs[1:-1] > -30.0)]
    peaks = peaks[peaks > len(logs) // 3]
    if len(peaks) < 3:  # no oscillation to speak of
        peaks = torch.arange(len(logs) // 3, len(logs))
    t, y = times[peaks], logs[peaks]
    return -float(((t - t.mean()) * (y - y.mean())).sum() / (t - t.mean()).square().sum())


def _radius(kp: float) -> float:
    return float(spectral_radius(iteration_matrix(NOTHING, A, lr=LR, ki=KI * LR, kp=kp)))


def _list(values: torch.Tensor) -> str:
    return ", ".join(f"{value:.3f}" for value in sorted(values.tolist()))


def _frame(kp: float, path: Trajectory, walk: torch.Tensor) -> pd.DataFrame:
    import pandas as pd

    flow = pd.DataFrame({"kp": kp, "what": "flow", "time": path.times, "size": _size(path)})
    steps = pd.DataFrame({"kp": kp, "what": "optimizers", "time": torch.arange(len(walk)) * LR, "size": walk})
    return pd.concat([flow, steps])


def _draw(flows: dict[float, Trajectory], walks: dict[float, torch.Tensor]) -> Figure:
    fig = style.figure(9.6, 3.5)
    plane, phase, decay = fig.subplots(1, 3)
    _draw_eigenvalues(plane)
    colours = dict(zip(KPS, [style.colour("ga"), *style.shades("nupi", 2)], strict=True))
    for kp, path in flows.items():
        label = r"gradient ascent, $\kappa_p = 0$" if kp == 0 else rf"$\nu$PI, $\kappa_p = {kp:g}$"
        phase.plot(path.x[:, 0], path.mu[:, 0], color=colours[kp], linewidth=1.1, label=label)
        decay.semilogy(path.times, _size(path), color=colours[kp], label=label)
        every = 25
        times = torch.arange(0, len(walks[kp]), every) * LR
        kept = times <= 25.0
        decay.semilogy(times[kept], walks[kp][::every][kept], "o", color=colours[kp], markersize=2.5)
    phase.plot(0, 0, "*", color=style.OPTIMUM, markersize=10)
    phase.set(xlabel="$x_1$", ylabel=r"$\mu_1$", title="trajectories of the flow")
    decay.set(xlabel="time", ylabel=r"$|(x, \mu)|$", title="lines: flow; dots: optimizers", ylim=(1e-6, 5))
    fig.legend(*phase.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return fig


def _draw_eigenvalues(axes: Axes) -> None:
    """The eigenvalues in the complex plane, from kp = 0 on the imaginary axis to kp = 2.5."""
    grid = torch.linspace(0.0, 2.5, 1200, dtype=torch.float64)
    values = torch.stack([eigenvalues(NOTHING, A, KI, kp) for kp in grid.tolist()])
    points = axes.scatter(
        values.real, values.imag, c=grid[:, None].expand_as(values.real), s=4, cmap="viridis", linewidths=0
    )
    start = eigenvalues(NOTHING, A, KI, 0.0)
    axes.plot(start.real, start.imag, "o", color=style.colour("ga"), markersize=6, zorder=4)
    axes.axvspan(0.0, 0.4, color="#FBE3DF", linewidth=0, zorder=0)
    axes.axvline(0.0, color="0.4", linewidth=0.8)
    axes.set(xlabel=r"Re $\lambda$", ylabel=r"Im $\lambda$", xlim=(-4.0, 0.4), title="eigenvalues")
    axes.figure.colorbar(points, ax=axes, label=r"$\kappa_p$")
