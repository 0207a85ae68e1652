"""A Hugging Face Trainer under constraints: a subclass that notes violations and ascends once an optimizer step.

python examples/huggingface_trainer.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

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
        self.seen: list[torch.Tensor] = []  # by how much each answer of this optimizer step is over the bound

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:  # noqa: FBT001, FBT002 - theirs
        """The Lagrangian, in place of the loss, while training; the plain loss when the model is evaluated."""
        outputs = model(**inputs)
        value = outputs.loss
        if model.training:
            over = outputs.logits.softmax(1)[:, 1] - self.bound
            self.seen.append(over.detach())
            self.plain = value.detach() / self.args.gradient_accumulation_steps
            value = self.lagrangian(value, {"rate": over.mean()})
        return (value, outputs) if return_outputs else value

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """A micro-batch; after the last one before an optimizer step, the multipliers ascend on all that was seen."""
        super().training_step(*args, **kwargs)
        if self.accelerator.sync_gradients:
            over = torch.cat(self.seen)
            self.seen.clear()
            count = torch.tensor(len(over), device=over.device)
            self.lagrangian.ascend(self.dual, {"rate": nupi.Averaged(over.sum(), count)})
        return self.plain  # what is logged is the loss, not the Lagrangian

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """The dual player's part is saved with the primal's, before the file that makes a checkpoint whole."""
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save:
            parts = {"lagrangian": self.lagrangian.state_dict(), "dual": self.dual.state_dict()}
            torch.save(parts, Path(output_dir) / "multipliers.pt")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Called on every rank by `train(resume_from_checkpoint=...)`."""
        if checkpoint is not None:
            file = Path(checkpoint) / "multipliers.pt"
            if not file.exists():
                raise FileNotFoundError(
                    f"{file} is missing, so the multipliers cannot go on from {checkpoint}; was it written with "
                    "save_only_model=True? Resume from a whole checkpoint, or load the model's weights and train anew"
                )
            saved = torch.load(file, self.args.device, weights_only=True)
            self.lagrangian.load_state_dict(saved["lagrangian"])
            self.dual.load_state_dict(saved["dual"])
        super()._load_optimizer_and_scheduler(checkpoint)


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
        learning_rate=3e-3,
        lr_scheduler_type="constant",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        **{"save_strategy": "no", "logging_strategy": "no", "per_device_train_batch_size": 32, **more},
    )
    return ConstrainedTrainer(tiny_model(), arguments, train_dataset=Sentences(512, seed=0), bound=0.3)


def rate(model: BertForSequenceClassification, sentences: Sentences) -> float:
    """The rate of positive answers."""
    with torch.no_grad():
        logits = model.eval()(input_ids=sentences.tokens).logits
    return float(logits.softmax(1)[:, 1].mean())


def main() -> None:
    """Train, and print the rate."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(folder, steps=600)
        trainer.train()
    trained, new = rate(trainer.model, Sentences(512, seed=0)), rate(trainer.model, Sentences(1024, seed=1))
    print(
        f"positive rate {trained:.3f} on the training sentences (at most 0.3 was asked for), {new:.3f} on new ones"
    )
    print(trainer.lagrangian)


if __name__ == "__main__":
    main()
