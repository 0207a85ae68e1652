"""The result of a solver: the point, the multipliers, the KKT residuals, and why it stopped."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd

    from nupi.monitor.finding import Finding
    from nupi.solve.problem import Point

History: TypeAlias = "dict[str, torch.Tensor | dict[str, torch.Tensor]]"


class Status(enum.IntEnum):
    """Why a run ended.

    Example:
        >>> import torch, nupi
        >>> start, over = torch.zeros(2), lambda x: 1 - x.sum()
        >>> found = nupi.minimize(lambda x: x.square().sum(), start, inequality=over, ki=0.1, kp=1.0, tol=1e-4)
        >>> nupi.Status(int(found.status)).name
        'CONVERGED'
    """

    CONVERGED = 0
    BUDGET_SPENT = 1
    DIVERGED = 2
    INFEASIBLE = 3
    """All steps are done, the constraints stay violated while the multipliers grow, and gradients cannot help."""

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True)
class Residuals:
    """The residuals of the KKT conditions at (x, multipliers), each the largest absolute entry.

    stationarity     grad f(x) + Jc(x)^T lambda + Jh(x)^T mu
    feasibility      max(0, c(x)) and h(x)
    complementarity  lambda c(x)
    """

    stationarity: torch.Tensor
    feasibility: torch.Tensor
    complementarity: torch.Tensor

    @property
    def worst(self) -> torch.Tensor:
        """The largest of the three."""
        return self.stationarity.maximum(self.feasibility).maximum(self.complementarity)


@dataclass(frozen=True, repr=False)
class Solution:
    """The result of `minimize` (one run: `axes` is empty) or of `sweep` (one run for each point of a grid).

    Every array of a sweep has the grid's axes first, in the order of `axes`: with axes ki (20) and kp (18),
    70 multipliers are an array of shape (20, 18, 70) and `status` one of shape (20, 18).

    Args:
        x: the last point, a tensor or a dict of tensors like x0.
        multipliers: the multipliers, by constraint name; the name is "inequality" or "equality" if you gave none.
        objective: f(x).
        residuals: the residuals of the KKT conditions at (x, multipliers).
        status: a `Status`; for a sweep a tensor of codes, so that `status == Status.DIVERGED` is a mask.
        steps: how many steps were taken.
        history: the quantities named in `history=`. Entry t has x_t, f(x_t), the violations at x_t, and the
            multipliers after that step, theta_{t+1}. "step" has the values of t.
        axes: the grid's axes, name to values.
        settings: the grid's points, one dict each, in the order of the flattened axes.
        engine: what ran the steps of a sweep: "native" for compiled C, or "torch" and why.
        findings: for `minimize`, if it did not converge: the findings of its run, as from `Monitor.diagnose`.

    Example:
        >>> import torch, nupi
        >>> start, over = torch.zeros(2), lambda x: 1 - x.sum()
        >>> found = nupi.minimize(lambda x: x.square().sum(), start, inequality=over, ki=0.1, kp=1.0)
        >>> found.x, found.multipliers["inequality"]
        (tensor([0.5000, 0.5000]), tensor(1.0000))
    """

    x: Point
    multipliers: dict[str, torch.Tensor]
    objective: torch.Tensor
    residuals: Residuals
    status: Status | torch.Tensor
    steps: int | torch.Tensor
    history: History = field(default_factory=dict)
    axes: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    settings: tuple[dict[str, Any], ...] = ()
    findings: tuple[Finding, ...] = ()
    engine: str = "torch"

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the axes; () for a single run."""
        return tuple(len(values) for values in self.axes.values())

    def at(self, **values: object) -> Solution:
        """The part of a sweep at given values of some axes. The result no longer has these axes.

        >>> import torch, nupi
        >>> found = nupi.sweep(
        ...     lambda x: x.square().sum(),
        ...     torch.zeros(2),
        ...     equality=lambda x: x.sum() - 1,
        ...     grid={"ki": [0.01, 0.1], "kp": [0.0, 1.0, 2.0]},
        ...     steps=10,
        ... )
        >>> found.at(kp=1.0).shape
        (2,)
        """
        index: list[int | slice] = [slice(None)] * len(self.axes)
        for name, value in values.items():
            if name not in self.axes:
                raise KeyError(f"there is no axis {name!r}; this result has {', '.join(self.axes) or 'none'}")
            known_values = self.axes[name]
            matches = [i for i, known in enumerate(known_values) if _same(known, value)]
            if not matches:
                raise KeyError(f"{name}={value!r} is not on its axis, which has {self.axes[name]}")
            index[list(self.axes).index(name)] = min(matches, key=lambda i: _gap(known_values[i], value))
        rest = {name: known for name, known in self.axes.items() if name not in values}
        numbers = torch.arange(len(self.settings), device="cpu").reshape(self.shape)
        picked = numbers[tuple(index)].reshape(-1).tolist()
        return self._map(lambda array: array[tuple(index)], rest, tuple(self.settings[i] for i in picked))

    def frame(self, **columns: torch.Tensor | Sequence[Any] | float) -> pd.DataFrame:
        """One row per run, for pandas: its setting, status, steps, objective and residuals.

        Args:
            columns: more columns, each an array shaped like the axes, such as a distance to a known solution.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("frame() needs pandas: pip install pandas") from error
        rows = math.prod(self.shape)
        names = dict.fromkeys(name for setting in self.settings for name in setting)
        data: dict[str, Any] = {name: [s.get(name) for s in self.settings] for name in names}
        codes = _tensor(self.status).reshape(-1).tolist()
        data["status"] = [str(Status(code)) for code in codes]
        data["steps"] = _tensor(self.steps).reshape(-1).tolist()
        own = {
            "objective": self.objective,
            "stationarity": self.residuals.stationarity,
            "feasibility": self.residuals.feasibility,
            "complementarity": self.residuals.complementarity,
        }
        taken = [name for name in columns if name in data or name in own]
        if taken:
            raise ValueError(f"frame() already has a column {taken[0]!r}; give yours another name")
        for name, values in (own | columns).items():
            column = values if isinstance(values, torch.Tensor) else torch.as_tensor(values, device="cpu")
            if tuple(column.shape) != self.shape:
                raise ValueError(
                    f"column {name!r} has shape {tuple(column.shape)}, but the axes have {self.shape}"
                )
            data[name] = column.detach().cpu().reshape(rows).tolist()
        return pd.DataFrame(data)

    def __repr__(self) -> str:
        lines = [f"Solution ({self.status}, {self.steps} steps)"] if not self.axes else self._summary()
        if not self.axes:
            lines.append(f"  objective    {self.objective.item():.6g}")
            points = self.x if isinstance(self.x, dict) else {"x": self.x}
            for name, leaf in points.items():
                lines.append(f"  {name:<12} {_short(leaf)}")
            for name, values in self.multipliers.items():
                lines.append(f"  multipliers  {name} {_short(values)}")
            kkt = self.residuals
            lines.append(
                f"  KKT          stationarity {kkt.stationarity.item():.1e}, feasibility "
                f"{kkt.feasibility.item():.1e}, complementarity {kkt.complementarity.item():.1e}"
            )
            lines += [f"  found        {finding}" for finding in self.findings]
        return "\n".join(lines)

    def _summary(self) -> list[str]:
        codes = _tensor(self.status)
        counts = ", ".join(
            f"{count} {status}" for status in Status if (count := int((codes == status).sum().item()))
        )
        axes = ", ".join(f"{name} ({len(values)})" for name, values in self.axes.items())
        names = ", ".join(
            f"{name} {tuple(values.shape[len(self.axes) :])}" for name, values in self.multipliers.items()
        )
        return [
            f"Solution of a sweep over {axes}",
            f"  {codes.numel()} runs: {counts}",
            f"  multipliers: {names}",
            f"  smallest KKT residual {self.residuals.worst.nan_to_num(math.inf).min().item():.1e}",
        ]

    def _map(
        self,
        function: Callable[[torch.Tensor], torch.Tensor],
        axes: dict[str, tuple[Any, ...]],
        settings: tuple[dict[str, Any], ...],
    ) -> Solution:
        """The same result with every array replaced, the axes being the first dimensions of each."""
        history: History = {}
        for name, entry in self.history.items():
            if name == "step":
                history[name] = entry
            elif isinstance(entry, dict):
                history[name] = {key: function(array) for key, array in entry.items()}
            else:
                history[name] = function(entry)
        status, steps = function(_tensor(self.status)), function(_tensor(self.steps))
        x = self.x
        return Solution(
            x={name: function(leaf) for name, leaf in x.items()} if isinstance(x, dict) else function(x),
            multipliers={name: function(values) for name, values in self.multipliers.items()},
            objective=function(self.objective),
            residuals=Residuals(
                function(self.residuals.stationarity),
                function(self.residuals.feasibility),
                function(self.residuals.complementarity),
            ),
            status=status if status.dim() else Status(int(status)),
            steps=steps if steps.dim() else int(steps),
            history=history,
            axes=axes,
            settings=settings,
            engine=self.engine,
        )


def _tensor(value: int | torch.Tensor) -> torch.Tensor:
    """A number as a tensor. Unlike `as_tensor`, this does not move a tensor to the default device."""
    return value if isinstance(value, torch.Tensor) else torch.tensor(value, device="cpu")


def _same(known: object, value: object) -> bool:
    """Whether two values are equal, or floats that differ only by rounding, such as 0.1 and a value of logspace."""
    if isinstance(known, float) and isinstance(value, (int, float)):
        return math.isclose(known, value, rel_tol=1e-6, abs_tol=1e-300)
    return known == value


def _gap(known: object, value: object) -> float:
    """The distance of two values that count as the same; 0 unless they are numbers."""
    if isinstance(known, (int, float)) and isinstance(value, (int, float)):
        return abs(known - value)
    return 0.0


def _short(values: torch.Tensor, most: int = 6) -> str:
    flat = values.detach().reshape(-1)
    shown = ", ".join(f"{value:.6g}" for value in flat[:most].tolist())
    return f"[{shown}{', ...' if flat.numel() > most else ''}] {tuple(values.shape)}"
