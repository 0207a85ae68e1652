"""A transformer whose blocks differ in width. `nupi.gates.save_pretrained` puts this file beside the weights.

It needs only torch and transformers. `AutoModel.from_pretrained(folder, trust_remote_code=True)` finds this file by
`auto_map` in the config, and the widths by `harvested_sizes`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn


class Harvested:
    """A mixin that builds the model of the config, then sets the widths of its harvested layers."""

    def __init__(self, config: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(config, *arguments, **options)  # type: ignore[call-arg]
        # Before version 5, transformers then uses this class for every model of its kind, harvested or not.
        if sizes := getattr(config, "harvested_sizes", None):
            resize(self, sizes)

    def save_pretrained(self, folder: Any, **options: Any) -> None:
        """Save the model and this file, which transformers before version 5 does not copy."""
        super().save_pretrained(folder, **options)  # type: ignore[misc]
        here, there = Path(__file__), Path(folder) / Path(__file__).name
        if options.get("is_main_process", True) and not there.exists():
            there.write_bytes(here.read_bytes())

    @classmethod
    def is_custom_code(cls) -> bool:
        """False: the layers are those of transformers, so it may rename weights as for its own class."""
        return False


def resize(model: Any, sizes: dict[str, Any]) -> None:
    """Set the widths of layers and the sizes in attention modules. The weights are loaded later.

    Args:
        model: the model that its class builds.
        sizes: "layers" has inputs and outputs by layer name, "attention" has attributes by module name. Names are
            those within the base model.
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
