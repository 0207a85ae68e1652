"""What every dual optimizer of the library shares: state, sparse rows, dtypes, checkpoints, projection."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import torch
from torch.autograd import profiler
from torch.optim import Optimizer
from torch.optim import optimizer as hooks

from nupi.optim.checks import check_checkpoint, check_options, check_parameter, checked_gain, widened
from nupi.optim.tensors import fits, flat_index, rows_like
from nupi.rule import Gain, project_integral_

if TYPE_CHECKING:
    from collections.abc import Callable

Gains: TypeAlias = "dict[str, Gain]"
State: TypeAlias = "dict[str, torch.Tensor]"

_WIDE = torch.float32.itemsize


class DualOptimizer(Optimizer):
    """A `torch.optim.Optimizer` whose gradient is an error to be controlled, and which maximizes by default.

    A subclass says which state it keeps (`_slots`), how one tensor moves (`_advance`), and how many tensors
    move at once (`_advance_foreach`). Everything else is here, once: a parameter of less than float32 is
    moved in float32; a sparse gradient touches its own rows and no others; each row of a parameter that is
    only ever seen in part takes its own first step when its own first error comes.
    """

    gain_names: ClassVar[tuple[str, ...]]
    """Param-group entries that are a number, or a tensor that broadcasts to each parameter of the group."""
    slot_names: ClassVar[tuple[str, ...]]
    """The state that a parameter may have, each tensor shaped like it."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, with gains of their own where the group names them; a bad group is not added."""
        known = len(self.param_groups)
        super().add_param_group(param_group)
        try:
            self._check_group(self.param_groups[known])
        except (TypeError, ValueError):
            del self.param_groups[known]
            raise

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move every parameter that has a gradient: the gradient is the error e_t."""
        step = self._watched_step if self.watched else self._step
        if not torch.is_grad_enabled():
            return step(closure)
        with torch.set_grad_enabled(False):
            return step(closure)

    # Torch wraps the step of every optimizer in a profiler range that takes longer than a step of ours. Saying that
    # ours is wrapped already keeps it bare, unless someone is watching: a hook, or a profiler.
    step.hooked = True  # type: ignore[attr-defined]

    def _step(self, closure: Callable[[], float] | None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            slots = self._slots(group)
            batched = self._batches(group)
            thetas: list[torch.Tensor] = []
            errors: list[torch.Tensor] = []
            states: list[State] = []
            for param in group["params"]:
                error = param.grad
                if error is None:
                    continue
                if not group["maximize"]:
                    error = -error
                if error.is_sparse:
                    error = error.coalesce()
                    leading = error.sparse_dim()
                    self._advance_rows(group, param, flat_index(error), error.values(), slots, leading)
                elif batched and self._opened(param, slots):
                    thetas.append(param)
                    errors.append(error)
                    states.append(self.state[param] if slots else {})
                else:
                    self._advance_dense(group, param, error, slots)
            if thetas:
                self._advance_foreach(group, thetas, states, errors, self._gains(group))
        return loss

    _watched_step = Optimizer.profile_hook_step(_step)

    @property
    def watched(self) -> bool:
        """Whether a step hook or a profiler wants to see this optimizer's steps."""
        return bool(
            self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or hooks._global_optimizer_pre_hooks
            or hooks._global_optimizer_post_hooks
            or profiler._is_profiler_enabled
        )

    def step_rows(self, param: torch.Tensor, rows: torch.Tensor, error: torch.Tensor) -> None:
        """Move some rows of one parameter: as a step on a sparse gradient, which a compiler does not know.

        Args:
            param: a parameter of this optimizer.
            rows: which rows; one that comes more than once has the same error each time, and moves once.
            error: the error of each of these rows.
        """
        for group in self.param_groups:
            if any(param is held for held in group["params"]):
                signed = error if group["maximize"] else -error
                self._advance_rows(group, param, rows, signed, self._slots(group))

    def keeps_state(self, param: torch.Tensor) -> bool:
        """Whether a step of this parameter leaves anything behind besides the parameter."""
        return any(
            param is held and self._slots(group) for group in self.param_groups for held in group["params"]
        )

    def has_integral(self, param: torch.Tensor) -> bool:
        """Whether this parameter's integral is kept apart from it, and must be projected with it."""
        state = self.state.get(param)
        return state is not None and "integral" in state

    def project_(
        self, param: torch.Tensor, rows: torch.Tensor | None = None, reset: torch.Tensor | None = None
    ) -> None:
        """Project a parameter to >= 0 after a step, and keep its integral, if it has one, from winding up.

        Args:
            param: a parameter of this optimizer.
            rows: the rows that moved, each once; None means all of them.
            reset: a mask, shaped like what moved, of the elements to send back to 0 altogether.
        """
        integral = self.state[param]["integral"] if self.has_integral(param) else None
        theta = param if rows is None else param.index_select(0, rows)
        if integral is not None:
            kept = integral if rows is None else integral.index_select(0, rows)
            self._unwind_(theta, kept)
            if reset is not None:
                kept.masked_fill_(reset, 0.0)
            if rows is not None:
                integral.index_copy_(0, rows, kept)
        theta.clamp_(min=0)
        if reset is not None:
            theta.masked_fill_(reset, 0.0)
        if rows is not None:
            param.index_copy_(0, rows, theta)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a checkpoint whole, bit for bit, or raise and load nothing of it."""
        check_checkpoint(
            self.param_groups,
            state_dict,
            gain=self.gain_names[1],
            options=self.defaults,
            slots=self.slot_names,
        )
        saved_groups, built_with = state_dict["param_groups"], self.param_groups
        for mine, saved in zip(built_with, saved_groups, strict=True):
            self._check_group({**mine, **saved, "params": mine["params"]})
        super().load_state_dict(state_dict)
        for group, here in zip(self.param_groups, built_with, strict=True):
            for option, value in here.items():
                group.setdefault(option, value)  # an option that is younger than the checkpoint
        saved_ids = [i for group in saved_groups for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for saved_id, param in zip(saved_ids, params, strict=True):
            # torch casts all state to the parameter's dtype: a float32 xi would come back as bfloat16.
            for slot, value in state_dict["state"].get(saved_id, {}).items():
                dtype = value.dtype if slot == "seen" else widened(param.dtype)
                self.state[param][slot] = value.detach().clone().to(param.device, dtype)

    def _unwind_(self, theta: torch.Tensor, integral: torch.Tensor) -> None:
        """Keep the integral from winding up where the projection is about to bite."""
        project_integral_(theta, integral)

    @abstractmethod
    def _slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The names of the state tensors, each shaped like its parameter, that this group needs."""

    @abstractmethod
    def _advance(
        self,
        group: dict[str, Any],
        theta: torch.Tensor,
        state: State,
        e: torch.Tensor,
        gains: Gains,
        *,
        fresh: bool,
    ) -> None:
        """Move `theta` and its state in place by one step; `fresh` says that it is their first."""

    @abstractmethod
    def _advance_foreach(
        self,
        group: dict[str, Any],
        thetas: list[torch.Tensor],
        states: list[State],
        errors: list[torch.Tensor],
        gains: Gains,
    ) -> None:
        """Move many tensors that are past their first step, with gains that are numbers."""

    @abstractmethod
    def _gains(self, group: dict[str, Any]) -> Gains:
        """The gains of this step, with `lr` multiplied in."""

    def _batches(self, group: dict[str, Any]) -> bool:
        """Whether the foreach kernel serves this group: it takes numbers, and pays from two tensors on."""
        foreach = group["foreach"]
        if foreach is False or (foreach is None and len(group["params"]) == 1):
            return False
        return not any(isinstance(group[name], torch.Tensor) for name in self.gain_names)

    def _advance_dense(
        self, group: dict[str, Any], param: torch.Tensor, error: torch.Tensor, slots: tuple[str, ...]
    ) -> None:
        state: State = {}
        fresh = False
        seen = None
        if slots:
            state = self.state[param]
            if not fits(state.get(slots[-1]), param):
                fresh = self._ready_state(param, slots)
            # After a dense step every element has been seen, so the mask has done its work.
            seen = state.pop("seen", None)
        wide = param.dtype.itemsize >= _WIDE
        theta, e = (param, error) if wide else (param.float(), error.float())
        gains = self._gains(group)
        for name, gain in gains.items():
            if isinstance(gain, torch.Tensor):
                gains[name] = gain.to(theta.device, theta.dtype)
        if seen is None:
            self._advance(group, theta, state, e, gains, fresh=fresh)
        else:
            self._advance_mixed(group, theta, state, e, gains, ~rows_like(seen, theta))
        if not wide:
            param.copy_(theta)

    def _advance_rows(
        self,
        group: dict[str, Any],
        param: torch.Tensor,
        rows: torch.Tensor,
        error: torch.Tensor,
        slots: tuple[str, ...],
        leading: int = 1,
    ) -> None:
        """A sparse step: gather the rows of the gradient, move them, put them back.

        A row that comes twice, with the same error, is put back twice as the same: it has moved once.
        """
        wide = widened(param.dtype)
        if leading > 1 and not param.is_contiguous():
            raise ValueError(
                f"a sparse gradient over {leading} dimensions needs a contiguous parameter; use .contiguous()"
            )
        flat = param.view(-1, *param.shape[leading:])
        theta, e = flat.index_select(0, rows).to(wide), error.to(wide)

        def of_rows(gain: Gain) -> Gain:
            if not isinstance(gain, torch.Tensor):
                return gain
            if gain.dim() == param.dim() and gain.shape[0] > 1 and leading == 1:
                gain = gain.index_select(0, rows)
            elif leading > 1 and gain.dim() >= flat.dim():
                gain = gain.expand(param.shape).reshape(flat.shape).index_select(0, rows)
            return gain.to(theta.device, theta.dtype)

        # Gains are gathered before they are multiplied: the cost is the rows', never the parameter's.
        gains = self._gains({**group, **{name: of_rows(group[name]) for name in self.gain_names}})
        whole: State = {}
        seen = None
        if slots:
            kept = self.state[param]
            if self._ready_state(param, slots):
                kept["seen"] = torch.zeros(param.shape[:leading], dtype=torch.bool, device=param.device)
            whole = {slot: kept[slot].view_as(flat) for slot in slots}
            seen = kept.get("seen")
            if seen is not None and seen.dim() < leading:
                # The mask has been over coarser rows than these: refine it.
                seen = kept["seen"] = rows_like(seen, param).expand(param.shape[:leading]).contiguous()
        state = {slot: tensor.index_select(0, rows) for slot, tensor in whole.items()}
        if seen is None:
            self._advance(group, theta, state, e, gains, fresh=False)
        else:
            marks = seen.view(-1, *seen.shape[leading:])
            self._advance_mixed(group, theta, state, e, gains, ~rows_like(marks.index_select(0, rows), theta))
            marks.index_fill_(0, rows, True)
        flat.index_copy_(0, rows, theta.to(param.dtype))
        for slot, tensor in whole.items():
            tensor.index_copy_(0, rows, state[slot])

    def _advance_mixed(
        self,
        group: dict[str, Any],
        theta: torch.Tensor,
        state: State,
        e: torch.Tensor,
        gains: Gains,
        fresh: torch.Tensor,
    ) -> None:
        """A step that is the first one for some elements: take both kinds, and choose by mask."""
        first, opening = theta.clone(), {slot: tensor.clone() for slot, tensor in state.items()}
        self._advance(group, first, opening, e, gains, fresh=True)
        self._advance(group, theta, state, e, gains, fresh=False)
        theta.copy_(torch.where(fresh, first, theta))
        for slot, tensor in state.items():
            tensor.copy_(torch.where(fresh, opening[slot], tensor))

    def _opened(self, param: torch.Tensor, slots: tuple[str, ...]) -> bool:
        """Whether a parameter is past its first step in all of its elements, and moves in its own dtype."""
        if param.dtype.itemsize < _WIDE:
            return False
        state = self.state[param] if slots else {}
        return not slots or (fits(state.get(slots[-1]), param) and "seen" not in state)

    def _ready_state(self, param: torch.Tensor, slots: tuple[str, ...]) -> bool:
        """Make the state if there is none yet (and say so), or have it follow a parameter that was moved or cast."""
        state = self.state[param]
        last = state.get(slots[-1])
        if fits(last, param):
            return False
        wide = widened(param.dtype)
        if last is not None:
            state.update({slot: state[slot].to(param.device, wide) for slot in slots})
            if "seen" in state:
                state["seen"] = state["seen"].to(param.device)
            return False
        # State that is born in inference mode could not be used outside of it; a graph knows no such mode.
        with nullcontext() if torch.compiler.is_compiling() else torch.inference_mode(False):
            for slot in slots:
                state[slot] = torch.zeros(param.shape, dtype=wide, device=param.device)
        return True

    def _check_group(self, group: dict[str, Any]) -> None:
        check_options(group, self.defaults)
        for param in group["params"]:
            check_parameter(param)
            for name in self.gain_names:
                group[name] = checked_gain(name, group[name], param)
