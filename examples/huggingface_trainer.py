"""A Hugging Face Trainer under a constraint: at most 30% of the answers are positive.

python examples/huggingface_trainer.py
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

import nupi
from nupi.integrations.transformers import ConstrainedTrainer


def violations(_: Any, __: Any, outputs: Any) -> dict[str, torch.Tensor]:
    """The rate of positive answers minus its limit."""
    return {"rate": outputs.logits.softmax(1)[:, 1].mean() - 0.3}


def make_trainer(out: Any, steps: int, dual: Any = None, **more: Any) -> ConstrainedTrainer:
    """A trainer for a tiny model, on the CPU."""
    options = {"save_strategy": "no", "logging_strategy": "no", "per_device_train_batch_size": 32, **more}
    arguments = TrainingArguments(
        output_dir=str(out),
        max_steps=steps,
        learning_rate=3e-3,
        lr_scheduler_type="constant",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        **options,
    )
    return ConstrainedTrainer(
        tiny_model(),
        arguments,
        train_dataset=Sentences(512, seed=0),
        eval_dataset=Sentences(256, seed=1),
        constraints={"rate": nupi.Inequality()},
        violations=violations,
        dual=dual,
        tolerance=0.05,
    )


class Sentences(Dataset[dict[str, torch.Tensor]]):
    """Random tokens. Three in four sentences are positive, which their first token shows."""

    def __init__(self, rows: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(4, 32, (rows, 8), generator=generator)
        self.labels = (self.tokens[:, 0] >= 11).long()

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[i], "labels": self.labels[i]}


def tiny_model() -> BertForSequenceClassification:
    """A small BERT, initialised at random."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=32,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertForSequenceClassification(config)


def main() -> None:
    """Train, and print the results of an evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(folder, steps=600)
        trainer.train()
        metrics = trainer.evaluate()
    rate = metrics["eval_nupi/rate/violation"] + 0.3
    print(f"positive rate {rate:.3f} on new sentences (at most 0.3 was asked for)")
    print(trainer.lagrangian)


if __name__ == "__main__":
    main()
