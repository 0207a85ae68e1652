"""How the mixin gets the outputs of a Trainer's forward pass, and changes the loss before `backward`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def outputs_of(model: torch.nn.Module, *, training: bool) -> Iterator[list[Any]]:
    """Collect what the model returns inside this block; in training, only outputs with a graph.

    `compute_loss(return_outputs=True)` also returns outputs, but not always those of the loss: TRL's trainers recompute
    them without a graph, or return metrics. A forward hook gets the tensors themselves.
    """
    found: list[Any] = []

    def note(_: Any, __: Any, outputs: Any) -> None:
        if torch.is_grad_enabled() or not training:
            found.append(outputs)

    handle = model.register_forward_hook(note)
    try:
        yield found
    finally:
        handle.remove()


@contextmanager
def loss_changed(accelerator: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Make `accelerator.backward(loss)` differentiate `change(loss)` inside this block.

    At this point the loss already has all divisions by the Trainer, which differ between versions and trainers. The
    loss that `training_step` returns and the Trainer logs does not change.
    """
    before = vars(accelerator).get("backward")
    backward = accelerator.backward
    accelerator.backward = lambda loss, **kwargs: backward(change(loss), **kwargs)
    try:
        yield
    finally:
        del accelerator.backward
        if before is not None:
            accelerator.backward = before
