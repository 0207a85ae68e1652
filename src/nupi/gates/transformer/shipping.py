"""Save a harvested transformer so that `transformers` alone can load it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nupi.gates.transformer import standalone
from nupi.gates.transformer.blocks import blocks, widths
from nupi.gates.transformer.pretrained import KEY, counts_in, within_base
from nupi.gates.transformer.surgery import CHANNEL_COUNTS, GROUP_COUNTS, HEAD_COUNTS

if TYPE_CHECKING:
    from torch import nn

FILE = "modeling_harvested"


def save_pretrained(model: Any, folder: Any, **options: Any) -> None:
    """Save a harvested transformer, with the code that its config needs if the class alone cannot build it.

    If all blocks have the same widths and the config can say them, this is `model.save_pretrained`. Else a small Python
    file goes beside the weights, and an auto class loads the folder with `trust_remote_code=True`, without nupi.

    Args:
        model: a harvested model of `transformers`.
        folder: where to.
        options: as for the model's own `save_pretrained`.

    Example:
        >>> import tempfile, torch
        >>> from transformers import AutoModel, GPT2Config, GPT2Model
        >>> import nupi
        >>> config = GPT2Config(n_layer=1, n_head=4, n_embd=16, vocab_size=9, bos_token_id=0, eos_token_id=0)
        >>> model, tokens = GPT2Model(config), torch.arange(9)[None]
        >>> nupi.gates.attach_transformer(model, mlps=None)
        ['h.0.attn.c_proj']
        >>> with torch.no_grad():
        ...     _ = model.h[0].attn.c_proj.gate.log_alpha[1:].fill_(-5.0)  # close three of four heads
        >>> small = nupi.gates.harvest(model, tokens).model
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     nupi.gates.save_pretrained(small, folder)
        ...     loaded = AutoModel.from_pretrained(folder, trust_remote_code=True)
        >>> torch.equal(loaded(tokens)[0], small(tokens)[0])
        True
    """
    if not hasattr(model, "save_pretrained") or not hasattr(model, "config"):
        raise TypeError(
            f"model is a {type(model).__name__}, which is not one of transformers; use torch.save"
        )
    model.save_pretrained(folder, **options)
    if not getattr(model.config, KEY, None):
        return
    classes = _auto_classes(model)
    lines = [Path(standalone.__file__).read_text(encoding="utf-8")]
    for each in dict.fromkeys(classes.values()):
        # By the same name: transformers finds out by it how to rename the weights of a checkpoint.
        lines.append(
            f"\n\nfrom {each.__module__} import {each.__name__} as Plain{each.__name__}  # noqa: E402\n"
        )
        lines.append(f"\n\nclass {each.__name__}(Harvested, Plain{each.__name__}):\n    pass\n")
    (Path(folder) / f"{FILE}.py").write_text("".join(lines), encoding="utf-8")
    path = Path(folder) / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["harvested_sizes"] = _sizes(model)
    config["auto_map"] = {name: f"{FILE}.{each.__name__}" for name, each in classes.items()}
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _auto_classes(model: Any) -> dict[str, type[Any]]:
    """The auto classes that stand for the model's class or its base model's, each with that class."""
    from transformers.models.auto import modeling_auto

    ours = {type(model), type(model.base_model)}
    found = {}
    for name, auto in vars(modeling_auto).items():
        mapping = getattr(auto, "_model_mapping", None)
        if isinstance(auto, type) and name.startswith("Auto") and mapping is not None:
            known = mapping.get(type(model.config), None)
            for each in known if isinstance(known, tuple | list) else (known,):
                if each in ours:
                    found[name] = each
    return found


def _sizes(model: nn.Module) -> dict[str, Any]:
    """What `standalone.resize` reads."""
    layers, attention = {}, {}
    known = counts_in(model.config, type(model))
    for block in blocks(model):
        if within_base(block.user, type(model)) in known:
            for name in block.layers:
                layers[within_base(name, type(model))] = widths(model.get_submodule(name))
            if block.kind == "heads":
                core = model.get_submodule(block.core)
                kept = {
                    name: getattr(core, name, None) for name in (*HEAD_COUNTS, *GROUP_COUNTS, *CHANNEL_COUNTS)
                }
                attention[within_base(block.core, type(model))] = {
                    name: value for name, value in kept.items() if isinstance(value, int)
                }
    return {"layers": layers, "attention": attention}
