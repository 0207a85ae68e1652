"""Compile a C program, once for each text. The library is cached in the user's temporary directory."""

from __future__ import annotations

import ctypes
import getpass
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from nupi import files
from nupi.solve.native.operations import UnsupportedError

# A product and a sum become one operation if the machine has it, as in torch's matrix products. No option changes the
# treatment of nan and inf.
_FLAGS = ("-O2", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-shared", "-w")
_SECONDS = 60


def compiler() -> str | None:
    """The C compiler: $CC, or the first of cc, gcc and clang that is installed; None without one."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and (found := shutil.which(name)):
            return found
    return None


def load(source: str) -> ctypes.CDLL:
    """Load the library of a program; compile it if it is not in the cache.

    Raises:
        UnsupportedError: if there is no compiler, or it fails.
    """
    using = compiler()
    if using is None:
        raise UnsupportedError("there is no C compiler")
    try:
        path = _folder() / f"{_digest(source, using)}.so"
        if not path.exists():
            _compile(source, using, path)
        return ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError) as error:
        raise UnsupportedError(f"{using} could not compile the step: {error}") from error


def _compile(source: str, using: str, path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        text, made = Path(folder) / "step.c", Path(folder) / "step.so"
        text.write_text(source, encoding="utf-8")
        command = [using, *_FLAGS, "-o", str(made), str(text), "-lm"]
        subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)  # noqa: S603 - a list, no shell
        files.write_bytes(path, made.read_bytes())


def _digest(source: str, using: str) -> str:
    # -march=native gives other instructions on another machine, which may share the directory.
    parts = (source, *_FLAGS, using, _version(using), platform.machine(), _processor())
    return files.digest(*parts)[:32]


@cache
def _version(using: str) -> str:
    return subprocess.run(  # noqa: S603 - a list, no shell
        [using, "--version"], check=True, capture_output=True, text=True, timeout=_SECONDS
    ).stdout


@cache
def _processor() -> str:
    """The features of the processor, as far as the system lists them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


@cache
def _folder() -> Path:
    """A directory that only this user can write to, because the libraries in it are run."""
    folder = Path(tempfile.gettempdir()) / f"nupi-{getpass.getuser()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if hasattr(os, "getuid"):
        status = folder.lstat()
        if folder.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o022:
            return Path(tempfile.mkdtemp(prefix="nupi-"))
    return folder
