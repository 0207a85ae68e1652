"""Runs of the constrained Trainer in processes of their own: one that is killed, and two that train together."""

import os
import signal
import warnings
from functools import partial

import torch

import nupi

SAVED, DIES, STEPS, EVERY = 6, 8, 12, 3
NUPI = partial(nupi.NuPI, ki=0.1, kp=1.0, nu=0.9)


def train_and_die(folder, dual):
    """Two micro-batches a step, a checkpoint every few steps, and an end between two of them."""
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    make(folder, dual, dies=True).train()


def make(folder, dual, *, dies=False):
    from examples import huggingface_trainer as example
    from transformers import TrainerCallback

    class Death(TrainerCallback):
        def on_optimizer_step(self, _, state, __, **___):
            if dies and state.global_step == DIES:
                os.kill(os.getpid(), signal.SIGKILL)

    trainer = example.make_trainer(
        folder,
        STEPS,
        dual,
        save_strategy="steps",
        save_steps=EVERY,
        gradient_accumulation_steps=2,
        per_device_train_batch_size=16,
    )
    trainer.add_callback(Death())
    return trainer


def one_batch(folder, *, rows=64, processes=1, batches=1, **more):
    """A run whose every step sees all rows, in one process or more, in one micro-batch or more."""
    from examples import huggingface_trainer as example

    trainer = example.make_trainer(
        folder,
        6,
        NUPI,
        per_device_train_batch_size=rows // processes // batches,
        gradient_accumulation_steps=batches,
        max_grad_norm=0.0,
        logging_strategy="steps",
        logging_steps=1,
        **more,
    )
    trainer.model_accepts_loss_kwargs = False  # its loss is the mean of its micro-batch
    trainer.train_dataset = example.Sentences(rows, seed=0)
    return trainer


def result(trainer):
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    return {
        "model": trainer.model.state_dict(),
        "multiplier": trainer.lagrangian.multipliers["rate"].clone(),
        "xi": trainer.dual.state_dict()["state"][0]["xi"],
        "logged": [(e["loss"], e["nupi/lagrangian"], e["nupi/rate/violation"]) for e in logged],
        "metrics": trainer.evaluate(),
    }


def one_rank(folder, rank):
    """One of two ranks: what it ends with goes to folder/rank0.pt or rank1.pt."""
    trainer = one_batch(folder, processes=2, batches=2, ddp_backend="gloo")
    trainer.train()
    assert trainer.args.world_size == 2
    assert trainer.args.process_index == rank
    assert torch.distributed.get_backend() == "gloo"
    torch.save(result(trainer), folder / f"rank{rank}.pt")
    torch.distributed.destroy_process_group()
