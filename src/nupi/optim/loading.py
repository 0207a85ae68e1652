"""Loading the checkpoint of a dual optimizer: completely and bit for bit, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nupi.optim.checks import check_checkpoint
from nupi.rule import widened

if TYPE_CHECKING:
    import torch

    from nupi.optim.base import DualOptimizer

# Names of slots in older versions.
_RENAMED = {"seen": "started"}


def load(dual: DualOptimizer, state_dict: dict[str, Any]) -> None:
    """Like torch's `load_state_dict`, with its hooks; if anything raises, the optimizer is as before.

    Torch casts all state to the parameter's dtype: the float32 xi of a bfloat16 parameter would become bfloat16. This
    function does what torch does, without the cast.
    """
    state_dict = dict(state_dict)
    for hook in dual._optimizer_load_state_dict_pre_hooks.values():
        replaced = hook(dual, state_dict)
        if replaced is not None:
            state_dict = replaced
    state_dict = _renamed(state_dict)
    check_checkpoint(
        dual.param_groups,
        state_dict,
        gain=dual.gain_names[1],
        options=dual.defaults,
        slots=dual.slot_names,
    )
    before = dual.__getstate__()
    groups = []
    for mine, saved in zip(dual.param_groups, state_dict["param_groups"], strict=True):
        # An option that is newer than the checkpoint keeps its present value.
        group = {**mine, **saved, "params": mine["params"]}
        dual._check_group(group)
        groups.append(group)
    saved_ids = [saved_id for group in state_dict["param_groups"] for saved_id in group["params"]]
    params = [param for group in groups for param in group["params"]]
    kept: dict[torch.Tensor, dict[str, torch.Tensor]] = {}
    for saved_id, param in zip(saved_ids, params, strict=True):
        slots = state_dict["state"].get(saved_id)
        if slots:
            kept[param] = {slot: _taken(slot, value, param) for slot, value in slots.items()}
    try:
        state = type(dual.state)(dual.state.default_factory, kept)
        dual.__setstate__({"state": state, "param_groups": groups})
        dual.__dict__.pop("_large_state", None)
        for post_hook in dual._optimizer_load_state_dict_post_hooks.values():
            post_hook(dual)
    except BaseException:
        dual.__setstate__(before)
        raise


def _taken(slot: str, value: torch.Tensor, param: torch.Tensor) -> torch.Tensor:
    dtype = value.dtype if slot == "started" else widened(param.dtype)
    return value.detach().clone().to(param.device, dtype)


def _renamed(state_dict: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint of an older version, with the present names of its slots."""
    if not isinstance(state_dict.get("state"), dict):
        return state_dict
    state = {
        key: {_RENAMED.get(slot, slot): value for slot, value in slots.items()}
        for key, slots in state_dict["state"].items()
    }
    return {**state_dict, "state": state}
