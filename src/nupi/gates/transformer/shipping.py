"""Save a harvested transformer so that `transformers` alone can load it."""

from __future__ import annotations

import json
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any

from nupi.gates.transformer import standalone
from nupi.gates.transformer.blocks import blocks, widths
from nupi.gates.transformer.noting import counts_in, noted, within_base
from nupi.gates.transformer.surgery import CHANNEL_COUNTS, GROUP_COUNTS, HEAD_COUNTS

if TYPE_CHECKING:
    from torch import nn

FILE = "modeling_harvested"


def save_with_code(model: Any) -> None:
    """Make the model's own `save_pretrained` also write the code that loads it, if its config alone is not enough.

    So a trainer that calls the method saves a folder that loads. A copy of the model keeps this. A pickle does not, so
    it can be read without nupi.
    """
    if noted(model) and hasattr(model, "save_pretrained"):
        model.save_pretrained = MethodType(save_pretrained, model)


def save_pretrained(model: Any, folder: Any, **options: Any) -> None:
    """Save a harvested transformer so that `transformers` loads it without nupi.

    A model from `harvest` or `from_pretrained` calls this in its own `save_pretrained`. If all blocks have the same
    width and the config has fields for it, nothing is added. Else a small Python file is saved beside the weights, and
    an auto class loads the folder with `trust_remote_code=True`.

    Args:
        model: a harvested model of `transformers`.
        folder: the folder to save to.
        options: as for the model's own `save_pretrained`.

    Example:
        >>> import tempfile, torch
        >>> from transformers import AutoModel, GPT2Config, GPT2Model
        >>> import nupi
        >>> ends = {"bos_token_id": 0, "eos_token_id": 0}
        >>> model = GPT2Model(GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=9, **ends))
        >>> tokens = torch.arange(9)[None]
        >>> nupi.gates.attach_transformer(model, heads="h.0.*", mlps=None)
        ['h.0.attn.c_proj']
        >>> with torch.no_grad():
        ...     _ = model.h[0].attn.c_proj.gate.log_alpha[1:].fill_(-5.0)  # close one of two heads
        >>> small = nupi.gates.harvest(model, tokens).model
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     nupi.gates.save_pretrained(small, folder)  # or small.save_pretrained(folder)
        ...     loaded = AutoModel.from_pretrained(folder, trust_remote_code=True)
        >>> torch.equal(loaded(tokens)[0], small(tokens)[0])
        True
    """
    if not hasattr(model, "save_pretrained") or not hasattr(model, "config"):
        raise TypeError(
            f"model is a {type(model).__name__}, which is not one of transformers; use torch.save"
        )
    with_code = noted(model)
    if with_code and options.get("push_to_hub"):
        raise ValueError(
            "push_to_hub=True would upload the weights before the code that loads them is written; call "
            "model.push_to_hub(...), which uploads both"
        )
    type(model).save_pretrained(model, folder, **options)
    path = Path(folder) / "config.json"
    # With many processes only one writes the config; adapters of PEFT are saved without one.
    if with_code and options.get("is_main_process", True) and path.exists():
        _add_code(model, path)


def _add_code(model: Any, path: Path) -> None:
    classes = _auto_classes(model)
    lines = [Path(standalone.__file__).read_text(encoding="utf-8")]
    for each in dict.fromkeys(classes.values()):
        # The same name, because transformers renames the weights of a checkpoint by the name of the class.
        lines.append(
            f"\n\nfrom {each.__module__} import {each.__name__} as Plain{each.__name__}  # noqa: E402\n"
        )
        lines.append(f"\n\nclass {each.__name__}(Harvested, Plain{each.__name__}):\n    pass\n")
    path.with_name(f"{FILE}.py").write_text("".join(lines), encoding="utf-8")
    config = json.loads(path.read_text(encoding="utf-8"))
    config["harvested_sizes"] = _sizes(model)
    config["auto_map"] = {name: f"{FILE}.{each.__name__}" for name, each in classes.items()}
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _auto_classes(model: Any) -> dict[str, type[Any]]:
    """By auto class for the model's config, the class that it loads: the model's own, or one with another head."""
    from transformers.models.auto import modeling_auto

    ours = {*type(model).__mro__, *type(model.base_model).__mro__}
    found = {}
    for name, auto in vars(modeling_auto).items():
        mapping = getattr(auto, "_model_mapping", None)
        if isinstance(auto, type) and name.startswith("Auto") and mapping is not None:
            known = mapping.get(type(model.config), None)
            classes = [
                _plain(each) for each in (known if isinstance(known, tuple | list) else [known]) if each
            ]
            if classes:
                found[name] = next((each for each in classes if each in ours), classes[0])
    return found


def _plain(model_class: type[Any]) -> type[Any]:
    """The class of `transformers` itself. After a model with its own code was loaded, an auto class has that one's."""
    return next(
        (each for each in model_class.__mro__ if each.__module__.startswith("transformers.")), model_class
    )


def _sizes(model: nn.Module) -> dict[str, Any]:
    """The sizes of layers and attention modules, for `standalone.resize`."""
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
