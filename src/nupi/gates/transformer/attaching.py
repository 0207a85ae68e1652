"""Put gates on the heads and the MLP units of a transformer."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from nupi.gates.graph import inside_wrapper
from nupi.gates.hard_concrete import STRETCH, TEMPERATURE, HardConcrete
from nupi.gates.transformer.attention import open_attention
from nupi.gates.transformer.blocks import Block, blocks, widths
from nupi.gates.transformer.layers import GatedInput, gated_input

if TYPE_CHECKING:
    from torch import nn


def attach_transformer(
    model: nn.Module,
    *,
    heads: str | None = "*",
    mlps: str | None = "*",
    droprate_init: float = 0.01,
    temperature: float = TEMPERATURE,
    stretch: tuple[float, float] = STRETCH,
    clamp: float | None = None,
) -> list[str]:
    """Put gates on the attention heads and the MLP units of a transformer, in place; returns where.

    The blocks are found by the names of their layers: those of BERT, DistilBERT, GPT-2, Llama, ViT and others of
    `transformers` with the same names. Also found are torch's own `nn.MultiheadAttention` and the MLP beside it, as in
    torchvision's ViT; a `HeadAttention` with the same parameters replaces torch's. If several query heads share one
    key-value head, one gate switches this group. The width of the embedding has no gates.

    Args:
        model: a transformer.
        heads: a pattern of the names of attention modules, such as "*.layers.1*"; None for no gates on heads.
        mlps: the same for MLPs.
        droprate_init: as for `HardConcrete`.
        temperature: as for `HardConcrete`.
        stretch: as for `HardConcrete`.
        clamp: as for `HardConcrete`.

    Returns:
        The names of the layers that now have gates on their inputs: the output projections of attention and MLPs.

    Example:
        >>> from transformers import GPT2Config, GPT2Model
        >>> model = GPT2Model(GPT2Config(n_layer=1, n_head=4, n_embd=16, vocab_size=9, bos_token_id=0, eos_token_id=0))
        >>> attach_transformer(model)
        ['h.0.attn.c_proj', 'h.0.mlp.c_proj']
    """
    if inside := inside_wrapper(model):
        raise ValueError(f"model is a {type(model).__name__}: gate model.{inside} before it is wrapped")
    found = list(blocks(model))
    if not found:
        raise ValueError(
            f"model, a {type(model).__name__}, has no attention or MLP with known layer names; gate its layers by name "
            "with nupi.gates.attach"
        )
    chosen = [
        block
        for block in found
        if (pattern := heads if block.kind == "heads" else mlps) is not None
        and fnmatchcase(block.name, pattern)
    ]
    if not chosen:
        names = ", ".join(repr(block.name) for block in found[:4])
        raise ValueError(f"heads={heads!r} and mlps={mlps!r} choose nothing of the model; it has {names}, …")
    gates = {}
    for block in chosen:
        if isinstance(model.get_submodule(block.user), GatedInput):
            raise ValueError(f"{block.user!r} is gated already")  # noqa: TRY004 - the model is wrong, not its type
        gates[block.user] = HardConcrete(
            block.gates, droprate_init=droprate_init, temperature=temperature, stretch=stretch, clamp=clamp
        )
    open_attention(model, chosen)
    made = {}
    for block in chosen:
        layer = model.get_submodule(block.user)
        made[block.user] = gated_input(
            layer,
            gates[block.user].to(next(layer.parameters()).device),
            size=block.size,
            parameters_per_gate=_parameters_per_gate(model, block),
        )
    for name, layer in made.items():
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, layer)
    return list(made)


def _parameters_per_gate(model: nn.Module, block: Block) -> int:
    count = block.size * widths(model.get_submodule(block.user))[1]
    for maker in block.makers:
        layer = model.get_submodule(maker.name)
        per_output = widths(layer)[0] + (getattr(layer, "bias", None) is not None)
        count += maker.size * maker.copies * per_output
    return count
