"""Load a harvested transformer as a class of `transformers`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nupi.gates.transformer.blocks import blocks
from nupi.gates.transformer.noting import counts_in, within_base
from nupi.gates.transformer.shipping import save_with_code
from nupi.gates.transformer.surgery import narrow_blocks

if TYPE_CHECKING:
    from torch import nn


def from_pretrained(model_class: type[Any], path: Any, **options: Any) -> Any:
    """Load a harvested transformer that was saved with `save_pretrained`.

    Its blocks differ in width, and a config of `transformers` has no fields for that. So the harvest has added a field
    with the widths, and this function builds the narrow model before it loads the weights. It runs no code that came
    with the weights.

    Args:
        model_class: the class of the model, such as `transformers.LlamaForCausalLM`; also its base class, a class with
            another head, or an auto class.
        path: as for the class's own `from_pretrained`.
        options: as for the class's own `from_pretrained`.

    Example:
        >>> import tempfile
        >>> from transformers import GPT2Config, GPT2Model
        >>> import nupi
        >>> config = GPT2Config(n_layer=1, n_head=4, n_embd=16, vocab_size=9, bos_token_id=0, eos_token_id=0)
        >>> model, tokens = GPT2Model(config), torch.arange(9)[None]
        >>> nupi.gates.attach_transformer(model)
        ['h.0.attn.c_proj', 'h.0.mlp.c_proj']
        >>> _ = nupi.gates.budget(model, tokens, parameters=0.9).fit()
        >>> small = nupi.gates.harvest(model, tokens).model
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     small.save_pretrained(folder)
        ...     loaded = nupi.gates.from_pretrained(GPT2Model, folder)
        >>> torch.equal(loaded(tokens)[0], small(tokens)[0])
        True
    """
    made_from: Any = _concrete(model_class, path)

    class Narrow(made_from):  # type: ignore[misc]
        def __init__(self, config: Any, *arguments: Any, **others: Any) -> None:
            super().__init__(config, *arguments, **others)
            counts = counts_in(config, made_from)
            found = {within_base(block.user, made_from): block for block in blocks(self)}
            if missing := set(counts) - set(found):
                raise ValueError(
                    f"the config at {path!r} says that {min(missing)!r} was harvested, which a {made_from.__name__} "
                    "does not have; load it as the class that was saved"
                )
            chosen = {name: block for name, block in found.items() if name in counts}
            stays = {
                block.user: torch.arange(block.gates, device="cpu") < counts[name]
                for name, block in chosen.items()
            }
            narrow_blocks(self, list(chosen.values()), stays)

    # transformers renames the weights of older checkpoints by the name and the module of the class.
    for attribute in ("__name__", "__qualname__", "__module__"):
        setattr(Narrow, attribute, getattr(made_from, attribute))
    wants_info = options.pop("output_loading_info", False)
    model, info = Narrow.from_pretrained(path, output_loading_info=True, **options)
    model.__class__ = made_from
    _refuse_missing(model, info, path)
    save_with_code(model)
    return (model, info) if wants_info else model


def _concrete(model_class: type[Any], path: Any) -> type[Any]:
    """The class itself; for an auto class of `transformers`, the class that it would load."""
    if issubclass(model_class, torch.nn.Module):
        return model_class
    if not hasattr(model_class, "from_config"):
        raise TypeError(
            f"model_class={model_class!r} must be the class of a model, such as transformers.LlamaForCausalLM, or an "
            "auto class, such as transformers.AutoModelForCausalLM"
        )
    from transformers import AutoConfig

    with torch.device("meta"):
        return type(model_class.from_config(AutoConfig.from_pretrained(path)))


def _refuse_missing(model: nn.Module, info: Any, path: Any) -> None:
    """Raise if a harvested layer has no weights on disk: transformers would only warn, and draw them at random."""
    known = counts_in(model.config, type(model))
    own = [block for block in blocks(model) if within_base(block.user, type(model)) in known]
    weights = {f"{layer}.weight" for block in own for layer in block.layers}
    if lost := sorted(weights & set(info["missing_keys"])):
        raise ValueError(
            f"{path!r} has no weights for {lost[0]!r}, which was harvested; load it as the class that was saved, a "
            f"{', '.join(getattr(model.config, 'architectures', None) or ['…'])}"
        )
