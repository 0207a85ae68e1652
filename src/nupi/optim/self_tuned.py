"""SelfTuned: a dual optimizer that finds its gains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nupi import rule
from nupi.optim import identification, measuring, self_tuning, tuning_warnings
from nupi.optim.base import DualOptimizer, Gains, Options, State, Work
from nupi.optim.checks import check_step_size
from nupi.optim.found import ByName, Found, found_of, frozen
from nupi.optim.gauge import Gauge
from nupi.optim.retuning import (
    NOTING,
    PHASES,
    RESTING,
    RETUNING,
    SLOTS,
    UNTOUCHED,
    between_retunings,
    phase_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nupi.constraints import Bounds
    from nupi.lagrangian import Lagrangian
    from nupi.optim.evaluated import Evaluate
    from nupi.optim.nupi import NuPI
    from nupi.violations import Target, Violation


class SelfTuned(DualOptimizer):
    """A nuPI controller that finds its own gains.

    You say within how many dual steps the constraints should be met: a quarter of training is a good answer. Units
    and step sizes do not matter. The step is that of `NuPI`; the gains follow from b, by which the violation falls if
    the multiplier rises by 1, and alpha, the share of its drift that a violation loses in a step by itself:

        theta_{t+1} = theta_t + ki e_t + kp (xi_t - xi_{t-1})
        kp = kappa / b                                      kappa = 0.7 alpha, or less if violations are noisy
        ki = w (1 - w - alpha + kappa) / ((1 - w) b)        w: the share of the violation to remove in a step

    The page "Gains that find themselves" says where that fails. Rows of an `Indexed` group are taken to have one unit.

    With `primal`, the response of the model to a multiplier is measured now and then, inside `lagrangian(loss,
    violations)`. Without it, the response is identified from violations and multipliers. That needs nothing from the
    model, takes longer, and starts from a guess that depends on `scale`.

    Args:
        params: multipliers, or param groups with `steps` of their own.
        steps: dual steps within which the constraints should be met.
        primal: the optimizer of the model, or several: SGD, Adam and its kin, RMSprop or Adagrad.
        evaluate: returns `(loss, violations)`, with their graph, on the data that move the multipliers. It is called
            at each measurement. Give it if `ascend` gets violations of other data than the batch, as of all rows once
            an epoch: a batch with few rows of a constraint overstates its response. Only with `primal`.
        scale: the size of the loss; only without `primal`.
        maximize: multipliers ascend. False turns the controller into a minimizer.
        lr: scales both gains; it is there for `torch.optim.lr_scheduler`.
        foreach: accepted as by every optimizer here; there is one implementation.

    Example:
        >>> import nupi
        >>> x = torch.zeros(2, requires_grad=True)
        >>> primal = torch.optim.SGD([x], lr=0.1)
        >>> lagrangian = nupi.Lagrangian({"sum": nupi.Equality()})
        >>> dual = SelfTuned(lagrangian.parameters(), steps=50, primal=primal)
        >>> for _ in range(200):
        ...     violations = {"sum": x.sum() - 1}
        ...     lagrangian.ascend(dual, violations)
        ...     lagrangian(x.square().sum(), violations).backward()
        ...     primal.step(); primal.zero_grad()
        >>> x.detach()
        tensor([0.5000, 0.5000])
    """

    gain_names = ("lr", "steps", "scale")
    slot_names = SLOTS[False, False]
    integrators = ("beyond",)
    late_slots = ("beyond",)
    lasting_slots = self_tuning.PLANT
    writes_groups = True

    def __init__(
        self,
        params: Iterable[Any],
        steps: float,
        *,
        primal: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None = None,
        evaluate: Evaluate | None = None,
        scale: float = 1.0,
        maximize: bool = True,
        lr: float = 1.0,
        foreach: bool | None = None,
    ) -> None:
        self._gauge, self._names = Gauge(), dict[int, str]()
        defaults = {
            "lr": lr,
            "steps": steps,
            "scale": scale,
            "maximize": maximize,
            "foreach": foreach,
            "measured": primal is not None,
            "taken": 0,  # dual steps
            "since": 0,  # primal steps since the last dual step
            "per_step": 1.0,  # primal steps per dual step
            **measuring.DEFAULTS,
            "stride": 1,  # dual steps from one watching to the next
            "phase": RETUNING,  # whether this step finds new gains, or prepares that, or neither
        }
        super().__init__(params, defaults)
        if primal is not None:
            self.watch(primal, evaluate)
        elif evaluate is not None:
            raise TypeError(
                "evaluate came without primal, and only what is measured needs it; give primal, the optimizer of the "
                "model, too"
            )

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy has no primal: it goes on with the response it knows. Give it one with `watch`."""
        super().__setstate__(state)
        # Torch comes here for a checkpoint that is loaded too, and that has to keep the primal it was built with.
        if "_gauge" not in self.__dict__:
            self._gauge, self._names = Gauge(), {}
        elif self._gauge.primal:
            self._gauge.restart()
            self._identify_no_more()

    def watch(
        self,
        primal: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
        evaluate: Evaluate | None = None,
    ) -> None:
        """Measure the response through these optimizers of the model from now on, and on what `evaluate` returns."""
        self._gauge.watch(self, primal, evaluate)
        self._identify_no_more()

    def _identify_no_more(self) -> None:
        """From now on the response is measured; what was kept to identify it is dropped."""
        for group in self.param_groups:
            group["measured"] = True
        for state in self.state.values():
            for slot in identification.IDENTIFIED:
                state.pop(slot, None)

    @property
    def measures(self) -> bool:
        """Whether the response is measured; else it is identified."""
        return bool(self._gauge.primal)

    def check_length(self, run: float) -> None:
        """Warn if a run of so many dual steps is too short for the `steps` that were asked for.

        Whoever knows how long a run is calls this: `minimize` and the front ends do.
        """
        tuning_warnings.warn_of_length(max(group["steps"] for group in self.param_groups), run)

    # --- what the Lagrangian shows ---

    def observe(
        self, lagrangian: Lagrangian, loss: torch.Tensor, paired: Sequence[tuple[Target, Violation]]
    ) -> None:
        """Measure the response if it is time to; the Lagrangian calls this with the graph at hand."""
        for target, _ in paired:
            self._names[id(target.multiplier)] = target.name
        if self._gauge.measure(self, lagrangian, loss, paired):
            self._retune(lagrangian)
            self._gauge.warn(self, self._names)

    def gains(self) -> dict[str | torch.Tensor, Found]:
        """What has been found, by the constraint's name (by its multiplier, while the name is not known).

        `ki`, `kp` and `nu` are the gains in use. `response` (b) is how far the violation moves, per primal step, for
        one unit of multiplier; 0 where it is not known yet. `curvature` (h) is the share by which a drift of the
        violation relaxes a primal step. `measured_at` is the dual step of the last measurement. `sure` is in [0, 1].

        With `primal`, `sure` is the smaller of the last two responses over the larger; 0 after the first. Without it,
        nothing is measured, so `measured_at` stays 0, and `sure` is the share of the violation's changes that the
        multiplier explained when the response was last identified. It is 0 while the response is a guess, and falls by
        e^-4 in `steps` while nothing moves enough to confirm it, as in a run that has met its constraint.
        """
        return ByName(
            (self._names.get(id(param), param), found_of(group, param, self.state.get(param)))
            for group in self.param_groups
            for param in group["params"]
        )

    def freeze(self) -> NuPI:
        """A `NuPI` that goes on from here, with the gains found so far, for the same multipliers."""
        return frozen(self)

    # --- what a dual optimizer has ---

    def apply(self, works: list[Work]) -> None:
        """Count the step, and see whether it is time to find new gains; then move."""
        if not torch.compiler.is_compiling():
            self.begin_step(some_rows=any(work.rows is not None for work in works))
        super().apply(works)

    def begin_step(self, *, some_rows: bool) -> frozenset[str]:
        """Count the step, and write down what it is to the next search for gains."""
        phases = []
        for group in self.param_groups:
            group["stride"], phase = phase_of(group, some_rows=some_rows)
            group["phase"] = phase
            group["taken"] += 1
            if group["since"]:
                group["per_step"], group["since"] = float(group["since"]), 0
            if phase == RETUNING and not group["measured"]:
                self.__dict__.pop("_large_state", None)  # what is identified may have become large
            phases.append(phase)
        if RETUNING in phases and self.param_groups[0]["measured"]:
            self._gauge.check_copy()
        return self._untouched_in(phases)

    def untouched(self, *, some_rows: bool) -> frozenset[str]:
        """The state that the coming step will not write to."""
        return self._untouched_in([phase_of(group, some_rows=some_rows)[1] for group in self.param_groups])

    def _untouched_in(self, phases: list[str]) -> frozenset[str]:
        """The state that a step does not write to whose groups are in these phases."""
        phase = phases[0] if len(phases) == 1 else max(phases, key=PHASES.index)
        return UNTOUCHED[bool(self._gauge.primal)][phase]

    @staticmethod
    def scaled_gains(options: Options) -> Gains:
        """The horizon, the factor of the gains that are found, and the size of the loss."""
        return {"lr": options["lr"], "steps": options["steps"], "scale": options["scale"]}

    @staticmethod
    def slots(options: Options, bounds: Bounds | None) -> tuple[str, ...]:
        """NuPI's own state, the gains, and what they are found from."""
        return SLOTS[bool(options["measured"]), bounds is None]

    @staticmethod
    def update(
        theta: rule.Tensors,
        state: State,
        e: rule.Tensors,
        gains: Gains,
        options: Options,
        bounds: Bounds | None,
        *,
        first: bool,
    ) -> None:
        """Watch the error, find new gains if they are due, and take nuPI's step with them."""
        assert isinstance(theta, torch.Tensor)
        assert isinstance(e, torch.Tensor)
        kept: Any = state
        lr, phase = gains["lr"], options["phase"]
        if first or "period" in options or torch.compiler.is_compiling():
            period = _period(options)
            if first or period > 1.0 or torch.compiler.is_compiling():
                phase, options = RETUNING, {**options, "stride": period}
        if first:
            self_tuning.open_(theta, kept, e)
            if not options["measured"]:
                identification.open_(theta, kept, e)
        if not options["measured"]:
            identification.hear_(kept, e, gains["steps"])
        if phase != RESTING:
            SelfTuned._tune(phase, theta, kept, e, gains, options, bounds)
        ki, kp, weight, pull, damping = map(kept.__getitem__, self_tuning.GAINS)
        if type(lr) is not float or lr != 1.0:
            ki, kp, pull, damping = lr * ki, lr * kp, lr * pull, lr * damping
        if bounds is None:
            rule.velocity_(theta, kept["xi"], e, ki, kp, weight, (pull, damping))
            return
        rule.conditional_(
            theta, kept["xi"], kept["beyond"], e, ki, kp, weight, bounds, products=(pull, damping)
        )
        if phase == RETUNING:
            rule.limit_beyond_(kept["beyond"], kept["xi"], kp)

    @staticmethod
    def _tune(
        phase: str,
        theta: torch.Tensor,
        state: dict[str, torch.Tensor],
        e: torch.Tensor,
        gains: Gains,
        options: Options,
        bounds: Bounds | None,
    ) -> None:
        """Take the violation in, as the phase asks for it, and find new gains if they are due."""
        if phase == NOTING:
            self_tuning.note_(state, e)
            return
        steps, stride = gains["steps"], options["stride"]
        self_tuning.watch_(theta, state, e, steps, stride)
        if not options["measured"]:
            identification.identify_(theta, state, steps, stride, gains["scale"], bounds)
        if phase == RETUNING:
            period = _period(options)
            past = period if period > 1.0 else between_retunings(options)
            # A sweep counts no steps: there `taken` stays 0.
            early = not isinstance(steps, torch.Tensor) and 0 < options["taken"] <= steps
            self_tuning.retune_(state, steps, stride, past, options["per_step"], bounds, period, early=early)

    def _batches(self, group: dict[str, Any]) -> bool:  # noqa: ARG002
        """Every parameter has gains of its own, so that none moves alike with another."""
        return False

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        check_step_size("lr", group["lr"])
        for name in ("steps", "scale"):
            value = group[name]
            if isinstance(value, torch.Tensor):
                raise TypeError(f"{name} must be a number, but a tensor came; use param groups")
            if name == "steps" and value < 1:
                raise ValueError(
                    f"steps must be at least 1, but {value!r} came; it is a number of dual steps, "
                    "and a quarter of training is a good answer"
                )
            # Beyond, gains would be no numbers.
            if not 1e-12 <= value <= 1e12:
                raise ValueError(f"{name} must lie between 1e-12 and 1e12, but {value!r} came")

    # --- measuring ---

    def _retune(self, lagrangian: Lagrangian) -> None:
        """Find new gains from what was just measured."""
        self.__dict__.pop("_large_state", None)
        bounds = {
            id(lagrangian.get_parameter(name)): constraint.bounds
            for name, constraint in lagrangian.constraints.items()
        }
        with torch.no_grad():
            for group in self.param_groups:
                for param in group["params"]:
                    if self.state.get(param) and id(param) in bounds:
                        kept = self.state[param]
                        steps, stride, per_step = group["steps"], group["stride"], group["per_step"]
                        early = group["taken"] <= steps
                        self_tuning.retune_(kept, steps, stride, 0, per_step, bounds[id(param)], early=early)


def _period(options: Options) -> float:
    """Dual steps for each one of these multipliers; 1 where the response is identified, which is per step of theirs."""
    return float(options.get("period", 1.0)) if options["measured"] else 1.0
