"""Finished chunks of a sweep on disk: written atomically, checked when read, and refused by any other sweep."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from nupi import files
from nupi.solve.program import pulled_back

if TYPE_CHECKING:
    import os

    from nupi.solve.problem import Problem


class AnotherSweepError(ValueError):
    """The directory given as `checkpoint` holds another sweep."""


class Checkpoint:
    """Saves and loads finished chunks; does nothing if `directory` is None.

    Every chunk has the fingerprint of its sweep and its own number. A chunk that is damaged or has another number than
    its file is computed again. A chunk of another sweep is refused.

    Args:
        directory: the directory of the chunks; made if it does not exist.
        fingerprint: the fingerprint of the sweep. A directory that holds another sweep is refused.
    """

    def __init__(self, directory: str | os.PathLike[str] | None, fingerprint: str) -> None:
        self.directory = None if directory is None else Path(directory)
        self.fingerprint = fingerprint
        if self.directory is None:
            return
        if self.directory.exists() and not self.directory.is_dir():
            raise NotADirectoryError(f"checkpoint={str(directory)!r} is a file; name a directory, new or old")
        self.directory.mkdir(parents=True, exist_ok=True)
        label = self.directory / "sweep.json"
        found = _read_label(label)
        if found is None:  # no label, or a broken one: check the chunks
            for path in sorted(self.directory.glob("chunk-*.pt")):
                self._check_ours(path)
            files.write_text(label, json.dumps({"fingerprint": fingerprint}) + "\n")
        elif found != fingerprint:
            raise self._another()

    def load(self, chunk: int) -> dict[str, torch.Tensor] | None:
        """Load a finished chunk; None if there is none, or if it has to be computed again."""
        if self.directory is None:
            return None
        path = self._path(chunk)
        if (kept := files.recall(path)) is None:
            return None
        self._check_key(kept.key, path)
        if kept.key["chunk"] != chunk:
            why = f"holds chunk {kept.key['chunk']} in place of {chunk}"
            warnings.warn(f"{path} {why}; it is computed again", RuntimeWarning, stacklevel=3)
            return None
        results: dict[str, torch.Tensor] = kept.value
        return results

    def save(self, chunk: int, results: dict[str, torch.Tensor]) -> None:
        """Save a finished chunk. If the process is killed meanwhile, `load` finds no chunk."""
        if self.directory is not None:
            key = {"sweep": self.fingerprint, "chunk": chunk}
            files.keep(self._path(chunk), key, {name: tensor.cpu() for name, tensor in results.items()})

    def _check_ours(self, path: Path) -> None:
        """Refuse a chunk of another sweep. A damaged one is ignored here; `load` warns of it."""
        try:
            kept = files.load_checked(path)
        except files.DamagedFileError:
            return
        self._check_key(kept.get("key") if isinstance(kept, dict) else None, path)

    def _check_key(self, key: Any, path: Path) -> None:
        if not isinstance(key, dict) or key.get("sweep") != self.fingerprint:
            raise self._another(path)

    def _another(self, path: Path | None = None) -> AnotherSweepError:
        where = "" if path is None else f" in {path.name}"
        return AnotherSweepError(
            f"checkpoint={str(self.directory)!r} holds another sweep{where}: its problem, grid or options "
            "are different; give each sweep a directory of its own, or delete this one"
        )

    def _path(self, chunk: int) -> Path:
        assert self.directory is not None
        return self.directory / f"chunk-{chunk:05d}.pt"


def _read_label(path: Path) -> str | None:
    """The fingerprint in sweep.json, or None if there is none or it cannot be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return str(found["fingerprint"]) if isinstance(found, dict) and "fingerprint" in found else None


def fingerprint(problem: Problem, *rest: object) -> str:
    """A digest of what a sweep computes: the functions as tensor operations, their data, and all options.

    The functions are traced at x0. So a change of what they compute, or of data they close over, changes the digest; a
    change of a name or a comment does not. Their gradients are traced too, because a custom autograd function may
    define its own.

    Args:
        problem: the problem.
        rest: everything else that decides the result; different values must have different `repr`.
    """
    from nupi import __version__

    leaves = {name: leaf.unsqueeze(-1) for name, leaf in problem.start.items()}
    cotangent = torch.ones(problem.size, 1, dtype=problem.dtype, device=problem.device)
    traced = make_fx(lambda batch, theta: pulled_back(problem, batch, theta))(leaves, cotangent)
    constants = dict(traced.named_buffers()) | {
        name: value for name, value in vars(traced).items() if isinstance(value, torch.Tensor)
    }
    groups = [(group.name, repr(group.constraint)) for group in problem.groups]
    return files.digest(
        __version__,
        traced.code,
        *(tensor for _, tensor in sorted(constants.items())),
        *(part for named in problem.start.items() for part in named),
        repr((groups, rest)),
    )
