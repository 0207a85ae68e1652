"""How the mixin gets between a Trainer and its model: the outputs of a forward pass, and the loss before `backward`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def outputs_of(model: torch.nn.Module, *, training: bool) -> Iterator[list[Any]]:
    """Collect what the model returns inside of this block; while training, only what has a graph.

    A Trainer can be asked for the outputs (`compute_loss(return_outputs=True)`), but not all of them answer with what
    the loss was made of: TRL's recompute them without a graph, or return metrics. A forward hook sees the very tensors.
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
    """Have `accelerator.backward(loss)` go back from `change(loss)` inside of this block.

    There the loss has been divided by all that a Trainer divides it by, which differs from version to version and from
    trainer to trainer. The loss that `training_step` returns, and the Trainer logs, stays the plain one.
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
