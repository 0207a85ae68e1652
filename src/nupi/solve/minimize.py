"""`nupi.minimize`: a small constrained problem, solved by the loop one would write with `Lagrangian`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from nupi.constraints import Inequality
from nupi.lagrangian import Lagrangian
from nupi.monitor.monitor import Monitor
from nupi.optim.nupi import NuPI
from nupi.optim.self_tuned import SelfTuned
from nupi.solve.checks import check_run, check_switch
from nupi.solve.kkt import kkt_residuals
from nupi.solve.methods import DEFAULT_PRIMAL, Factory, known_to_self_tuned, make_optimizer
from nupi.solve.problem import Constraints, Function, Kinds, Point, Problem
from nupi.solve.reach import Samples, flat, small_or_opposed, stride
from nupi.solve.solution import History, Residuals, Solution, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nupi.constraints import Constraint
    from nupi.monitor.finding import Finding
    from nupi.solve.reach import Pull


class Step(NamedTuple):
    """The argument of a callback at step t: x_t, f and the violations there, and the multipliers after the step."""

    step: int
    x: Point
    objective: torch.Tensor
    violations: dict[str, torch.Tensor]
    multipliers: dict[str, torch.Tensor]
    residuals: Residuals


def minimize(
    objective: Function,
    x0: Point,
    *,
    inequality: Constraints = None,
    equality: Constraints = None,
    constraints: Kinds = None,
    ki: float | None = None,
    kp: float = 0.0,
    nu: float = 0.0,
    dual: Factory | None = None,
    primal: Factory | None = None,
    restart: bool = False,
    upper: float | None = None,
    penalty: float | Mapping[str, float] | None = None,
    steps: int = 1000,
    tol: float | None = None,
    history: Sequence[str] = (),
    every: int = 1,
    callback: Callable[[Step], object] | None = None,
) -> Solution:
    """Minimize f(x) subject to c(x) <= 0 and h(x) = 0.

    Each step moves the multipliers first, then x along the gradient of the Lagrangian with the new ones.

    Args:
        objective: x to a scalar tensor.
        x0: where to start: a floating-point tensor, or a dict of them. It is not written to.
        inequality: x to c(x), a tensor of any shape that must be <= 0; or a dict of such functions by name.
        equality: x to h(x), a tensor of any shape that must be 0; or a dict of such functions by name.
        constraints: constraints of any kind with their functions of x, by name, as in
            {"gap": (nupi.Band(3, tolerance=0.1), gap)}.
        ki: the integral gain of the nuPI controller that moves the multipliers: the step size.
        kp: its proportional gain; raise it until the multipliers stop oscillating.
        nu: its smoothing; 0 is best here, because violations are exact.
        dual: another dual optimizer in place of ki, kp and nu: a class or `functools.partial` of one, such
            as partial(torch.optim.Adam, lr=0.01, maximize=True).
        primal: the optimizer of x, as a class or `functools.partial` of one; by default gradient descent with
            step size 0.01 and momentum 0.9.
        restart: whether a multiplier is set to 0 as soon as its inequality is strictly satisfied.
        upper: the largest multiplier of an inequality.
        penalty: the penalty of the augmented Lagrangian; see `Lagrangian`.
        steps: the largest number of steps.
        tol: stop when no KKT residual exceeds this; None spends all steps.
        history: what to record: any of "objective", "violations", "multipliers", "x".
        every: record one of every `every` steps.
        callback: called at every step with a `Step`; its tensors are live, so clone what you keep.

    Returns:
        A `Solution`. If x, f(x) or a violation becomes infinite or nan, its status is DIVERGED. If the steps are spent
        and the record of the run says that the constraints cannot be met, it is INFEASIBLE. `findings` has the other
        findings of the record.

    Example:
        >>> import torch, nupi
        >>> nupi.minimize(
        ...     lambda x: x.square().sum(),
        ...     torch.zeros(2, dtype=torch.float64),
        ...     inequality={"reach": lambda x: 1 - x.sum()},
        ...     ki=0.1,
        ...     kp=1.0,
        ...     tol=1e-8,
        ... )
        Solution (converged, ... steps)
          objective    0.5
          x            [0.5, 0.5] (2,)
          multipliers  reach [1] ()
          KKT          stationarity ..., feasibility ..., complementarity ...
    """
    problem = Problem(objective, x0, inequality, equality, constraints, upper=upper)
    check_run(steps, tol, history, every)
    check_switch("restart", restart)
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be a function of a Step, but a {type(callback).__name__} came")
    factory = _dual_factory(ki, kp, nu, dual)
    loop = _Loop(problem, factory, primal or DEFAULT_PRIMAL, steps, restart=restart, penalty=penalty)
    records: dict[str, list[Any]] = {name: [] for name in ("step", *history)}
    status, taken, apart = Status.BUDGET_SPENT, steps, stride(steps)
    for step in range(steps):
        seen = loop.ascend(step)
        if seen is None:
            status, taken = Status.DIVERGED, step
            break
        if callback is not None:
            callback(seen)
        if history and step % every == 0:
            for name, entries in records.items():
                entries.append(_copied(getattr(seen, name)))
        if tol is not None and bool(seen.residuals.worst <= tol):
            status, taken = Status.CONVERGED, step
            break
        if step and step % apart == 0:
            loop.look(seen)
        loop.primal.step()
    return loop.solution(status, taken, _stacked(records) if history else {})


class _Loop:
    """The state of one run: x, the Lagrangian, and the two optimizers."""

    def __init__(
        self,
        problem: Problem,
        dual: Factory,
        primal: Factory,
        steps: int,
        *,
        restart: bool,
        penalty: float | Mapping[str, float] | None,
    ) -> None:
        self.problem = problem
        self.x = {name: leaf.clone().requires_grad_() for name, leaf in problem.start.items()}
        groups: dict[str, Constraint] = {}
        for group in problem.groups:
            given = group.constraint
            if restart and isinstance(given, Inequality):
                given = Inequality(tuple(given.shape), init=given.init, restart=True, upper=given.upper)
            groups[group.name] = given
        self.lagrangian = Lagrangian(groups, penalty=penalty).to(problem.device, problem.dtype)
        # With more to record, record less often: it must not take as long as solving.
        self.monitor = Monitor(self.lagrangian, every=1 + problem.size // 1000, warn=False)
        self.samples = Samples(1, steps, problem.device)
        self.primal = make_optimizer(primal, self.x.values(), {}, "primal")
        known = known_to_self_tuned(dual, steps, self.primal)
        self.dual = make_optimizer(dual, self.lagrangian.parameters(), known, "dual")
        if isinstance(self.dual, SelfTuned):
            self.dual.check_length(steps)
        if any(group.get("maximize") for group in self.primal.param_groups):
            raise ValueError("primal would maximize the Lagrangian over x; leave out maximize=True")
        if not all(group.get("maximize") for group in self.dual.param_groups):
            name = type(self.dual).__name__
            raise ValueError(
                f"dual would minimize over the multipliers; use functools.partial({name}, maximize=True)"
            )

    def ascend(self, step: int) -> Step | None:
        """Move the multipliers and find the gradient of the Lagrangian; None if the run has diverged."""
        value, violations = self.problem.evaluate(self.x)
        if not _all_finite(value, *violations.values()):
            return None
        self.lagrangian.ascend(self.dual, violations)
        residuals = self._differentiate(value, violations)
        detached = {
            group.name: group.constraint.errors(violations[group.name].detach())
            for group in self.problem.groups
        }
        shown = self.problem.point({name: leaf.detach() for name, leaf in self.x.items()})
        return Step(step, shown, value.detach(), detached, self._multipliers(), residuals)

    def solution(self, status: Status, steps: int, history: History) -> Solution:
        """The solution at the present point."""
        leaves = {name: leaf.detach() for name, leaf in self.x.items()}
        value, violations = self.problem.evaluate(self.x)
        multipliers = {name: multiplier.clone() for name, multiplier in self._multipliers().items()}
        findings: list[Finding] = []
        if not _all_finite(value, *leaves.values(), *multipliers.values(), *violations.values()):
            status = Status.DIVERGED
        if status != Status.CONVERGED:
            findings = self.monitor.diagnose(violations if status != Status.DIVERGED else None)
            if status == Status.BUDGET_SPENT and self._out_of_reach(violations):
                status = Status.INFEASIBLE
        residuals = self._differentiate(value, violations)  # frees the graph, so it comes last
        return Solution(
            x=self.problem.point(leaves),
            multipliers=multipliers,
            objective=value.detach(),
            residuals=residuals,
            status=status,
            steps=steps,
            history=history,
            settings=({},),
            findings=tuple(finding for finding in findings if finding.severity != "note"),
        )

    def look(self, seen: Step) -> None:
        """Record the violations and the multipliers."""
        parts = [g.constraint.infeasibility(seen.violations[g.name]) for g in self.problem.groups]
        self.samples.add(torch.cat([part.reshape(-1, 1) for part in parts]), self.theta())

    def theta(self) -> torch.Tensor:
        """All multipliers, in one column."""
        return torch.cat([multiplier.reshape(-1, 1) for multiplier in self._multipliers().values()])

    def _out_of_reach(self, violations: dict[str, torch.Tensor]) -> bool:
        """Whether the constraints seem infeasible, by samples of the run and by their gradients now."""
        if not bool(self.samples.stay_violated()):
            return False
        start = {name: leaf.clone().requires_grad_() for name, leaf in self.problem.start.items()}
        pulls = [self._pull(self.x, violations), self._pull(start, self.problem.evaluate(start)[1])]
        return bool(small_or_opposed(pulls, self.theta()))

    def _pull(self, x: dict[str, torch.Tensor], violations: dict[str, torch.Tensor]) -> Pull:
        """The function that maps weights of the constraints to J' weights, the gradient in x."""
        groups, leaves = self.problem.groups, list(x.values())
        e = torch.cat([group.constraint.errors(violations[group.name]).reshape(-1, 1) for group in groups])

        def pull(weights: torch.Tensor) -> torch.Tensor:
            push = (weights * e).sum()
            gradient = torch.autograd.grad(push, leaves, retain_graph=True, materialize_grads=True)
            return flat(leaf.unsqueeze(-1) for leaf in gradient)

        return pull

    def _multipliers(self) -> dict[str, torch.Tensor]:
        """The multipliers by name, in the order of the problem, which the Lagrangian may not have."""
        return {group.name: self.lagrangian.multipliers[group.name] for group in self.problem.groups}

    def _differentiate(self, value: torch.Tensor, violations: dict[str, torch.Tensor]) -> Residuals:
        """Set the gradient of the Lagrangian in x, for the primal optimizer; return the KKT residuals."""
        self.primal.zero_grad()
        self.lagrangian(value, violations).backward()
        multipliers, groups = self._multipliers(), self.problem.groups
        flat = [group.constraint.errors(violations[group.name].detach()).reshape(-1, 1) for group in groups]
        theta = [multipliers[group.name].reshape(-1, 1) for group in groups]
        gradient = [leaf.grad.unsqueeze(-1) for leaf in self.x.values() if leaf.grad is not None]
        found = kkt_residuals(self.problem, gradient, torch.cat(flat), torch.cat(theta))
        return Residuals(
            *(each.squeeze(-1) for each in (found.stationarity, found.feasibility, found.complementarity))
        )


def _dual_factory(ki: float | None, kp: float, nu: float, dual: Factory | None) -> Factory:
    if dual is None:
        if ki is None:
            raise TypeError("give ki, the step size of the multipliers (as in ki=0.1), or dual")
        return partial(NuPI, ki=ki, kp=kp, nu=nu)
    if ki is not None or kp != 0.0 or nu != 0.0:
        raise TypeError(
            f"ki={ki}, kp={kp}, nu={nu} are options of nuPI; with dual= put options into functools.partial"
        )
    return dual


def _all_finite(*tensors: torch.Tensor) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: tensor.clone() for name, tensor in value.items()}
    return value.clone() if isinstance(value, torch.Tensor) else value


def _stacked(records: dict[str, list[Any]]) -> History:
    history: History = {}
    for name, entries in records.items():
        if name == "step":
            history[name] = torch.tensor(entries)
        elif entries and isinstance(entries[0], dict):
            history[name] = {key: torch.stack([entry[key] for entry in entries]) for key in entries[0]}
        else:
            history[name] = torch.stack(entries) if entries else torch.empty(0)
    return history
