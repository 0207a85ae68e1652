"""A run of the Trainer of the example, in a process of its own that is killed in the middle."""

import os
import signal
import warnings

SAVED, DIES, STEPS, EVERY = 6, 8, 12, 3


def train_and_die(folder):
    """Two micro-batches a step, a checkpoint every few steps, and an end between two of them."""
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    make(folder, dies=True).train()


def make(folder, *, dies=False):
    from examples import huggingface_trainer as example
    from transformers import TrainerCallback

    class Death(TrainerCallback):
        def on_optimizer_step(self, _, state, __, **___):
            if dies and state.global_step == DIES:
                os.kill(os.getpid(), signal.SIGKILL)

    trainer = example.make_trainer(
        folder,
        STEPS,
        save_strategy="steps",
        save_steps=EVERY,
        gradient_accumulation_steps=2,
        per_device_train_batch_size=16,
    )
    trainer.add_callback(Death())
    return trainer
