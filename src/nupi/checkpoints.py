"""What a Lagrangian's checkpoint must have to be loaded: the names, kinds and shapes of the constraints here."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from nupi.constraints import Constraint, Equality, Inequality
from nupi.optim.checks import ANOTHER_PROBLEM

if TYPE_CHECKING:
    from collections.abc import Mapping

_KINDS: dict[type[Constraint], str] = {Equality: "an equality", Inequality: "an inequality"}


def note_kinds(constraints: Mapping[str, Constraint], state_dict: Any, prefix: str) -> None:
    """Write the kind of each constraint beside a state dict, in the metadata that torch keeps for each module.

    Not among its entries: those are multipliers by name and no more, for whoever reads them. `torch.save` keeps the
    metadata; a copy into a plain dict loses it, and is then loaded as one from before kinds were noted.
    """
    metadata = getattr(state_dict, "_metadata", None)
    if metadata is not None:
        kinds = {name: _kind(constraint) for name, constraint in constraints.items()}
        metadata.setdefault(prefix[:-1], {})["kinds"] = kinds


def check_multipliers(
    constraints: Mapping[str, Constraint],
    saved: Mapping[str, torch.Tensor],
    metadata: Mapping[str, Any],
    *,
    whole: bool,
    within: bool,
) -> None:
    """Raise, naming every misfit, unless these can be the multipliers of these constraints.

    Args:
        constraints: the problem here, by name.
        saved: the multipliers there, by name.
        metadata: what `note_kinds` wrote beside them, if anything.
        whole: whether every constraint must be there, and no other.
        within: whether the Lagrangian is a part of a larger module that is being loaded.
    """
    kinds = metadata.get("kinds", {})
    problems = [
        problem
        for name, constraint in constraints.items()
        if name in saved and (problem := _misfit(name, constraint, saved[name], kinds.get(name)))
    ]
    if whole and saved.keys() != constraints.keys():
        here, there = (", ".join(map(repr, sorted(names))) or "none" for names in (constraints, saved))
        problems.append(f"it has multipliers for {there}, but the constraints here are {here}")
    if problems:
        # Raised now, where torch would collect errors and load the rest of a larger module all the same.
        rest = ". Of the module it is in, what was registered before it has been loaded" if within else ""
        raise RuntimeError(
            f"Error in loading state_dict for Lagrangian: {'; '.join(problems)}; {ANOTHER_PROBLEM}{rest}"
        )


def taken(name: str, here: torch.Tensor, saved: torch.Tensor, *, assign: bool) -> nn.Parameter:
    """The multiplier `here` with the numbers of a checkpoint; or, with `assign`, the checkpoint's own tensor instead.

    Either is float32 or wider.
    """
    if assign:
        wide = torch.promote_types(saved.dtype, torch.float32)
        if isinstance(saved, nn.Parameter) and saved.dtype == wide:
            saved.requires_grad_(False)
            return saved
        return nn.Parameter(saved.detach().to(wide), requires_grad=False)
    if here.is_meta and not saved.is_meta:
        warnings.warn(
            f"the multipliers of {name!r} are on the meta device, where nothing can be loaded into them; "
            "use load_state_dict(..., assign=True), or to_empty first",
            stacklevel=4,
        )
    with torch.no_grad():
        here.copy_(saved)
    return cast("nn.Parameter", here)


def _misfit(name: str, constraint: Constraint, saved: torch.Tensor, kind: str | None) -> str | None:
    """Why a saved tensor cannot be this constraint's multipliers, if it cannot."""
    if not isinstance(saved, torch.Tensor) or saved.is_complex():
        return f"{name!r} is {getattr(saved, 'dtype', type(saved).__name__)} in it, which is no tensor of real numbers"
    if saved.shape != constraint.shape:
        return f"{name!r} has shape {tuple(saved.shape)} in it and {tuple(constraint.shape)} here"
    if kind is not None and kind != _kind(constraint):
        return f"{name!r} is {kind} in it and {_kind(constraint)} here"
    if saved.is_meta:
        return None  # it has a shape, and no numbers
    if not bool(torch.isfinite(saved).all()):
        return f"{name!r} has multipliers in it that are not finite"
    if isinstance(constraint, Inequality) and bool((saved < 0).any()):
        return f"{name!r} has negative multipliers in it, but is an inequality here"
    return None


def _kind(constraint: Constraint) -> str:
    return next((kind for each, kind in _KINDS.items() if isinstance(constraint, each)), "a constraint")
