"""Test whether torch-pruning can do the surgery of a harvest: remove closed channels, units and heads.

    python -m benchmarks.gates_surgery          # writes results/pruning/surgery.csv

The closed gates are made part of the weights. Then torch-pruning removes the same channels by its dependency graph, and
the outputs are compared with those before, as in `nupi.gates.harvest`. The time limit per network is `SECONDS`.
"""

from __future__ import annotations

import copy
import csv
import importlib
import multiprocessing
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from nupi import gates
from nupi.gates.call import Call
from nupi.gates.densities import gated_layers
from nupi.gates.harvesting.bake import bake
from nupi.gates.harvesting.checks import difference, outputs
from nupi.gates.transformer.blocks import blocks, widths
from nupi.gates.transformer.surgery import open_inputs, tell

if TYPE_CHECKING:
    from torch import nn

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "pruning" / "surgery.csv"
COLUMNS = ("network", "what", "outcome", "difference", "seconds")
SECONDS = 45


def take_out(model: nn.Module, example: torch.Tensor, layer: str, rows: torch.Tensor) -> None:
    """Remove these outputs of a layer, and all that depends on them by torch-pruning's graph."""
    import torch_pruning  # in the extra `bench`

    graph = torch_pruning.DependencyGraph().build_dependency(model, example_inputs=example)
    module = model.get_submodule(layer)
    prune = graph.get_pruner_of_module(module).prune_out_channels
    graph.get_pruning_group(module, prune, idxs=rows.nonzero().flatten().tolist()).prune()


def compared(
    expected: list[torch.Tensor], theirs: nn.Module, ours: nn.Module, example: torch.Tensor
) -> tuple[float, bool]:
    """The largest difference of an output, and whether the network has the same size as nupi's."""
    sizes = [sum(each.numel() for each in model.parameters()) for model in (theirs, ours)]
    return difference(expected, outputs(theirs, Call.of(example))), sizes[0] == sizes[1]


def convolutional(build: Any) -> tuple[float, bool]:
    """The closed channels of one of the small networks of the tests."""
    networks = importlib.import_module("gates.networks")
    images = networks.IMAGES

    model = networks.gated(build).eval()
    closed = {name: ~layer.gate.is_open() for name, layer in gated_layers(model).items()}
    plain = copy.deepcopy(model)
    bake(plain)
    expected = outputs(plain, Call.of(images))
    for layer, which in closed.items():
        if which.all():
            which[0] = False
        take_out(plain, images, layer, which)
    return compared(expected, plain, gates.harvest(model, images, repeats=1).model, images)


def transformer(build: Any, what: str) -> tuple[float, bool]:
    """The closed heads or MLP units of the blocks of a tiny transformer."""
    torch.manual_seed(0)
    model, example = build()
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    heads, mlps = ("*", None) if what == "heads" else (None, "*")
    gates.attach_transformer(
        importlib.import_module("gates.transformers_tiny").lived_in(model), heads=heads, mlps=mlps
    )
    for phi in gates.gate_parameters(model):
        phi.data.copy_(torch.randn_like(phi) * 2 - 1.6)
    stays, plain = open_inputs(model), copy.deepcopy(model).eval()
    bake(plain)
    expected = outputs(plain, Call.of(example))
    for block in [each for each in blocks(plain) if each.user in stays]:
        mask = stays[block.user]
        for maker in block.makers:
            rows = ~mask.repeat_interleave(maker.size).repeat(maker.copies)
            made = widths(plain.get_submodule(maker.name))[1]
            if rows.any() and made == len(rows):  # otherwise it was removed with another layer
                take_out(plain, example, maker.name, rows)
        if block.kind == "heads":
            tell(plain.get_submodule(block.core), block, mask)
    return compared(expected, plain, gates.harvest(model, example, repeats=1).model, example)


def run(network: str, what: str, sender: Any) -> None:
    sys.path.insert(0, str(ROOT / "tests"))
    torch.set_num_threads(1)
    try:
        if what == "channels":
            build = getattr(importlib.import_module("gates.networks"), network)
            sender.send(("ran", convolutional(build)))
        else:
            build = getattr(importlib.import_module("gates.transformers_tiny"), network)
            sender.send(("ran", transformer(build, what)))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the outcome
        sender.send((f"{type(error).__name__}: {error}".splitlines()[0][:120], None))


def outcome(network: str, what: str) -> dict[str, Any]:
    """The result for one network, in its own process."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=run, args=(network, what, sender))
    started = time.monotonic()
    process.start()
    said, gap = receiver.recv() if receiver.poll(SECONDS) else (f"not back after {SECONDS} s", None)
    process.kill()
    process.join()
    if gap is not None:
        gap, same_size = gap
        said = "another size" if not same_size else "equal" if gap <= 1e-5 else "other outputs"
    return {
        "network": network,
        "what": what,
        "outcome": said,
        "difference": "" if gap is None else f"{gap:.1e}",
        "seconds": f"{time.monotonic() - started:.0f}",
    }


def main() -> None:
    sys.path.insert(0, str(ROOT / "tests"))
    asked = [(each.__name__, "channels") for each in importlib.import_module("gates.networks").ARCHITECTURES]
    asked += [
        (each.__name__, what)
        for each in importlib.import_module("gates.transformers_tiny").TRANSFORMERS
        for what in ("units", "heads")
    ]
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for each in asked:
            row = outcome(*each)
            print(row, flush=True)
            writer.writerow(row)


if __name__ == "__main__":
    main()
