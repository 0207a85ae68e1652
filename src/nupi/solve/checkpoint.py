"""Finished chunks on disk: each written whole or not at all, and refused by any other sweep."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.fx.experimental.proxy_tensor import make_fx

if TYPE_CHECKING:
    from nupi.solve.problem import Problem


class Checkpoint:
    """A directory of chunks, or nothing at all if `directory` is None.

    Args:
        directory: where to keep the chunks; made if it does not exist.
        fingerprint: of the sweep. A directory that holds another sweep is refused.
    """

    def __init__(self, directory: str | os.PathLike[str] | None, fingerprint: str) -> None:
        self.directory = None if directory is None else Path(directory)
        if self.directory is None:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        label = self.directory / "sweep.json"
        if label.exists():
            found = json.loads(label.read_text(encoding="utf-8")).get("fingerprint")
            if found != fingerprint:
                raise ValueError(
                    f"checkpoint={str(self.directory)!r} holds another sweep: its problem, grid or options "
                    "are not the same; give each sweep a directory of its own, or delete this one"
                )
        else:
            part = label.with_suffix(".part")
            part.write_text(json.dumps({"fingerprint": fingerprint}) + "\n", encoding="utf-8")
            part.replace(label)

    def load(self, chunk: int) -> dict[str, torch.Tensor] | None:
        """A finished chunk, or None if there is none yet."""
        if self.directory is None or not self._path(chunk).exists():
            return None
        loaded: dict[str, torch.Tensor] = torch.load(self._path(chunk), weights_only=True)
        return loaded

    def save(self, chunk: int, results: dict[str, torch.Tensor]) -> None:
        """Keep a finished chunk; a kill in the middle leaves no trace that `load` would take for one."""
        if self.directory is None:
            return
        part = self._path(chunk).with_suffix(f".{os.getpid()}.part")
        with part.open("wb") as file:
            torch.save({name: tensor.cpu() for name, tensor in results.items()}, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._path(chunk))

    def _path(self, chunk: int) -> Path:
        assert self.directory is not None
        return self.directory / f"chunk-{chunk:05d}.pt"


def fingerprint(problem: Problem, *rest: object) -> str:
    """A digest of what a sweep computes: the functions as tensor operations, their data, and all options.

    The functions are traced at x0, so that a change in them or in data they close over changes the digest,
    and a change of name or of a comment does not.

    Args:
        problem: the problem.
        rest: everything else that decides the result, with a `repr` that tells it apart.
    """
    from nupi import __version__

    digest = hashlib.sha256(__version__.encode())
    traced = make_fx(lambda leaves: (problem.value(leaves), problem.violations(leaves)))(problem.start)
    digest.update(traced.code.encode())
    constants = dict(traced.named_buffers()) | {
        name: value for name, value in vars(traced).items() if isinstance(value, torch.Tensor)
    }
    for _, tensor in sorted(constants.items()):
        _add(digest, tensor)
    for name, leaf in problem.start.items():
        digest.update(name.encode())
        _add(digest, leaf)
    groups = [(group.name, group.kind, tuple(group.shape)) for group in problem.groups]
    digest.update(repr((groups, problem.inequalities, rest)).encode())
    return digest.hexdigest()


def _add(digest: hashlib._Hash, tensor: torch.Tensor) -> None:
    data = tensor.detach().cpu().contiguous()
    digest.update(repr((data.dtype, tuple(data.shape))).encode())
    digest.update(ctypes.string_at(data.data_ptr(), data.numel() * data.element_size()))
