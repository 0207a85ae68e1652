"""Multipliers as a torch module: float32 or wider, saved by constraint name, loaded completely or not at all."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
from torch import nn

from nupi.ascent import Refusals
from nupi.constraints.checks import check_constraints
from nupi.optim.checks import ANOTHER_PROBLEM
from nupi.rule import widened

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nupi.constraints import Constraint


class MultiplierView(dict[str, torch.Tensor]):
    """The multipliers by constraint name. The tensors are the live ones; the mapping itself cannot be changed."""

    def __setitem__(self, name: str, value: object) -> None:
        raise TypeError(
            f"multipliers[{name!r}] = ... would not reach the multiplier; "
            f"write into it, as in multipliers[{name!r}].fill_(0.0) or .copy_(values)"
        )

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(
            "a change of this mapping would not reach the multipliers; write into them, as in "
            "multipliers[name].copy_(values), or change a copy: dict(multipliers)"
        )

    __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and save as a plain dict, so that `torch.load` need not know this class."""
        return OrderedDict, (), None, None, iter(self.items())


class MultiplierModule(nn.Module):
    """The multipliers of some constraints, and flags for violations that were refused on the device."""

    _whole = False  # whether the checkpoint that is being loaded must have exactly these constraints

    def __init__(self, constraints: Mapping[str, Constraint]) -> None:
        super().__init__()
        check_constraints(constraints)
        # Sorted, so that parameters() has the same order for any order of the mapping: an optimizer's
        # checkpoint knows its parameters by position alone.
        self.constraints: dict[str, Constraint] = dict(sorted(constraints.items()))
        self.register_buffer("_refused", torch.zeros(len(constraints), dtype=torch.bool), persistent=False)
        for name, constraint in self.constraints.items():
            # register_parameter refuses dots, and layer names have them. A multiplier's gradient is its
            # violation, which ascend hands over, so autograd need not track it.
            self._parameters[name] = nn.Parameter(constraint.start(), requires_grad=False)
        self._refusals = Refusals(list(self.constraints))

    @property
    def multipliers(self) -> MultiplierView:
        """The multipliers by constraint name. These are the live tensors: clone those that you want to keep."""
        return MultiplierView({name: self._multiplier(name).detach() for name in self.constraints})

    def extra_repr(self) -> str:
        """One line for each group: its kind, its size, its multipliers."""
        return "\n".join(
            f"{name}: {constraint!r} at {_summary(self._multiplier(name))}"
            for name, constraint in self.constraints.items()
        )

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; layers, parameters and buffers of a subclass are registered as in any module.

        A plain attribute may have the same name as a constraint; `Module` would confuse it with the multiplier.
        """
        ours = self.__dict__.get("constraints", {})
        registered = name not in ours and any(
            name in self.__dict__.get(kind, ()) for kind in ("_modules", "_parameters", "_buffers")
        )
        if registered or isinstance(value, (nn.Module, nn.Parameter, nn.Buffer)):
            if name in ours or any(constraint.startswith(f"{name}.") for constraint in ours):
                raise AttributeError(
                    f"{name!r} is a constraint here, or the beginning of one's name; give the layer another name"
                )
            super().__setattr__(name, value)
        else:
            object.__setattr__(self, name, value)

    def _flags(self) -> torch.Tensor:
        """One boolean for each constraint: whether its violation was refused on the device."""
        return cast("torch.Tensor", self._buffers["_refused"])

    def _multiplier(self, name: str) -> torch.Tensor:
        return cast("torch.Tensor", self._parameters[name])

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> MultiplierModule:  # noqa: FBT001, FBT002 - torch's signature
        """As for any module (`to`, `cuda`, `half`, …), but a multiplier is never narrowed below float32."""
        before = {name: self._multiplier(name).data for name in self.constraints}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, data in before.items():
            multiplier = self._multiplier(name)
            if multiplier.dtype.itemsize < torch.float32.itemsize:
                multiplier.data = data.to(multiplier.device)
        self._clear_flags()  # to_empty leaves any bits in them
        return self

    def _clear_flags(self) -> None:
        """Move the flags to the device of the multipliers, and clear them unless a refusal was not reported yet."""
        device = self._multiplier(next(iter(self.constraints))).device
        if self._flags().is_meta or self._refusals.silent:
            self._buffers["_refused"] = torch.zeros(len(self.constraints), dtype=torch.bool, device=device)

    # --- saving and loading ---

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:  # noqa: FBT001 - torch's
        """Write the kinds of the constraints beside the multipliers, in the metadata that torch keeps for a module.

        The entries themselves are only multipliers by name. `torch.save` keeps the metadata. A copy into a plain dict
        loses it, and is then loaded like an old checkpoint without kinds.
        """
        super()._save_to_state_dict(destination, prefix, keep_vars)
        metadata = getattr(destination, "_metadata", None)
        if metadata is not None:
            kinds = {name: constraint.kind for name, constraint in self.constraints.items()}
            metadata.setdefault(prefix[:-1], {})["kinds"] = kinds

    def load_state_dict(
        self,
        state_dict: Mapping[str, Any],
        strict: bool = True,  # noqa: FBT001, FBT002 - torch's signature
        assign: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    ) -> Any:
        """As for any module, but a checkpoint of another problem is refused, and nothing of it is loaded."""
        self._whole = strict
        try:
            return super().load_state_dict(state_dict, strict, assign)
        finally:
            self._whole = False

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,  # noqa: FBT001 - torch's signature
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load the multipliers of the checkpoint, or raise and load none of them.

        Torch judges missing and unknown names, as for any part of a larger module. Only torch knows whether the load
        is strict (`strict` is always True here), and it raises after all parts have been loaded.
        """
        for hook in self._load_state_dict_pre_hooks.values():
            hook(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        saved = {key.removeprefix(prefix): v for key, v in state_dict.items() if key.startswith(prefix)}
        # A subclass, or a layer of it, loads its own entries.
        layers = tuple(f"{name}." for name in self._modules)
        own = self._own_names()
        saved = {
            name: v
            for name, v in saved.items()
            if name in self.constraints or not (name in own or name.startswith(layers))
        }
        self._check_checkpoint(saved, local_metadata.get("kinds", {}), within=bool(prefix))
        if own:
            rest = {key: v for key, v in state_dict.items() if key.removeprefix(prefix) in own}
            self._load_own(rest, prefix, local_metadata, missing_keys, error_msgs)
        # Removed here: torch would leave it there, and the next load of the same checkpoint would also assign.
        assign = local_metadata.pop("assign_to_params_buffers", False)
        for name in (name for name in self.constraints if name in saved):
            self._parameters[name] = _taken(name, self._multiplier(name), saved[name], assign=assign)
        missing_keys += [prefix + name for name in self.constraints if name not in saved]
        unexpected_keys += [prefix + name for name in saved if name not in self.constraints]
        self._clear_flags()

    def _own_names(self) -> set[str]:
        """The entries of a checkpoint that belong to a subclass: its parameters, its buffers, its extra state."""
        buffers = self._buffers.keys() - self._non_persistent_buffers_set
        extra = {"_extra_state"} if type(self).set_extra_state is not nn.Module.set_extra_state else set()
        return (self._parameters.keys() - self.constraints.keys()) | buffers | extra

    def _load_own(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        missing_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Let torch load what belongs to a subclass: without the multipliers, and without hooks that have run."""
        every, hooks = self._parameters, self._load_state_dict_pre_hooks
        self._parameters = {name: p for name, p in every.items() if name not in self.constraints}
        self._load_state_dict_pre_hooks = OrderedDict()
        try:
            super()._load_from_state_dict(
                state_dict, prefix, local_metadata, True, missing_keys, [], error_msgs
            )
            every.update(self._parameters)
        finally:
            self._parameters, self._load_state_dict_pre_hooks = every, hooks

    def _check_checkpoint(self, saved: Mapping[str, Any], kinds: Mapping[str, str], *, within: bool) -> None:
        """Raise an error with all mismatches if these cannot be the multipliers here.

        Args:
            saved: the multipliers of the checkpoint, by name.
            kinds: the kinds of their constraints, if the checkpoint has them.
            within: whether the Lagrangian is a part of a larger module that is being loaded.
        """
        problems = [
            problem
            for name, constraint in self.constraints.items()
            if name in saved and (problem := _misfit(name, constraint, saved[name], kinds.get(name)))
        ]
        if self._whole and saved.keys() != self.constraints.keys():
            here, there = (
                ", ".join(map(repr, sorted(names))) or "none" for names in (self.constraints, saved)
            )
            problems.append(f"it has multipliers for {there}, but the constraints here are {here}")
        if problems:
            # Raised now: torch would collect errors, and still load the rest of a larger module.
            rest = ". Of the module it is in, what was registered before it has been loaded" if within else ""
            raise RuntimeError(
                f"Error in loading state_dict for Lagrangian: {'; '.join(problems)}; {ANOTHER_PROBLEM}{rest}"
            )


def _misfit(name: str, constraint: Constraint, saved: Any, kind: str | None) -> str | None:
    """If a saved tensor cannot be this constraint's multipliers: the reason. Otherwise None."""
    shape = constraint.multiplier_shape
    if not isinstance(saved, torch.Tensor) or saved.is_complex():
        return f"{name!r} is {getattr(saved, 'dtype', type(saved).__name__)} in it, which is no tensor of real numbers"
    if kind is not None and kind != constraint.kind:
        return f"{name!r} is {kind} in it and {constraint.kind} here"
    if saved.shape != shape:
        return f"{name!r} has shape {tuple(saved.shape)} in it and {tuple(shape)} here"
    if saved.is_meta:
        return None  # a tensor on the meta device has a shape and no numbers
    if not bool(torch.isfinite(saved).all()):
        return f"{name!r} has multipliers in it that are not finite"
    if constraint.misfit(saved):
        side = "negative multipliers" if bool((saved < 0).any()) else "multipliers above its upper bound"
        return f"{name!r} has {side} in it, but is {constraint.kind} here"
    return None


def _taken(name: str, here: torch.Tensor, saved: torch.Tensor, *, assign: bool) -> nn.Parameter:
    """The multiplier `here` with the numbers of a checkpoint; with `assign`, the tensor of the checkpoint itself.

    Either is float32 or wider.
    """
    if assign:
        wide = widened(saved.dtype)
        if isinstance(saved, nn.Parameter) and saved.dtype == wide:
            saved.requires_grad_(here.requires_grad)
            return saved
        return nn.Parameter(saved.detach().to(wide), requires_grad=here.requires_grad)
    if here.is_meta and not saved.is_meta:
        warnings.warn(
            f"the multipliers of {name!r} are on the meta device, where nothing can be loaded into them; "
            "use load_state_dict(..., assign=True), or to_empty first",
            stacklevel=4,
        )
    with torch.no_grad():
        here.copy_(saved)
    return cast("nn.Parameter", here)


def _summary(multiplier: torch.Tensor) -> str:
    """The values of a group's multipliers, in a few characters."""
    if multiplier.is_meta:
        return "meta"
    if multiplier.numel() == 1:
        return f"{multiplier.item():.4g}"
    low, high = torch.aminmax(multiplier)
    return f"{low.item():.4g} … {high.item():.4g}"
