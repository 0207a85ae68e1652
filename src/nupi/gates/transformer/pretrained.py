"""Keep how a harvested transformer was narrowed in its config, and load it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nupi.gates.transformer.blocks import blocks
from nupi.gates.transformer.surgery import narrow_blocks

if TYPE_CHECKING:
    from torch import nn

KEY = "harvested"  # of the config


def note_in_config(model: nn.Module, stays: dict[str, torch.Tensor]) -> None:
    """Write into the config, which `save_pretrained` saves, how many heads or units each block has left."""
    config = getattr(model, "config", None)
    if config is not None and hasattr(config, "to_dict"):
        counts = dict(getattr(config, KEY, None) or {})
        counts.update({name: int(mask.sum()) for name, mask in stays.items()})
        setattr(config, KEY, counts)


def from_pretrained(model_class: type[Any], path: Any, **options: Any) -> Any:
    """Load a harvested transformer that was saved with `save_pretrained`.

    Its blocks differ in width, which the config of `transformers` has no words for; so the harvest has noted the
    widths in the config, and this builds the narrow model before the weights are loaded.

    Args:
        model_class: the class of the model, such as `transformers.LlamaForCausalLM`.
        path: as for the class's own `from_pretrained`.
        options: the same.

    Example:
        >>> import tempfile
        >>> from transformers import GPT2Config, GPT2Model
        >>> import nupi
        >>> config = GPT2Config(n_layer=1, n_head=4, n_embd=16, vocab_size=9, bos_token_id=0, eos_token_id=0)
        >>> model, tokens = GPT2Model(config), torch.arange(9)[None]
        >>> nupi.gates.attach_transformer(model, mlps=None)
        ['h.0.attn.c_proj']
        >>> with torch.no_grad():
        ...     _ = model.h[0].attn.c_proj.gate.log_alpha[1:].fill_(-5.0)  # close three of four heads
        >>> small = nupi.gates.harvest(model, tokens).model
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     small.save_pretrained(folder)
        ...     loaded = nupi.gates.from_pretrained(GPT2Model, folder)
        >>> loaded.h[0].attn.num_heads, torch.equal(loaded(tokens)[0], small(tokens)[0])
        (1, True)
    """

    class Narrow(model_class):  # type: ignore[misc]
        def __init__(self, config: Any, *arguments: Any, **others: Any) -> None:
            super().__init__(config, *arguments, **others)
            counts: dict[str, int] = getattr(config, KEY, None) or {}
            found = [block for block in blocks(self) if block.user in counts]
            if missing := set(counts) - {block.user for block in found}:
                raise ValueError(
                    f"the config at {path!r} says that {min(missing)!r} was harvested, which a {model_class.__name__} "
                    "does not have; load it as the class that was saved"
                )
            stays = {
                block.user: torch.arange(block.gates, device="cpu") < counts[block.user] for block in found
            }
            narrow_blocks(self, found, stays)

    Narrow.__name__ = model_class.__name__
    model = Narrow.from_pretrained(path, **options)
    model.__class__ = model_class
    return model
