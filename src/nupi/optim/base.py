"""The base class of the dual optimizers: steps, checked gains, state, projection."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import profiler
from torch.optim import Optimizer
from torch.optim import optimizer as hooks

from nupi.optim.checks import check_options, check_parameter, checked_gain
from nupi.optim.gradients import Lists, from_gradients
from nupi.optim.loading import load
from nupi.optim.rows import move_mixed, move_rows
from nupi.optim.state import allocate, follow
from nupi.optim.update import Batch, Gains, Options, State, Updated, Work, pointwise
from nupi.rule import widened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from nupi.constraints import Bounds
    from nupi.rule import Tensors

__all__ = ["SAFE", "Batch", "DualOptimizer", "Gains", "Options", "State", "Work", "pointwise"]

SAFE = 1e10  # errors and gains up to this cannot take a float32 multiplier beyond its range in one step
_WIDE = torch.float32.itemsize
_NOTHING: frozenset[str] = frozenset()
_WORDS = ("init", "form", "foreach", "one_sided")  # options that are not numbers, and are checked like gains


class DualOptimizer(Updated, Optimizer):
    """A `torch.optim.Optimizer` that takes gradients as errors to control, and maximizes by default.

    With e_t the error, theta_{t+1} = projection of update(theta_t, e_t, state). A subclass has `scaled_gains`, `slots`
    and `update`, and may have `idle`. Everything else is here. A parameter narrower than float32 is moved in float32. A
    sparse gradient moves only its own rows. Each row of a parameter takes its first step when its first error comes.

    Example:
        >>> import nupi
        >>> from nupi.rule import add_scaled_
        >>> class Ascent(DualOptimizer):
        ...     'theta_{t+1} = theta_t + lr e_t'
        ...     gain_names = ("lr",)
        ...     def __init__(self, params, lr, *, maximize=True, foreach=None):
        ...         super().__init__(params, {"lr": lr, "maximize": maximize, "foreach": foreach})
        ...     @staticmethod
        ...     def scaled_gains(options):
        ...         return {"lr": options["lr"]}
        ...     @staticmethod
        ...     def slots(options, bounds):
        ...         return ()
        ...     @staticmethod
        ...     def update(theta, state, e, gains, options, bounds, *, first):
        ...         add_scaled_(theta, e, gains["lr"])
        >>> lagrangian = nupi.Lagrangian({"rate": nupi.Inequality()})
        >>> lagrangian.ascend(Ascent(lagrangian.parameters(), lr=0.1), {"rate": torch.tensor(0.5)})
        >>> lagrangian.multipliers["rate"]
        tensor([0.0500])
    """

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        if isinstance(params, torch.nn.Module):
            raise TypeError(
                f"params must be multipliers, but a {type(params).__name__} came; pass lagrangian.parameters()"
            )
        super().__init__(params, defaults)

    def _check_group(self, group: dict[str, Any]) -> None:
        """Raise if a param group is wrong; turn its numbers into plain floats."""
        check_options(group, self.defaults)
        for param in group["params"]:
            check_parameter(param)
            for name in self.gain_names:
                group[name] = checked_gain(name, group[name], param)

    # --- stepping ---

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move every parameter that has a gradient: the gradient is the error e_t.

        As with any torch optimizer, a gradient that is not finite makes the parameter not finite. `Lagrangian.ascend`
        refuses such errors, and undoes a step that fails.
        """
        step = self._watched_step if self.watched else self._step
        if not torch.is_grad_enabled():
            return step(closure)
        with torch.set_grad_enabled(False):
            return step(closure)

    # Torch wraps the step of every optimizer in a profiler range. Saying that ours is wrapped already keeps it bare
    # unless a hook or a profiler watches; `python -m benchmarks hooked` shows what that saves.
    step.hooked = True  # type: ignore[attr-defined]

    def _step(self, closure: Callable[[], float] | None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.check_gains()
        lists: Lists | None = self.__dict__.get("_lists")  # of the step before; neither saved nor copied
        if lists is not None and not torch.compiler.is_compiling() and lists.step(self):
            return loss
        works = [work for group in self.param_groups for work in from_gradients(self, group)]
        self.apply(works)
        if len(works) > 1 and not torch.compiler.is_compiling():
            self._expect_more(works)
        return loss

    def _expect_more(self, works: list[Work]) -> None:
        """Prepare the fast path for more steps like this one, from the second one on."""
        this = [id(work.param) for work in works]
        again = self.__dict__.get("_last") == this and type(self).apply is DualOptimizer.apply
        self.__dict__.update(_last=this, _lists=Lists.of(self, works) if again else None)

    _watched_step = Optimizer.profile_hook_step(_step)

    @property
    def watched(self) -> bool:
        """Whether there is a step hook, a profiler or another wrapper of `step`, which must be called in each step."""
        wrapper = self.__dict__.get("step")  # a scheduler's only notes that there was a step
        return bool(
            (wrapper is not None and not hasattr(wrapper, "_wrapped_by_lr_sched"))
            or self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or hooks._global_optimizer_pre_hooks
            or hooks._global_optimizer_post_hooks
            or profiler._is_profiler_enabled
        )

    _bounds: Mapping[int, Bounds | None] = {}

    def apply(self, works: list[Work]) -> None:
        """Move these parameters and project them, with gains that `check_gains` has checked."""
        if len(works) == 1 and works[0].rows is None:  # nothing to gather; by far the most common case
            state, first = self.ready_state(works[0])
            self._move(works[0], state, first=first)
            return
        # A compiler fuses by itself; torch 2.6's does not know the `id` of a group either.
        alike, batching = [], {} if torch.compiler.is_compiling() else self._batching()
        for work in works:
            if work.rows is not None:
                move_rows(self, work)
                continue
            state, first = self.ready_state(work)
            single = "started" in state or work.param.dtype.itemsize < _WIDE
            if single or not batching or not batching[id(work.group)]:
                self._move(work, state, first=first)
            else:
                alike.append((work, state, first))
        for batch in self.batches(alike) if alike else ():
            group, bounds = batch.works[0].group, batch.works[0].bounds
            e = [work.error for work in batch.works]
            self.move(batch.theta, batch.state, e, self.scaled_gains(group), group, bounds, first=batch.first)

    def batches(self, ready: Iterable[tuple[Work, dict[str, torch.Tensor], bool]]) -> list[Batch]:
        """Group whole parameters into as few batches as possible, given what `ready_state` found for each."""
        batches, batching = [], self._batching()
        together: dict[tuple[object, ...], list[tuple[Work, dict[str, torch.Tensor]]]] = {}
        for work, state, first in ready:
            if batching[id(work.group)]:
                together.setdefault((id(work.group), work.bounds, first, *state), []).append((work, state))
            else:
                batches.append(Batch([work], work.param, {**state}, first))
        for (_, _, fresh, *slots), members in together.items():
            works = [work for work, _ in members]
            kept: State = {str(slot): [state[str(slot)] for _, state in members] for slot in slots}
            batches.append(Batch(works, [work.param for work in works], kept, bool(fresh)))
        return batches

    def _move(self, work: Work, kept: dict[str, torch.Tensor], *, first: bool) -> None:
        """Move a whole parameter and its state."""
        group, param = work.group, work.param
        started = kept.pop("started", None)
        state: State = kept  # type: ignore[assignment] # a single parameter has single tensors
        wide = param.dtype.itemsize >= _WIDE
        theta, e = (param, work.error) if wide else (param.float(), work.error.float())
        gains = self.scaled_gains(group)
        for name, gain in gains.items():
            if isinstance(gain, torch.Tensor):
                gains[name] = gain.to(theta.device, theta.dtype)
        if started is None:
            self.move(theta, state, e, gains, group, work.bounds, first=first)
        else:
            move_mixed(self, theta, state, e, gains, group, work.bounds, started)
        if not wide:
            param.copy_(theta)

    @classmethod
    def move(
        cls,
        theta: Tensors,
        state: State,
        e: Tensors,
        gains: Gains,
        options: Options,
        bounds: Bounds | None,
        *,
        first: bool,
    ) -> None:
        """One step: `update`, and then the projection."""
        cls.update(theta, state, e, gains, options, bounds, first=first)
        if bounds is not None:
            past = [state[slot] for slot in cls.integrators if slot in state] if bounds.restart else ()
            bounds.project_(theta, e, past)

    def repeats(self, group: dict[str, Any], param: torch.Tensor, state: Mapping[str, torch.Tensor]) -> bool:
        """Whether the next step of this whole parameter may skip the checks of the last one."""
        if "started" in state or param.dtype.itemsize < _WIDE:
            return False
        return not any(isinstance(group[name], torch.Tensor) for name in self.gain_names)

    def begin_step(self, *, some_rows: bool) -> frozenset[str]:
        """Count the step, in subclasses that count steps; return the state that the step will not write to."""
        return self.untouched(some_rows=some_rows)

    def _batching(self) -> dict[int, bool]:
        return {id(group): self._batches(group) for group in self.param_groups}

    def _batches(self, group: dict[str, Any]) -> bool:
        """Whether to use kernels that move many tensors: they need gains that are numbers, and at least two tensors."""
        foreach = group["foreach"]
        if foreach is False or (foreach is None and len(group["params"]) == 1):
            return False
        return not any(isinstance(group[name], torch.Tensor) for name in self.gain_names)

    # --- state and gains ---

    def ready_state(self, work: Work) -> tuple[dict[str, torch.Tensor], bool]:
        """The state that a step needs, on the device of its parameter; and whether the step is the first."""
        group, param = work.group, work.param
        state: dict[str, torch.Tensor] = self.state.get(param) or {}
        if not state and self.idle(group):
            return state, False
        slots = self.slots(group, work.bounds)
        if state:
            one = next(iter(state.values()))
            if (one.dtype != param.dtype and one.dtype != widened(param.dtype)) or one.device != param.device:
                follow(state, param)
            missing = [slot for slot in slots if slot not in state]
            if not missing:
                return state, False
            if all(slot in self.late_slots for slot in missing):
                allocate(self.state[param], param, missing)
                return state, False
        if slots:
            allocate(self.state[param], param, slots)
            state = self.state[param]
        return state, True

    def untouched(self, *, some_rows: bool) -> frozenset[str]:  # noqa: ARG002 - for subclasses
        """State that the next step will not write to, so that it need not be copied."""
        return _NOTHING

    @property
    def measures(self) -> bool:
        """Whether it measures the model by the losses that the Lagrangian shows it, which a graph cannot contain."""
        return False

    def keeps_state(self, param: torch.Tensor) -> bool:
        """Whether a step of this parameter changes state besides the parameter."""
        return bool(self.state.get(param)) or any(
            param is held and not self.idle(group) for group in self.param_groups for held in group["params"]
        )

    def check_gains(self) -> None:
        """Check the gains that changed since the last check. If one is wrong, raise before anything moves."""
        if not torch.compiler.is_compiling():
            self.check_new_gains()

    def check_new_gains(self) -> None:
        """The same, outside of a compiled graph."""
        checked = self.__dict__.get("_checked")
        if checked is None:
            words = (name for name in self.defaults if name in _WORDS)
            checked = self.__dict__["_checked"] = {"options": itemgetter(*self.gain_names, *words)}
        options = checked["options"]
        for group in self.param_groups:
            values, writes = checked.get(id(group), (None, ()))
            try:
                same = values == options(group)  # a tensor is equal to itself
            except RuntimeError:  # and two of several numbers have no one answer
                same = False
            if same and not (writes and any(tensor._version != count for tensor, count in writes)):
                continue
            self._check_group(group)
            self.gains_seen += 1
            values = options(group)
            checked[id(group)] = values, [(v, v._version) for v in values if isinstance(v, torch.Tensor)]
            self._large_gains = any(
                isinstance(gain, torch.Tensor) or abs(gain) > SAFE
                for each in self.param_groups
                for gain in map(each.__getitem__, self.gain_names)
            )

    gains_seen = 0
    """How often options were found to be other than at the step before."""
    _large_gains = True

    @property
    def may_overflow(self) -> bool:
        """Whether a step on errors of at most `SAFE` could overflow, because a gain or state may be above `SAFE`."""
        return self._large_gains or self._large_state

    def look_for_large_state(self) -> None:
        """Check whether all state is within [-SAFE, SAFE]. Before the check it counts as larger."""
        self._large_state = any(
            bool((value.abs() > SAFE).any())
            for state in self.state.values()
            for slot, value in state.items()
            if slot != "started"
        )

    _large_state = True

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, with the gains that the group names. A wrong group is not added."""
        known = len(self.param_groups)
        super().add_param_group(param_group)
        try:
            self._check_group(self.param_groups[known])
        except (TypeError, ValueError):
            del self.param_groups[known]
            raise

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a checkpoint completely, bit for bit, or raise and load nothing. Torch's load hooks are called."""
        load(self, state_dict)
