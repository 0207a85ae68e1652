"""Multipliers as a module: made from constraints, never narrowed, loaded as a whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from nupi.checkpoints import check_multipliers, note_kinds, taken
from nupi.constraints import Constraint, check_constraints

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nupi.ascent.finite import Look


class MultiplierModule(nn.Module):
    """The multipliers of some constraints, and the flags of those that a device has refused."""

    _whole = False  # whether a checkpoint that is being loaded must have these constraints and no others

    def __init__(self, constraints: Mapping[str, Constraint]) -> None:
        super().__init__()
        check_constraints(constraints)
        # Sorted, so that parameters() has one order however the mapping was written: an optimizer's
        # checkpoint knows its parameters by position alone.
        self.constraints: dict[str, Constraint] = dict(sorted(constraints.items()))
        self.register_buffer("_refused", torch.zeros(len(constraints), dtype=torch.bool), persistent=False)
        for name, constraint in self.constraints.items():
            # register_parameter refuses dots, and layer names have them. A multiplier's gradient is its
            # violation, which ascend hands over, so autograd need not track it.
            self._parameters[name] = nn.Parameter(constraint.start(), requires_grad=False)
        self._look: Look | None = None
        self._unheard = False  # whether a device may have refused something since the host last looked

    @property
    def multipliers(self) -> dict[str, torch.Tensor]:
        """The multipliers by constraint name. They are the live tensors: clone what you want to keep."""
        return {name: self._multiplier(name).detach() for name in self.constraints}

    def extra_repr(self) -> str:
        """One line a group: its kind, its size, where its multipliers are."""
        return "\n".join(
            f"{name}: {constraint!r} at {_summary(self._multiplier(name))}"
            for name, constraint in self.constraints.items()
        )

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a plain attribute: `Module` would take one for the multiplier of a constraint of its name."""
        object.__setattr__(self, name, value)

    def _flags(self) -> torch.Tensor:
        """Which constraints have been refused on the device, one boolean each."""
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

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:  # noqa: FBT001 - torch's
        super()._save_to_state_dict(destination, prefix, keep_vars)
        note_kinds(self.constraints, destination, prefix)

    def load_state_dict(
        self,
        state_dict: Mapping[str, Any],
        strict: bool = True,  # noqa: FBT001, FBT002 - torch's signature
        assign: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    ) -> Any:
        """As for any module, but a checkpoint of another problem is refused before anything of it is loaded."""
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
        """Load the multipliers that are there, or raise and load none of them.

        What is absent or unknown is for torch to judge, as with any part of a larger module: it alone knows whether
        the load is strict (`strict` is always True here), and says so once every part has been asked.
        """
        for hook in self._load_state_dict_pre_hooks.values():
            hook(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        # Taken out: torch would leave it there, and the next load of the same checkpoint would assign as well.
        assign = local_metadata.pop("assign_to_params_buffers", False)
        saved = {key.removeprefix(prefix): v for key, v in state_dict.items() if key.startswith(prefix)}
        check_multipliers(self.constraints, saved, local_metadata, whole=self._whole, within=bool(prefix))
        for name in (name for name in self.constraints if name in saved):
            self._parameters[name] = taken(name, self._multiplier(name), saved[name], assign=assign)
        missing_keys += [prefix + name for name in self.constraints if name not in saved]
        unexpected_keys += [prefix + name for name in saved if name not in self.constraints]
        self._clear_flags()

    def _clear_flags(self) -> None:
        """Have the flags where the multipliers are, and down unless some went up that nobody has heard of."""
        device = next(iter(self.multipliers.values())).device
        if self._flags().is_meta or not (self._unheard or self._look):
            self._buffers["_refused"] = torch.zeros(len(self.constraints), dtype=torch.bool, device=device)


def _summary(multiplier: torch.Tensor) -> str:
    """Where a group's multipliers are, in a few characters."""
    if multiplier.is_meta:
        return "meta"
    if multiplier.numel() == 1:
        return f"{multiplier.item():.4g}"
    low, high = torch.aminmax(multiplier)
    return f"{low.item():.4g} … {high.item():.4g}"
