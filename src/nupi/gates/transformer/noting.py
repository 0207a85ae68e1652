"""Write the widths of a harvested transformer into its config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nupi.gates.transformer.plain_config import plain_config

if TYPE_CHECKING:
    import torch
    from torch import nn

KEY = "harvested"  # the field of the config


def note_in_config(model: nn.Module, stays: dict[str, torch.Tensor]) -> None:
    """Write into the config, which `save_pretrained` saves, how many heads or units each block has left.

    If all blocks have the same width, the config's own fields say it. Else a new field says it by block, and
    `nupi.gates.from_pretrained` reads that.
    """
    config = getattr(model, "config", None)
    if config is not None and hasattr(config, "to_dict"):
        if (plain := plain_config(model, config)) is not None:
            config.__dict__.clear()
            config.__dict__.update(plain.__dict__)
            config.__dict__.pop(KEY, None)
            return
        counts = counts_in(config, type(model))
        counts.update({within_base(name, type(model)): int(mask.sum()) for name, mask in stays.items()})
        setattr(config, KEY, counts)


def noted(model: nn.Module) -> bool:
    """Whether the config has the field with the widths by block."""
    return bool(getattr(getattr(model, "config", None), KEY, None))


def counts_in(config: Any, model_class: type[Any]) -> dict[str, int]:
    """How many heads or units each harvested block has left, by the block's name within the base model."""
    counts: dict[str, int] = getattr(config, KEY, None) or {}
    return {within_base(name, model_class): count for name, count in counts.items()}


def within_base(name: str, model_class: type[Any]) -> str:
    """The layer's name in the model without a head (the base model), which is the same for all heads."""
    prefix = getattr(model_class, "base_model_prefix", "")
    return name.removeprefix(f"{prefix}.") if prefix else name
