"""Remove heads and units from the blocks of a plain transformer, in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nupi.gates.harvesting.narrow import narrow_layer
from nupi.gates.transformer.attention import open_attention
from nupi.gates.transformer.layers import GatedInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import nn

    from nupi.gates.transformer.blocks import Block

HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads")
GROUP_COUNTS = ("num_key_value_heads",)
# The last is in DistilBERT before transformers 5, which divides it by the number of heads.
CHANNEL_COUNTS = ("split_size", "all_head_size", "dim")


def open_inputs(model: nn.Module) -> dict[str, torch.Tensor]:
    """By layer with gates on its inputs, which gates stay: the open ones, and at least one."""
    stays = {}
    for name, layer in model.named_modules():
        if isinstance(layer, GatedInput):
            is_open = layer.gate.is_open().cpu()
            if not is_open.any():
                is_open[0] = True
            stays[name] = is_open
    return stays


def narrow_blocks(
    model: nn.Module, blocks: list[Block], stays: Mapping[str, torch.Tensor]
) -> dict[str, tuple[int, int]]:
    """Keep only the channels of these gates in each block, given by the name of the layer that uses the channels.

    Returns:
        By layer, the number of outputs left and the number before.
    """
    left: dict[str, tuple[int, int]] = {}
    chosen = [block for block in blocks if block.user in stays]
    open_attention(model, chosen)
    for block in chosen:
        mask = stays[block.user].cpu()
        for maker in block.makers:
            rows = mask.repeat_interleave(maker.size).repeat(maker.copies)
            narrow_layer(model.get_submodule(maker.name), rows)
            left[maker.name] = int(rows.sum()), len(rows)
        narrow_layer(model.get_submodule(block.user), None, mask.repeat_interleave(block.size))
        if block.kind == "heads":
            tell(model.get_submodule(block.core), block, mask)
    return left


def tell(attention: nn.Module, block: Block, mask: torch.Tensor) -> None:
    """Set the new sizes in the attention module, if it has attributes for them."""
    count, before = int(mask.sum()), len(mask)
    for names, scale in ((HEAD_COUNTS, None), (GROUP_COUNTS, None), (CHANNEL_COUNTS, block.size)):
        for name in names:
            old = getattr(attention, name, None)
            if isinstance(old, int):
                setattr(attention, name, count * scale if scale else old * count // before)
