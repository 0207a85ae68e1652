"""Attention whose heads can be removed. In torch's own, all heads together must be as wide as the embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nupi.gates.transformer.blocks import Block


class HeadAttention(nn.Module):
    """An `nn.MultiheadAttention` from which heads can be removed; with all heads it computes the same.

    Its parameters are the objects of torch's module. Two have other names: `in_proj.weight` for `in_proj_weight`,
    `in_proj.bias` for `in_proj_bias`. It also loads a state dict of torch's module.

    Args:
        attention: torch's module.

    Example:
        >>> theirs = nn.MultiheadAttention(8, 2, batch_first=True)
        >>> ours, x = HeadAttention(theirs), torch.randn(3, 5, 8)
        >>> torch.allclose(ours(x, x, x)[0], theirs(x, x, x)[0], atol=1e-6)
        True
    """

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        self.num_heads, self.head_dim = attention.num_heads, attention.head_dim
        self.dropout, self.batch_first = attention.dropout, attention.batch_first
        self.in_proj = _linear(attention.in_proj_weight, attention.in_proj_bias)
        self.out_proj = _linear(attention.out_proj.weight, attention.out_proj.bias)
        self.train(attention.training)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,  # noqa: FBT001, FBT002 - torch's signature
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,  # noqa: FBT001, FBT002
        is_causal: bool = False,  # noqa: FBT001, FBT002, ARG002 - a hint; torch wants the mask with it
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The output, and the attention weights or None, as in torch."""
        batched = query.dim() == 3
        made = self.in_proj(query).chunk(3, -1) if query is key is value else self._made(query, key, value)
        if not batched:
            made = [each[None] for each in made]
        elif not self.batch_first:
            made = [each.transpose(0, 1) for each in made]
        q, k, v = (each.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for each in made)
        mask = _mask(attn_mask, key_padding_mask, q)
        weights, dropout = None, self.dropout if self.training else 0.0
        if need_weights:
            scores = q @ k.transpose(-2, -1) * self.head_dim**-0.5
            weights = functional.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
            heads = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            heads = functional.scaled_dot_product_attention(q, k, v, mask, dropout)
        y = self.out_proj(heads.transpose(1, 2).flatten(2))
        y = y.transpose(0, 1) if batched and not self.batch_first else y
        return (y, weights) if batched else (y[0], None if weights is None else weights[0])

    def _made(self, *given: torch.Tensor) -> list[torch.Tensor]:
        """Queries, keys and values, each computed from its own input."""
        weights, bias = self.in_proj.weight.chunk(3), self.in_proj.bias
        biases = (None, None, None) if bias is None else bias.chunk(3)
        return [functional.linear(*each) for each in zip(given, weights, biases, strict=True)]

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        for name in ("weight", "bias"):
            if (theirs := f"{prefix}in_proj_{name}") in state_dict:
                state_dict[f"{prefix}in_proj.{name}"] = state_dict.pop(theirs)
        super()._load_from_state_dict(state_dict, prefix, *others)

    def extra_repr(self) -> str:
        """The number of heads left, and their width."""
        return f"num_heads={self.num_heads}, head_dim={self.head_dim}"


def has_heads(module: nn.Module) -> bool:
    """Whether this is torch's attention with options that allow gates on heads, or a `HeadAttention`."""
    if isinstance(module, HeadAttention):
        return True
    return (
        type(module) is nn.MultiheadAttention
        and module._qkv_same_embed_dim
        and module.bias_k is None
        and not module.add_zero_attn
    )


def open_attention(model: nn.Module, blocks: Iterable[Block]) -> None:
    """Replace torch's attention in these blocks by `HeadAttention`, in place."""
    for block in blocks:
        module = model.get_submodule(block.core)
        if isinstance(module, nn.MultiheadAttention):
            parent, _, child = block.core.rpartition(".")
            setattr(model.get_submodule(parent), child, HeadAttention(module))


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight, layer.bias = weight, bias  # type: ignore[assignment]
    return layer


def _mask(pairs: torch.Tensor | None, padding: torch.Tensor | None, q: torch.Tensor) -> torch.Tensor | None:
    """Both masks as one tensor to add to the scores, of shape (batch, heads, queries, keys)."""
    if pairs is not None:
        pairs = _added(pairs, q)
        pairs = pairs.unflatten(0, (len(q), -1)) if pairs.dim() == 3 else pairs
    if padding is not None:
        padding = _added(padding if padding.dim() == 2 else padding[None], q)[:, None, None]
    if pairs is None or padding is None:
        return padding if pairs is None else pairs
    return pairs + padding


def _added(mask: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """A mask to add to the scores: minus infinity where a boolean mask is True."""
    if mask.dtype != torch.bool:
        return mask.to(q.dtype)
    return torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask, -torch.inf)
