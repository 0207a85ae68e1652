"""The Trainer of Hugging Face, with constraints."""

from __future__ import annotations

from transformers import Trainer

from nupi.integrations.transformers.mixin import ConstrainedMixin


class ConstrainedTrainer(ConstrainedMixin, Trainer):  # type: ignore[misc]
    """A `transformers.Trainer` with constraints; see `ConstrainedMixin` for its arguments.

    Example:
        >>> import tempfile
        >>> from functools import partial
        >>> import torch
        >>> from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
        >>> import nupi
        >>> config = BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
        >>> data = [{"input_ids": torch.randint(0, 32, (8,)), "labels": 1} for _ in range(64)]
        >>> def violations(model, inputs, outputs):
        ...     return {"rate": outputs.logits.softmax(1)[:, 1].mean() - 0.3}  # at most 30% positive answers
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     args = TrainingArguments(folder, max_steps=4, save_strategy="no", report_to=[], use_cpu=True)
        ...     trainer = ConstrainedTrainer(
        ...         BertForSequenceClassification(config),
        ...         args,
        ...         train_dataset=data,
        ...         constraints={"rate": nupi.Inequality()},
        ...         violations=violations,
        ...         dual=partial(nupi.NuPI, ki=0.1, kp=1.0),  # by default `nupi.SelfTuned`
        ...     )
        ...     _ = trainer.train()  # it prints its progress
        {'train_runtime': ...}
        >>> trainer.lagrangian.multipliers["rate"].item() > 0  # the rate is above 30%
        True
    """
