"""A batch of runs as one program: the step is traced once, and then run as compiled C or replayed by torch.

The last dimension of every tensor is the setting. Consecutive settings that share a dual rule form a block. One step
(`take_step`) moves all settings at once.

The user's functions take one point: `vmap` batches them and `vjp` differentiates them. Interpreting both at every step
would cost more than the arithmetic of a small problem. So the whole step is traced once into a flat list of tensor
operations, of one setting for `nupi.solve.native`, or of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from nupi.solve.kkt import infeasibility, kkt_residuals
from nupi.solve.rules import DualRule, rule_of
from nupi.solve.step import Block, Leaves, differentiate, evaluate_batch, take_step, tracing, under

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nupi.solve.native import Native
    from nupi.solve.problem import Problem, Segment
    from nupi.solve.rules import Rule, TorchRule
    from nupi.solve.solution import Residuals


@dataclass(frozen=True)
class Setting:
    """One run of a batch: its dual rule, and the options that differ between runs.

    Args:
        rule: the dual rule.
        options: the options of the rule.
        restart: whether it restarts multipliers.
        penalty: the penalty of the augmented Lagrangian, by constraint name.
    """

    rule: type[Rule]
    options: dict[str, Any]
    restart: bool = False
    penalty: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Settings with equal keys can share a block."""
        return (self.rule.__name__, *self.rule.kind(self.options), self.restart)

    @cached_property
    def word(self) -> str:
        """The key as text, to sort by."""
        return repr(self.key)

    def __reduce__(self) -> tuple[Any, ...]:
        # The class of a rule may be made at run time, so a worker has to make it too.
        if issubclass(self.rule, DualRule):
            return _received, (self.rule.optimizer, self.options, self.restart, self.penalty)
        return Setting, (self.rule, self.options, self.restart, self.penalty)


def _received(
    optimizer: type[torch.optim.Optimizer],
    options: dict[str, Any],
    restart: Any,
    penalty: Mapping[str, float],
) -> Setting:
    rule = rule_of(optimizer)
    assert rule is not None
    return Setting(rule, options, restart, penalty)


class Program:
    """A batch of settings that solve one problem.

    Args:
        problem: the problem.
        settings: the runs; those with equal keys must be consecutive.
        primal: the rule that moves x, and its options.
        compiled: pass the traced step to `torch.compile`.
        native: compiled kernels, used if they can run these steps.
    """

    def __init__(
        self,
        problem: Problem,
        settings: Sequence[Setting],
        primal: tuple[TorchRule, dict[str, Any]],
        *,
        compiled: bool = False,
        native: Native | None = None,
    ) -> None:
        self.problem = problem
        self.settings = list(settings)
        self.primal = primal
        self.compiled = compiled
        self.tensors: dict[str, torch.Tensor] = {}
        self.blocks = _blocks(self.settings)
        self._allocate()
        self._begin()
        self._native = None
        if native is not None and native.serves(problem, self.blocks, primal[0], self.tensors):
            self._native = native

    @property
    def width(self) -> int:
        """How many settings are still in the batch."""
        return len(self.settings)

    @property
    def x(self) -> Leaves:
        """The points, each leaf (..., settings)."""
        return under("x", self.tensors)

    @property
    def theta(self) -> torch.Tensor:
        """The multipliers, (constraints, settings)."""
        return self.tensors["theta"]

    @torch.no_grad()
    def first(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Take the first step, which sets the initial condition; returns f(x_0) and c(x_0)."""
        value, e = self._step(self.tensors, first=True, seen=True)
        return value, e

    @torch.no_grad()
    def advance(self, count: int) -> None:
        """Take `count` later steps."""
        if self._native is not None:
            self._native.advance(self.problem, self.blocks, self.primal[0], self.tensors, count)
            return
        replay, tensors = self._replay(seen=False), list(self.tensors.values())
        for _ in range(count):
            replay(*tensors)

    @torch.no_grad()
    def observe(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Take one later step; returns f(x_t) and c(x_t), the values before it."""
        if self._native is not None:
            return self._native.observe(self.problem, self.blocks, self.primal[0], self.tensors)
        value, e = self._replay(seen=True)(*self.tensors.values())
        return value, e

    def finite(self) -> torch.Tensor:
        """Which settings are still finite: a mask over the columns."""
        alive = torch.isfinite(self.theta).all(0)
        for leaf in self.x.values():
            alive &= torch.isfinite(leaf).reshape(-1, self.width).all(0)
        return alive

    def keep(self, columns: torch.Tensor) -> None:
        """Keep only these settings."""
        spans = {block.name: block for block in self.blocks}
        self.settings = [self.settings[i] for i in columns.tolist()]
        self.blocks = _blocks(self.settings)
        live = {block.name for block in self.blocks}
        kept: dict[str, torch.Tensor] = {}
        for name, tensor in self.tensors.items():
            owner, local = _owner(name), columns
            if owner in spans:
                if owner not in live:  # drop the tensors of a block without settings
                    continue
                start, stop = spans[owner].start, spans[owner].stop
                local = columns[(columns >= start) & (columns < stop)] - start
            kept[name] = tensor.index_select(-1, local)
        self.tensors = kept
        self._begin()

    def _allocate(self) -> None:
        problem, width, tensors = self.problem, self.width, self.tensors
        kind: dict[str, Any] = {"dtype": problem.dtype, "device": problem.device}
        for name, leaf in problem.start.items():
            tensors[f"x/{name}"] = leaf.unsqueeze(-1).repeat(*[1] * leaf.dim(), width)
        tensors["theta"] = problem.multipliers().unsqueeze(-1).repeat(1, width)
        penalty = penalties(problem, self.settings)
        if penalty is not None:
            tensors["penalty"] = penalty
        moved = self.primal[0]
        for name, leaf in self.x.items():
            for slot in moved.slots(None):
                tensors[f"primal/{name}/{slot}"] = torch.zeros_like(leaf)
            for power, start in moved.powers().items():
                tensors[f"primal/{name}/{power}"] = torch.full((width,), start, **kind)
        for block in self.blocks:
            columns = block.stop - block.start
            for gain, values in block.rule.gains().items():
                tensors[f"{block.name}/gain/{gain}"] = torch.tensor(values, **kind)
            for number, segment in enumerate(self._segments(block)):
                rows = segment.stop - segment.start
                for slot in block.rule.slots(segment.bounds):
                    tensors[f"{block.name}/state {number}/{slot}"] = torch.zeros(rows, columns, **kind)
                for power, start in block.rule.powers().items():
                    tensors[f"{block.name}/state {number}/{power}"] = torch.full((columns,), start, **kind)

    def _begin(self) -> None:
        """Drop traces of another width, and make the cotangent of f, which is a constant in a trace."""
        self._replays: dict[bool, Callable[..., list[torch.Tensor]]] = {}
        self._one = torch.ones(self.width, dtype=self.problem.dtype, device=self.problem.device)

    def _segments(self, block: Block) -> list[Segment]:
        return self.problem.segments(restart=block.restart)

    def _replay(self, *, seen: bool) -> Callable[..., list[torch.Tensor]]:
        """The traced step, as a function of the tensors in order. With `seen` it returns f and c."""
        if seen not in self._replays:
            names = list(self.tensors)

            def step(*flat: torch.Tensor) -> list[torch.Tensor]:
                return self._step(dict(zip(names, flat, strict=True)), first=False, seen=seen)

            # Tracing runs the step, so it gets copies.
            with tracing():
                traced = make_fx(step)(*(tensor.clone() for tensor in self.tensors.values()))
            traced.graph.eliminate_dead_code()
            traced.recompile()
            self._replays[seen] = torch.compile(traced, dynamic=False) if self.compiled else traced.forward
        return self._replays[seen]

    def _step(self, tensors: Leaves, *, first: bool, seen: bool) -> list[torch.Tensor]:
        return take_step(
            self.problem,
            self.blocks,
            self.primal[0],
            tensors,
            evaluate_batch,
            self._one,
            first=first,
            seen=seen,
        )


def penalties(problem: Problem, settings: Sequence[Setting]) -> torch.Tensor | None:
    """The penalty of each multiplier in each setting, 0 for none; None if no setting has any."""
    if not any(setting.penalty for setting in settings):
        return None
    kind: dict[str, Any] = {"dtype": problem.dtype, "device": problem.device}
    rows = [
        torch.tensor([[setting.penalty.get(group.name, 0.0) for setting in settings]], **kind).expand(
            group.size, -1
        )
        for group in problem.groups
    ]
    return torch.cat(rows)


@torch.no_grad()
def pulled_back(
    problem: Problem,
    leaves: Leaves,
    theta: torch.Tensor,
    penalty: torch.Tensor | None = None,
    *,
    objective: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor, Leaves]:
    """f, c and the gradient in x of objective * f + theta . c, for a batch of points and multipliers."""
    (value, e), pull = differentiate(problem, leaves)
    (gradient,) = pull((torch.full_like(value, objective), problem.weights(theta, e, penalty)))
    return value, e, gradient


@torch.no_grad()
def kkt(
    problem: Problem, leaves: Leaves, theta: torch.Tensor, penalty: torch.Tensor | None = None
) -> tuple[torch.Tensor, Residuals]:
    """f(x) and the KKT residuals of a batch of points and multipliers."""
    value, e, gradient = pulled_back(problem, leaves, theta, penalty)
    return value, kkt_residuals(problem, gradient.values(), e, theta)


@torch.no_grad()
def violated_by(problem: Problem, leaves: Leaves) -> torch.Tensor:
    """By how much each constraint is violated at each point of a batch, (multipliers, settings)."""
    e = torch.vmap(problem.violations, in_dims=-1, out_dims=-1)(leaves)
    return infeasibility(problem, e)


def check_batched(problem: Problem) -> None:
    """Refuse functions that `vmap` cannot batch, and functions of more than x."""
    _check_repeatable(problem)
    pair = {name: torch.stack([leaf, leaf], dim=-1) for name, leaf in problem.start.items()}
    try:
        evaluate_batch(problem, pair)
    except RuntimeError as error:
        raise ValueError(
            "the objective or a constraint cannot be batched, so it cannot be swept; write it with torch "
            f"operations alone, or run `nupi.minimize` once per setting. torch says: {error}"
        ) from error


@torch.no_grad()
def _check_repeatable(problem: Problem) -> None:
    """Refuse functions that are random or count their calls: a trace would use one value for all steps."""
    (first, before), (second, after) = problem.evaluate(problem.start), problem.evaluate(problem.start)
    rounding = 1e3 * torch.finfo(problem.dtype).eps  # some devices do not always add in the same order
    seen = [("the objective", first, second)]
    seen += [(g.label, before[g.name], after[g.name]) for g in problem.groups]
    for label, one, other in seen:
        if not torch.allclose(one, other, rtol=rounding, atol=0.0):
            raise ValueError(
                f"{label} gave two values at x0, so it depends on more than x (randomness, a counter). A sweep traces "
                "it once and would freeze that; make it a function of x, or use `nupi.minimize`"
            )


def _blocks(settings: Sequence[Setting]) -> list[Block]:
    """Blocks of consecutive settings with equal keys, each named after its key. `keep` does not change the name."""
    blocks: list[Block] = []
    start = 0
    for stop in range(1, len(settings) + 1):
        if stop == len(settings) or settings[stop].key != settings[start].key:
            part = settings[start:stop]
            name = "-".join(str(word) for word in part[0].key)
            rule = part[0].rule([s.options for s in part])
            blocks.append(Block(rule, start, stop, f"dual {name}", part[0].restart))
            start = stop
    return blocks


def _owner(name: str) -> str:
    """The block that a tensor belongs to, or "" if all settings share it."""
    return name.split("/")[0] if name.startswith("dual ") else ""
