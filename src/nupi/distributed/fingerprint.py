"""Numbers that tell tensors and texts apart, the same in every process."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from numbers import Number
from typing import Any

import torch

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHUNK = 2**20  # elements looked at together, so that a large tensor costs no memory
# The constants of the splitmix64 generator, as signed numbers.
_STEP, _FIRST, _SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15


def of_text(text: str) -> int:
    """A number of 48 bits, which a double holds exactly."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "little")


def of_tensor(tensor: torch.Tensor) -> int:
    """A number that depends on every bit and its place. Looks at all of the tensor, and waits for its device.

    Each element is scattered over 64 bits by splitmix64 before they are summed: a plain checksum would take many round
    numbers, whose low bits are all 0, for each other.
    """
    flat = tensor.detach().reshape(-1).view(_BITS[tensor.dtype.itemsize])
    total = 0
    for start in range(0, len(flat), _CHUNK):
        bits = flat[start : start + _CHUNK].long()
        mixed = torch.arange(start + 1, start + len(bits) + 1, device=flat.device).mul_(_STEP).add_(bits)
        mixed = (mixed ^ (mixed >> 30)).mul_(_FIRST)
        mixed = (mixed ^ (mixed >> 27)).mul_(_SECOND)
        total += int((mixed ^ (mixed >> 31)).sum())
    return total % 2**63


def of_value(value: Any) -> str:
    """A tensor by its type, shape and fingerprint, a plain value as it prints, anything else by its type.

    Numpy's numbers and arrays are what they hold. Functions and other objects print their address, which is another
    in every process.
    """
    if isinstance(value, torch.Tensor) and value.is_sparse:
        value = value.coalesce()
        return f"sparse {tuple(value.shape)} {of_value(value.indices())} {of_value(value.values())}"
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)} {of_tensor(value)}"
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
