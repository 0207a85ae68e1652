"""Get a data set once, check it, and keep it.

Sources are asked in order; the first whose files have the right hashes wins. The files are gathered in a
folder beside the cache and moved into it in one rename, so a killed download leaves nothing that could be
taken for data. Once cached nothing is asked of the network again.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

NETWORK_SECONDS = 20
CLIENT_SECONDS = 600
LITTER_SECONDS = 6 * 3600


class SourceError(RuntimeError):
    """One source could not give the data; the next one is asked."""


class DataUnavailableError(RuntimeError):
    """No source could give the data; the message lists what was tried and what to do."""


@dataclass(frozen=True)
class Source:
    """A place a data set can be had from.

    Args:
        name: how messages call it.
        fill: puts the data set's files into the folder it is given, or raises `SourceError` or `OSError`.
    """

    name: str
    fill: Callable[[Path], None]


def cache_folder() -> Path:
    """Where data sets are kept: `$NUPI_CACHE`, else `nupi` in the user's cache directory."""
    if own := os.environ.get("NUPI_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(base) if base else Path.home() / ".cache") / "nupi"


def obtain(
    name: str,
    files: Mapping[str, str],
    sources: Sequence[Source],
    *,
    advice: str,
    cache: Path | None = None,
    refresh: bool = False,
) -> Path:
    """The folder that holds the data set, taken from the cache or else from the first source that has it.

    Args:
        name: the data set's name, and its folder's in the cache.
        files: file name to sha256, of the files every source must come to.
        sources: the places to ask, in order.
        advice: what the user can do when none of them answers.
        cache: where to keep it; `cache_folder()` unless given.
        refresh: ask the sources even if the data set is cached.

    Raises:
        DataUnavailableError: no source gave files with these hashes. The cache is as it was.
    """
    cache = cache_folder() if cache is None else cache
    home = cache / name
    if not refresh and fault(home, files) is None:
        return home
    try:
        cache.mkdir(parents=True, exist_ok=True)
        _sweep(cache, name)
        with tempfile.TemporaryFile(dir=cache):
            pass
    except OSError as error:
        raise DataUnavailableError(
            f"the data set {name!r} cannot be kept in {cache}: {error.strerror}. Set NUPI_CACHE to a folder of yours"
        ) from None
    reasons = []
    for source in sources:
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=cache) as gathered:
            draft = Path(gathered) / name
            draft.mkdir()
            try:
                source.fill(draft)
            except (OSError, SourceError, http.client.HTTPException) as error:
                reasons.append(f"{source.name}: {str(error) or type(error).__name__}")
                continue
            if wrong := fault(draft, files):
                reasons.append(f"{source.name}: {wrong}")
                continue
            _replace(draft, home)
            return home
    tried = "".join(f"\n  - {reason}" for reason in reasons)
    raise DataUnavailableError(f"the data set {name!r} could not be had. Tried:{tried}\n{advice}")


def fault(folder: Path, files: Mapping[str, str]) -> str | None:
    """What is wrong with the files in `folder`, or None when each is there with its hash."""
    for name, expected in files.items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        found = sha256(folder / name)
        if found != expected:
            return f"{name} has sha256 {found}, not {expected}"
    return None


def sha256(path: Path) -> str:
    """The file's sha256, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def download(address: str, path: Path) -> None:
    """Write what is at an https address to `path`."""
    if not address.startswith("https://"):
        raise ValueError(f"address={address!r} must start with https://")
    with urllib.request.urlopen(address, timeout=NETWORK_SECONDS) as answer, path.open("wb") as file:  # noqa: S310
        shutil.copyfileobj(answer, file)


def from_client(command: Sequence[str], pattern: str, expected: str, folder: Path) -> Path:
    """Let a package client put one archive into `folder`, and give back the archive if its hash is right.

    Args:
        command: the client and its arguments; it is run inside `folder`.
        pattern: a glob that the archive's file name matches.
        expected: the archive's sha256.
        folder: where the archive goes.

    Raises:
        SourceError: the client is not installed, failed, or gave something else.
    """
    try:
        done = subprocess.run(  # noqa: S603
            command, cwd=folder, capture_output=True, text=True, timeout=CLIENT_SECONDS, check=False
        )
    except FileNotFoundError:
        raise SourceError(f"the command {command[0]!r} is not installed") from None
    except subprocess.TimeoutExpired:
        raise SourceError(f"no answer within {CLIENT_SECONDS} s") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()
        raise SourceError(f"the client exited with {done.returncode}: {said[-1]}")
    archives = sorted(folder.glob(pattern))
    if len(archives) != 1:
        raise SourceError(f"the client left {len(archives)} files like {pattern}, not one")
    if (found := sha256(archives[0])) != expected:
        raise SourceError(f"{archives[0].name} has sha256 {found}, not {expected}")
    return archives[0]


def _replace(draft: Path, home: Path) -> None:
    """Put a checked folder in its place; what stood there before goes away only once the new one is whole."""
    if home.exists():
        home.replace(draft.with_name("old"))  # the enclosing temporary folder takes it away
    try:
        draft.replace(home)
    except OSError:
        if not home.exists():  # unless another process was first, with the same files
            raise


def _sweep(cache: Path, name: str) -> None:
    """Remove what a killed download of long ago has left; a recent one may still be under way."""
    for litter in cache.glob(f".{name}-*"):
        if time.time() - litter.stat().st_mtime > LITTER_SECONDS:
            shutil.rmtree(litter, ignore_errors=True)
