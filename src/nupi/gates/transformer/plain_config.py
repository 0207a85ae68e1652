"""Write the widths of a harvested transformer into its config's own fields, if all blocks have the same width.

A config of `transformers` has one number of heads and one width of the MLPs for all layers. If all blocks have the
same, and the model's class reads the fields, the harvested model is an ordinary one: every `from_pretrained` loads it.
To find out whether the class reads them, a model is built.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from nupi.gates.transformer.blocks import HEAD_SIZES, blocks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from nupi.gates.transformer.blocks import Block

UNITS = ("intermediate_size", "hidden_dim", "n_inner")


def plain_config(model: nn.Module, config: Any) -> Any:
    """The config with which the model's class builds a model of these widths, or None if there is none."""
    found = list(blocks(model))
    heads = {_heads(model, block) for block in found if block.kind == "heads"}
    units = {block.gates for block in found if block.kind == "mlp"}
    if len(heads) > 1 or len(units) > 1:
        return None
    said, built = _built(model, config, heads, units)
    return said if built and _sizes(built) == _sizes(model) and list(blocks(built)) == found else None


def says(model: nn.Module, counts: Mapping[str, int]) -> bool:
    """Whether the model's class builds blocks with these numbers of heads and units, if its config has the numbers.

    True for a model without a config of `transformers`.
    """
    config, found = getattr(model, "config", None), list(blocks(model))
    if not hasattr(config, "to_dict"):
        return True
    left = [replace(block, gates=counts.get(block.kind, block.gates)) for block in found]
    heads = {_heads(model, block) for block in left if block.kind == "heads"}
    units = {block.gates for block in left if block.kind == "mlp"}
    _, built = _built(model, config, heads, units)
    return built is not None and list(blocks(built)) == left


def _built(
    model: nn.Module, config: Any, heads: set[tuple[int, int, int]], units: set[int]
) -> tuple[Any, nn.Module | None]:
    """The config with these widths in its fields, and the model that the class builds from it; None if it cannot."""
    said = copy.deepcopy(config)
    try:
        for count in heads:
            _say_heads(said, *count)
        for field in UNITS if units else ():
            if hasattr(said, field):
                setattr(said, field, min(units))
        with torch.device("meta"):
            return said, type(model)(type(said).from_dict(said.to_dict()))
    except Exception:  # noqa: BLE001 - of whatever kind: the class refuses these numbers
        return said, None


def sayable(model: nn.Module) -> dict[str, list[int]]:
    """By kind of block, the numbers of gates that the config accepts.

    Some configs refuse some numbers of heads: in a Llama it must divide the width of the embedding.
    """
    config, found = getattr(model, "config", None), list(blocks(model))
    most = {
        kind: min(block.gates for block in found if block.kind == kind)
        for kind in dict.fromkeys(block.kind for block in found)
    }
    left: dict[str, list[int]] = {kind: list(range(1, count + 1)) for kind, count in most.items()}
    if "heads" in left and hasattr(config, "to_dict"):
        block = next(block for block in found if block.kind == "heads")
        queries, groups, size = _heads(model, block)
        left["heads"] = [
            count for count in left["heads"] if _takes(config, queries // groups * count, count, size)
        ]
    return left


def _takes(config: Any, queries: int, groups: int, size: int) -> bool:
    said = copy.deepcopy(config)
    try:
        _say_heads(said, queries, groups, size)
        type(said).from_dict(said.to_dict())
    except Exception:  # noqa: BLE001 - as above
        return False
    return True


def _say_heads(config: Any, queries: int, groups: int, size: int) -> None:
    if config.num_attention_heads != queries:
        config.num_attention_heads = queries
        config.head_dim = size
        if hasattr(config, "num_key_value_heads"):
            config.num_key_value_heads = groups


def _heads(model: nn.Module, block: Block) -> tuple[int, int, int]:
    """The number of query heads, the number of key-value heads, and the width of a head."""
    core = model.get_submodule(block.core)
    size = next(int(getattr(core, each)) for each in HEAD_SIZES if hasattr(core, each))
    return block.gates * block.size // size, block.gates, size


def _sizes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: parameter.shape for name, parameter in model.named_parameters()}
