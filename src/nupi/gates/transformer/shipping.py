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
    """Let a harvested transformer's own `save_pretrained` write what it takes to load it, if its config alone does not.

    So whoever calls the method, such as a trainer, saves a folder that loads. A copy keeps this, a pickle does not: it
    can be read without nupi.
    """
    if noted(model) and hasattr(model, "save_pretrained"):
        model.save_pretrained = MethodType(save_pretrained, model)


def save_pretrained(model: Any, folder: Any, **options: Any) -> None:
    """Save a harvested transformer, with the code that its config needs if the class alone cannot build it.

    The own `save_pretrained` of a model from `harvest` or `from_pretrained` calls this. If all blocks have the same
    widths and the config can say them, nothing is added. Else a small Python file goes beside the weights, and an auto
    class loads the folder with `trust_remote_code=True`, without nupi.

    Args:
        model: a harvested model of `transformers`.
        folder: where to.
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
    # Of many processes one writes the config, and adapters of PEFT are saved without it.
    if with_code and options.get("is_main_process", True) and path.exists():
        _add_code(model, path)


def _add_code(model: Any, path: Path) -> None:
    classes = _auto_classes(model)
    lines = [Path(standalone.__file__).read_text(encoding="utf-8")]
    for each in dict.fromkeys(classes.values()):
        # By the same name: transformers finds out by it how to rename the weights of a checkpoint.
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
    """Every auto class that knows the model's config, with what it loads: the model's own class, or one more head."""
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
    """The class of `transformers` itself: where code came with a model, an auto class has that model's from then on."""
    return next(
        (each for each in model_class.__mro__ if each.__module__.startswith("transformers.")), model_class
    )


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
