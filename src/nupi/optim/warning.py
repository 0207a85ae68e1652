"""Warnings that point at the user's line, however many calls of ours and of torch's lie between."""

from __future__ import annotations

import sys
import warnings

_INSIDE = ("nupi", "torch")


def warn_user(message: str, kind: type[Warning] = UserWarning) -> None:
    """Warn with the nearest line that is neither ours nor torch's as the source."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, kind, stacklevel=level)
