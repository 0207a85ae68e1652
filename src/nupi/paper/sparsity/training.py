"""Train one network under a density constraint: the run behind every sparsity figure and table.

All runs of a seed start from one checkpoint, the network after a few dense epochs. A run keeps where it stands once a
minute, at the end of an epoch: one that was killed goes on from there, and ends bit for bit as if it had not been.
"""

from __future__ import annotations

import functools
import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import avg_pool2d, cross_entropy, pad

from nupi import files, gates
from nupi.paper import jobs
from nupi.paper.data import cifar10
from nupi.paper.sparsity import authors
from nupi.paper.sparsity.descent import Descent, weight_optimizer
from nupi.paper.sparsity.methods import Dual
from nupi.paper.sparsity.resnet import GATED, ResNet18
from nupi.paper.sparsity.scales import Experiment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn

VERSION = "3"
"""Change it when `train` or `warm_up` computes something else: results kept under another one are not used."""

SECONDS_BETWEEN_SAVES = 60.0
CHUNK = 500  # images at a time where nothing is trained


def warm_up(*, seed: int, setting: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The weights of a dense network after the warm-up epochs."""
    size = Experiment(**setting)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        plain = ResNet18(size.width, max_pool=size.max_pool)
        if size.start == "fan out":
            authors.start_by_fan_out(plain)
        model = on_device(plain)
        optimizer = weight_optimizer([{"params": list(model.parameters())}], size)
        for _ in range(size.warm_up):
            for images, labels in batches(size):
                cross_entropy(model(images), labels).backward()
                optimizer.step()
                optimizer.zero_grad()
    return {name: tensor.cpu() for name, tensor in model.state_dict().items()}


def warm_up_path(runs: Path, seed: int, setting: Mapping[str, Any]) -> Path:
    """Where the jobs keep the checkpoint that the runs of a seed start from."""
    return jobs.Job(warm_up, {"seed": seed, "setting": dict(setting)}, runs, VERSION).path


def train(
    *,
    seed: int,
    epsilon: float,
    layerwise: bool,
    dual: Mapping[str, Any],
    setting: Mapping[str, Any],
    runs: str,
) -> dict[str, Any]:
    """Train from a checkpoint and give back what the run came to.

    Args:
        seed: of the order of the images and of the gates' samples.
        epsilon: the largest density allowed.
        layerwise: whether each layer has a constraint of its own.
        dual: the dual player, as `Dual.settings` has it.
        setting: the size of the experiment, as a dictionary.
        runs: the folder of the jobs' results, where the checkpoint of this seed is (`warm_up` made it).

    Returns:
        The final accuracies (evaluation mode and median gates, unless the experiment has it otherwise), densities of
        all kinds, and multipliers; curves of the violations and the multipliers that the step was taken with, at the
        steps in `step`; seconds of a processor.
    """
    started = time.process_time()
    size, player, folder = Experiment(**setting), Dual(**dual), Path(runs)
    asked = {
        "seed": seed,
        "epsilon": epsilon,
        "layerwise": layerwise,
        "dual": dict(dual),
        "setting": dict(setting),
    }
    job = jobs.Job(train, asked, folder, VERSION)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = ResNet18(size.width, max_pool=size.max_pool)
        model.load_state_dict(files.load_checked(warm_up_path(folder, seed, setting))["value"])
        model = gated(model, size)
        run = Descent(model, size, player, epsilon, layerwise=layerwise)
        seconds = descend(run, size, progress=job.progress)
        train_accuracy, test_accuracy = accuracies(model, size)
        if size.accuracy == "averaged":
            train_accuracy = run.average_accuracy
    with torch.no_grad():
        model.eval()
        final = {
            "density": gates.density(model).cpu(),
            "realised_density": gates.density(model, kind="realised").cpu(),
            "layer_densities": gates.layer_densities(model).cpu(),
            "realised_layer_densities": gates.layer_densities(model, kind="realised").cpu(),
        }
    return {
        **final,
        **run.curves(),
        "train_accuracy": train_accuracy,
        "test_accuracy": test_accuracy,
        "seconds": time.process_time() - started + seconds,
    }


def gated(model: ResNet18, size: Experiment) -> ResNet18:
    """The network with the experiment's gates, where it is trained."""
    gates.attach(model, GATED, place=size.place, droprate_init=size.droprate_init, clamp=size.clamp)
    if size.divide:
        authors.divide_gated_weights(model, size.droprate_init)
    return on_device(model)


def descend(
    run: Descent, size: Experiment, *, steps: int | None = None, progress: Path | None = None
) -> float:
    """Take so many steps, all unless given; returns the processor seconds that went into it before it was killed.

    Args:
        run: at its start.
        size: of the experiment.
        steps: how many.
        progress: the file to go on from, if it is there, and to keep where the run stands in.
    """
    before, started = 0.0, time.process_time()
    if progress is not None and (saved := files.recall(progress)) is not None:
        run.load_state_dict(saved.value["run"])
        before = saved.value["seconds"]
    last, kept = size.steps if steps is None else steps, time.monotonic()
    while run.step < last:
        run.epoch(itertools.islice(batches(size), last - run.step))
        if progress is not None and time.monotonic() - kept >= SECONDS_BETWEEN_SAVES:
            spent = before + time.process_time() - started
            files.keep(progress, progress.name, {"run": run.state_dict(), "seconds": spent})
            kept = time.monotonic()
    return before


def batches(size: Experiment) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """One pass over the training images in random order."""
    images, labels = data(size)[0]
    for rows in torch.randperm(len(labels)).to(labels.device).split(size.batch):
        yield shifted_and_mirrored(images[rows]) if size.augment else images[rows], labels[rows]


def shifted_and_mirrored(images: torch.Tensor, most: int = 4) -> torch.Tensor:
    """Each image moved by up to `most` pixels either way, what comes in being black, and mirrored half of the time."""
    count, _, height, width = images.shape
    black = cifar10.standardised(torch.zeros(1, 3, 1, 1)).to(images)
    framed = pad(images - black, (most,) * 4) + black
    # Drawn on the host, where batches are shuffled too: the same on any device.
    down, right = torch.randint(2 * most + 1, (2, count, 1)).to(images.device)
    rows, columns = down + torch.arange(height).to(down), right + torch.arange(width).to(right)
    columns = torch.where(torch.rand(count, 1).to(images.device) < 0.5, columns, columns.flip(1))
    every = torch.arange(count, device=images.device).view(-1, 1, 1)
    moved = framed[every, :, rows.unsqueeze(2), columns.unsqueeze(1)]
    return moved.permute(0, 3, 1, 2)


def accuracies(model: nn.Module, size: Experiment) -> tuple[float, float]:
    """The share of training and of test images that get their class, with the median gates."""
    model.eval()
    found = []
    with torch.no_grad():
        for images, labels in data(size):
            right = [
                (model(some).argmax(1) == classes).sum()
                for some, classes in zip(images.split(CHUNK), labels.split(CHUNK), strict=True)
            ]
            found.append(torch.stack(right).sum().item() / len(labels))
    return found[0], found[1]


@functools.lru_cache(maxsize=1)
def data(size: Experiment) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Images and classes to train with and to test with, on the device, at the setting's size."""
    loaded = cifar10.load()

    def smaller(split: cifar10.Split, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        full = cifar10.standardised(split.images[:count])
        images = avg_pool2d(full, cifar10.SIDE // size.side)
        return images.to(device(), memory_format=layout(size.width)), split.labels[:count].to(device())

    return smaller(loaded.train, size.images), smaller(loaded.test, len(loaded.test))


def device() -> torch.device:
    """The accelerator if there is one."""
    return torch.accelerator.current_accelerator() or torch.device("cpu")


def on_device(model: ResNet18) -> ResNet18:
    """The model where it is trained, in the layout that its convolutions are fastest in."""
    width = model.head.in_features // 8
    return model.to(device(), memory_format=layout(width))  # type: ignore[call-overload,no-any-return]


def layout(width: int) -> torch.memory_format:
    """Channels last, a third faster from width 16 on; below 8 torch's CPU kernels for it corrupt memory (2.13)."""
    return torch.channels_last if width >= 16 else torch.contiguous_format
