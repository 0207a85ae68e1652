"""The Trainer of Hugging Face, with constraints."""

from __future__ import annotations

from transformers import Trainer

from nupi.integrations.transformers.mixin import ConstrainedMixin


class ConstrainedTrainer(ConstrainedMixin, Trainer):  # type: ignore[misc]
    """A `transformers.Trainer` that keeps constraints; see `ConstrainedMixin` for its arguments."""
