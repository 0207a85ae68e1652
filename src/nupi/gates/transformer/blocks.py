"""The attention and the MLPs of a transformer, found by the names and sizes of their layers.

`torch.fx` cannot trace a forward pass of `transformers`. But the structure is always the same: some layers make the
channels of a block, and one layer uses them. The gates are on the input of the layer that uses them:

    attention    o_proj(z * attention(q_proj(x), k_proj(x), v_proj(x)))      one gate a head, or a key-value group
    MLP          down_proj(z * act(gate_proj(x)) * up_proj(x))               one gate a unit

A harvest removes the columns of a closed gate from the layer that uses the channels, and its rows from all layers that
make them. The width of the embedding stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from torch import nn

from nupi.gates.layers import is_conv1d
from nupi.gates.transformer.attention import HeadAttention, has_heads

if TYPE_CHECKING:
    from collections.abc import Iterator

Kind: TypeAlias = Literal["heads", "mlp"]

# Names of layers: those that make the channels, then the one that uses them. A dot is for a submodule.
ATTENTION: tuple[tuple[tuple[str, ...], str], ...] = (
    (("q_proj", "k_proj", "v_proj"), "o_proj"),
    (("q_proj", "k_proj", "v_proj"), "out_proj"),
    (("q_lin", "k_lin", "v_lin"), "out_lin"),
    (("self.query", "self.key", "self.value"), "output.dense"),
    (("attention.query", "attention.key", "attention.value"), "output.dense"),
    (("c_attn",), "c_proj"),
)
MLP: tuple[tuple[tuple[str, ...], str], ...] = (
    (("gate_proj", "up_proj"), "down_proj"),
    (("intermediate.dense",), "output.dense"),
    (("fc1",), "fc2"),
    (("lin1",), "lin2"),
    (("c_fc",), "c_proj"),
)
HEAD_SIZES = ("head_dim", "attention_head_size")


@dataclass(frozen=True)
class Maker:
    """A layer whose outputs a block's gates switch.

    Args:
        name: the name of the layer.
        size: how many consecutive outputs belong to one gate.
        copies: how often the outputs of all gates are repeated: 3 if one layer makes queries, keys and values.
    """

    name: str
    size: int
    copies: int = 1


@dataclass(frozen=True)
class Block:
    """The attention or an MLP of a transformer, whose channels can be removed.

    Args:
        name: the name of the module that has the layers.
        kind: "heads" or "mlp".
        makers: the layers that make the channels.
        user: the layer that uses them.
        size: how many consecutive inputs of `user` belong to one gate.
        gates: how many gates there are.
        core: the name of the module that computes the attention of queries, keys and values.
    """

    name: str
    kind: Kind
    makers: tuple[Maker, ...]
    user: str
    size: int
    gates: int
    core: str

    @property
    def layers(self) -> tuple[str, ...]:
        """All layers of the block."""
        return (*(maker.name for maker in self.makers), self.user)


def widths(layer: nn.Module) -> tuple[int, int]:
    """How many inputs and outputs a linear layer has."""
    weight = layer.weight
    assert isinstance(weight, nn.Parameter)
    rows, columns = weight.shape
    return (rows, columns) if is_conv1d(layer) else (columns, rows)


def blocks(model: nn.Module) -> Iterator[Block]:
    """All blocks of the model whose layers have known names, in the model's order."""
    for name, module in model.named_modules():
        for makers, user in ATTENTION:
            if (names := _present(module, name, makers, user)) and (found := _attention(model, name, *names)):
                yield found
                break
        for makers, user in MLP:
            if (names := _present(module, name, makers, user)) and (found := _mlp(model, name, *names)):
                yield found
                break
        if has_heads(module) and name and not _inside_torch(model, name):
            yield _own_attention(name, module)
        yield from _beside_attention(model, name, module)


def _present(
    module: nn.Module, name: str, makers: tuple[str, ...], user: str
) -> tuple[list[str], str] | None:
    """The full names of the layers, if the module has all of them and they are linear."""
    for each in (*makers, user):
        try:
            layer = module.get_submodule(each)
        except AttributeError:
            return None
        if not (isinstance(layer, nn.Linear) or is_conv1d(layer)):
            return None
    prefix = f"{name}." if name else ""
    return [prefix + each for each in makers], prefix + user


def _attention(model: nn.Module, name: str, makers: list[str], user: str) -> Block | None:
    core = makers[0].rpartition(".")[0]
    module = model.get_submodule(core)
    head = next((getattr(module, each) for each in HEAD_SIZES if hasattr(module, each)), None)
    if not isinstance(head, int) or hasattr(module, "q_attn"):
        return None
    channels = widths(model.get_submodule(user))[0]
    outputs = [widths(model.get_submodule(maker))[1] for maker in makers]
    made: tuple[Maker, ...]
    if len(makers) == 1:  # one layer makes queries, keys and values
        gates, made = channels // head, (Maker(makers[0], head, 3),)
        fits = outputs[0] == 3 * channels
    else:
        gates = outputs[1] // head  # key-value heads, each with the queries that share it
        size = channels // max(gates, 1)
        made = (Maker(makers[0], size), Maker(makers[1], head), Maker(makers[2], head))
        fits = outputs[0] == channels and outputs[1] == outputs[2] and size % head == 0
    if not fits or gates < 1 or channels % gates:
        return None
    return Block(name, "heads", made, user, channels // gates, gates, core)


def _own_attention(name: str, attention: nn.Module) -> Block:
    """The block of torch's own attention, in which one layer makes queries, keys and values."""
    assert isinstance(attention, nn.MultiheadAttention | HeadAttention)
    size = attention.head_dim
    makers = (Maker(f"{name}.in_proj", size, 3),)
    return Block(name, "heads", makers, f"{name}.out_proj", size, attention.num_heads, name)


def _inside_torch(model: nn.Module, name: str) -> bool:
    """Whether the attention is part of a torch block, whose code reads the weights without calling the module."""
    parent = model.get_submodule(name.rpartition(".")[0])
    return type(parent).__module__.startswith("torch.nn.modules.transformer")


def _beside_attention(model: nn.Module, name: str, module: nn.Module) -> Iterator[Block]:
    """The MLPs that are an nn.Sequential beside torch's own attention, as in torchvision's ViT."""
    if any(isinstance(child, nn.MultiheadAttention | HeadAttention) for child in module.children()):
        for child, layers in module.named_children():
            linear = [each for each, layer in layers.named_children() if isinstance(layer, nn.Linear)]
            if isinstance(layers, nn.Sequential) and len(linear) == 2:
                names = [".".join(filter(None, (name, child, each))) for each in linear]
                others = (layer for each, layer in layers.named_children() if each not in linear)
                found = _mlp(model, ".".join(filter(None, (name, child))), names[:1], names[1])
                if found and not any(list(layer.parameters()) for layer in others):
                    yield found


def _mlp(model: nn.Module, name: str, makers: list[str], user: str) -> Block | None:
    units = widths(model.get_submodule(user))[0]
    if any(widths(model.get_submodule(maker))[1] != units for maker in makers):
        return None
    return Block(name, "mlp", tuple(Maker(maker, 1) for maker in makers), user, 1, units, name)
