"""A Hugging Face Trainer under constraints: a subclass with one method more than usual.

python examples/huggingface_trainer.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

import nupi


class ConstrainedTrainer(Trainer):  # type: ignore[misc]
    """Keeps the rate of positive answers at or below a bound."""

    def __init__(self, *args: Any, bound: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.bound = bound
        # The loss here is a mean over its batch: under accumulation the Trainer is to divide it, which by default it
        # leaves to models that take num_items_in_batch.
        self.model_accepts_loss_kwargs = False
        self.lagrangian = nupi.Lagrangian({"rate": nupi.Inequality()}, reduce="mean").to(self.args.device)
        self.dual = nupi.NuPI(self.lagrangian.parameters(), ki=0.1, kp=1.0, nu=0.9)
        self.add_callback(SaveMultipliers(self))

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:  # noqa: FBT001, FBT002 - theirs
        """The Lagrangian, in place of the loss; while training, the multipliers ascend first."""
        outputs = model(**inputs)
        violations = {"rate": outputs.logits.softmax(1)[:, 1].mean() - self.bound}
        if model.training:
            self.lagrangian.ascend(self.dual, violations)
        value = self.lagrangian(outputs.loss, violations)
        return (value, outputs) if return_outputs else value

    def load_multipliers(self, folder: str | Path) -> None:
        """Call before `train(resume_from_checkpoint=folder)`."""
        saved = torch.load(Path(folder) / "multipliers.pt", weights_only=True)
        self.lagrangian.load_state_dict(saved["lagrangian"])
        self.dual.load_state_dict(saved["dual"])


class SaveMultipliers(TrainerCallback):  # type: ignore[misc]
    """Puts multipliers and controller state into every checkpoint the Trainer writes."""

    def __init__(self, trainer: ConstrainedTrainer) -> None:
        self.trainer = trainer

    def on_save(self, args: TrainingArguments, state: TrainerState, _: TrainerControl, **__: Any) -> None:
        """After the Trainer has written its own part."""
        if state.is_world_process_zero:
            parts = {
                "lagrangian": self.trainer.lagrangian.state_dict(),
                "dual": self.trainer.dual.state_dict(),
            }
            torch.save(parts, Path(args.output_dir) / f"checkpoint-{state.global_step}" / "multipliers.pt")


class Sentences(Dataset[dict[str, torch.Tensor]]):
    """Random tokens; three in four sentences are positive, and their first token tells."""

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


def make_trainer(out: str | Path, steps: int, **more: Any) -> ConstrainedTrainer:
    """A trainer for the tiny model, on the CPU."""
    arguments = TrainingArguments(
        output_dir=str(out),
        max_steps=steps,
        per_device_train_batch_size=32,
        learning_rate=3e-3,
        lr_scheduler_type="constant",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        **{"save_strategy": "no", "logging_strategy": "no", **more},
    )
    return ConstrainedTrainer(tiny_model(), arguments, train_dataset=Sentences(512, seed=0), bound=0.3)


def rate(model: BertForSequenceClassification) -> float:
    """The rate of positive answers on sentences that were not trained on."""
    test = Sentences(1024, seed=1)
    with torch.no_grad():
        logits = model.eval()(input_ids=test.tokens).logits
    return float(logits.softmax(1)[:, 1].mean())


def main() -> None:
    """Train, and print the rate."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(folder, steps=300)
        trainer.train()
    print(f"positive rate {rate(trainer.model):.3f}, at most 0.3 was asked for")
    print(trainer.lagrangian)


if __name__ == "__main__":
    main()
