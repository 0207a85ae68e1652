"""Where a result comes from: when it was finished, and with which version and commit of this code."""

from __future__ import annotations

import datetime as dt
import subprocess
from pathlib import Path

import nupi


def provenance() -> dict[str, str]:
    """The entries "finished" (UTC), "version" and "commit" of a summary.json."""
    now = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
    return {"finished": now, "version": nupi.__version__, "commit": _commit()}


def _commit() -> str:
    """The commit of this code, with a plus where files differ from it; "unknown" outside a clone."""
    try:
        _git("ls-files", "--error-unmatch", Path(__file__).name)  # else a copy, inside somebody else's clone
        changed = "+" if _git("status", "--porcelain", "--", ".") else ""
        return _git("rev-parse", "--short=12", "HEAD") + changed
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(*arguments: str) -> str:
    command = ("git", "-C", str(Path(__file__).parent), *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()  # noqa: S603
