"""A transformer whose blocks differ in width. `nupi.gates.save_pretrained` puts this file beside the weights.

It needs torch and transformers alone: `AutoModel.from_pretrained(folder, trust_remote_code=True)` finds it by the
`auto_map` of the config, and the widths by `harvested_sizes`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn


class Harvested:
    """A mixin: builds the model of the config, then gives its harvested layers their own widths."""

    def __init__(self, config: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(config, *arguments, **options)  # type: ignore[call-arg]
        # Before version 5, transformers takes this class from then on for every model of its kind, harvested or not.
        if sizes := getattr(config, "harvested_sizes", None):
            resize(self, sizes)

    def save_pretrained(self, folder: Any, **options: Any) -> None:
        """Save the model, and this file with it: before version 5, transformers leaves it behind."""
        super().save_pretrained(folder, **options)  # type: ignore[misc]
        here, there = Path(__file__), Path(folder) / Path(__file__).name
        if options.get("is_main_process", True) and not there.exists():
            there.write_bytes(here.read_bytes())

    @classmethod
    def is_custom_code(cls) -> bool:
        """No: the layers are those of transformers, which may rename weights as it does for its own class."""
        return False


def resize(model: Any, sizes: dict[str, Any]) -> None:
    """Set the widths of layers and the sizes that attention modules keep; weights are left to be loaded.

    Args:
        model: as its class builds it.
        sizes: "layers" has inputs and outputs by the name of a layer, "attention" has attributes by the name of a
            module. Names are those within the base model.
    """
    base = getattr(model, model.base_model_prefix, model)
    for name, (inputs, outputs) in sizes["layers"].items():
        layer = base.get_submodule(name)
        if isinstance(layer, nn.Linear):
            layer.in_features, layer.out_features, shape = inputs, outputs, (outputs, inputs)
        else:  # the Conv1D of GPT-2, whose weight is transposed
            layer.nx, layer.nf, shape = inputs, outputs, (inputs, outputs)
        layer.weight = nn.Parameter(torch.empty(shape, dtype=layer.weight.dtype))
        if layer.bias is not None:
            layer.bias = nn.Parameter(torch.empty(outputs, dtype=layer.bias.dtype))
    for name, attributes in sizes["attention"].items():
        for attribute, value in attributes.items():
            setattr(base.get_submodule(name), attribute, value)
