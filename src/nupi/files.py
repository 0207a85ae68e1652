"""Files that are complete: written in one step, and read back only if every bit is as it was written.

While a file is replaced, a reader finds the old content or the new content. Several processes may write the same file
at once: each writes its own temporary file, and the last to finish wins.

    save_checked(path, {"theta": theta})       # any payload that torch.load(weights_only=True) reads
    load_checked(path)                         # DamagedFileError if a bit of it has changed since

    keep(path, key, value)                     # a result, with a key that says what it is the result of
    recall(path)                               # the same, or None if it must be computed (again)
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import os
import uuid
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD = b"nupi checked file 1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size


class DamagedFileError(ValueError):
    """A file that is cut off, has changed since it was written, or was never written by `save_checked`."""


class Kept(NamedTuple):
    """A result that was kept, and the key that says what it is the result of."""

    key: Any
    value: Any


def write_bytes(path: str | os.PathLike[str], data: bytes, *, durable: bool = False) -> None:
    """Write a file in one step: a reader finds the old content or the complete new content.

    Args:
        path: of the file; its folder is made if it does not exist.
        data: the new content.
        durable: whether to wait until the data is on the disk, so that it also survives a loss of power.
    """
    with replacing(path) as draft, draft.open("xb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """The path of a temporary file to write. It then replaces `path` in one step; if anything fails, it is removed."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A unique name: another process may use a fixed name, and on a shared disk also one with a process id.
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file in one step, as UTF-8."""
    write_bytes(path, text.encode())


def save_checked(path: str | os.PathLike[str], payload: Any) -> None:
    """Save a payload (tensors, numbers, strings, lists and dictionaries of them) with a checksum, in one step."""
    buffer = io.BytesIO()
    torch.save(payload, buffer)
    body = buffer.getvalue()
    write_bytes(path, _HEAD + hashlib.sha256(body).digest() + body, durable=True)


def load_checked(path: str | os.PathLike[str]) -> Any:
    """Read what `save_checked` wrote. Tensors are on the CPU.

    Raises:
        FileNotFoundError: there is no such file.
        DamagedFileError: its content is not what was written.
    """
    content = Path(path).read_bytes()
    if not content.startswith(_HEAD):
        what = "cut off" if _HEAD.startswith(content) else "not a file of save_checked"
        raise DamagedFileError(f"{os.fspath(path)} is {what}")
    start = len(_HEAD) + _DIGEST_BYTES
    body = content[start:]
    if content[len(_HEAD) : start] != hashlib.sha256(body).digest():
        raise DamagedFileError(f"{os.fspath(path)} is damaged: its content does not match its checksum")
    return torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)


def keep(path: str | os.PathLike[str], key: Any, value: Any) -> None:
    """Keep a result in a file, with a key that says what it is the result of."""
    save_checked(path, {"key": key, "value": value})


def recall(path: str | os.PathLike[str]) -> Kept | None:
    """The result that was kept, or None if there is none. A damaged file causes a warning, and counts as none."""
    try:
        found = load_checked(path)
        if not isinstance(found, dict) or found.keys() != {"key", "value"}:
            raise DamagedFileError(f"{os.fspath(path)} holds no result")  # noqa: TRY301
    except FileNotFoundError:
        return None
    except DamagedFileError as damage:
        warnings.warn(f"{damage}; it is computed again", RuntimeWarning, stacklevel=3)
        return None
    return Kept(found["key"], found["value"])


def digest(*parts: str | torch.Tensor) -> str:
    """A name that identifies texts and tensors: the sha256 of all of them, in order.

    >>> digest("ab", "c") == digest("a", "bc")
    False
    """
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            data, head = part.encode(), "text"
        else:
            tensor = part.detach().cpu().contiguous()
            data = ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())
            head = f"{tensor.dtype} {tuple(tensor.shape)}"
        total.update(f"{head} {len(data)}\n".encode())
        total.update(data)
    return total.hexdigest()
