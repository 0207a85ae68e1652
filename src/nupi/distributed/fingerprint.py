"""Numbers that identify tensors and texts, the same in every process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from numbers import Number
from typing import Any

import torch

from nupi.files import digest


@lru_cache(1024)  # every step has the same few texts
def of_text(text: str) -> int:
    """A fingerprint of a text: 48 bits, so that a double represents it exactly."""
    return int(digest(text)[:12], 16)


def of_value(value: Any) -> str:
    """A text for a value: dtype, shape and fingerprint of a tensor, `repr` of a plain value, else only the type.

    Numpy's numbers and arrays count by their values. For functions and other objects `repr` has the address, which
    differs between processes.
    """
    if isinstance(value, torch.Tensor) and value.is_sparse:
        value = value.coalesce()
        return f"sparse {tuple(value.shape)} {of_value(value.indices())} {of_value(value.values())}"
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)} {digest(value)}"
    if value is None or isinstance(value, (bool, int, float, complex, str, torch.dtype, torch.device)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(of_value, value))})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(sorted(f'{of_value(key)}: {of_value(each)}' for key, each in value.items()))}}}"
    if hasattr(value, "tolist"):
        return of_value(value.tolist())
    if isinstance(value, Number):
        return repr(value)
    return type(value).__qualname__
