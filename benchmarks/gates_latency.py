"""Compare the time that a budget on latency predicts with the time of the harvested network.

For each network and limit: set gates at random, `budget.fit()`, harvest. Then the whole network and the harvested one
are timed in turn. The prediction is `budget.realised()`; the measurement is the ratio of the two times.

    python -m benchmarks.gates_latency            # results/pruning/latency.csv, and the table of docs/gates.md
"""

from __future__ import annotations

import csv
import re
import statistics
from time import process_time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from benchmarks.gates_report import GUIDE, RESULTS
from nupi import gates
from nupi.gates.harvesting.bake import bake
from nupi.gates.harvesting.checks import copied

if TYPE_CHECKING:
    from collections.abc import Callable

LIMITS = (0.8, 0.65, 0.5)
SEEDS = (0, 1, 2)
PAIRS = 40
COLUMNS = ("network", "limit", "seed", "predicted", "measured", "flops", "milliseconds")
HEAD = "| network | budget on time | predicted | measured | FLOPs left | ms, whole network |"
TITLES = {
    "convolutions": "four convolutions, 32 to 128 channels, 16 x 16, batch 32",
    "gpt2": "GPT-2, two layers of width 128, 16 x 32 tokens",
}


def convolutions() -> tuple[nn.Module, torch.Tensor]:
    layers: list[nn.Module] = []
    for i, o, stride in ((3, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2)):
        layers += [nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
    gates.attach(model, ["0", "3", "6", "9"])
    return model, torch.randn(32, 3, 16, 16)


def gpt2() -> tuple[nn.Module, torch.Tensor]:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 128, "n_layer": 2, "n_head": 8, "n_inner": 512, "n_positions": 32, "vocab_size": 64}
    model: Any = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, use_cache=False))
    gates.attach_transformer(model)
    return model, torch.randint(64, (16, 32))


NETWORKS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "convolutions": convolutions,
    "gpt2": gpt2,
}


@torch.no_grad()
def in_turn(models: list[nn.Module], example: torch.Tensor) -> list[float]:
    """The seconds of a forward pass of each network: the median over passes in turn."""
    seconds: list[list[float]] = [[] for _ in models]
    for count in range(PAIRS + 3):
        for model, times in zip(models, seconds, strict=True):
            start = process_time()
            model(example)
            if count >= 3:
                times.append(process_time() - start)
    return [statistics.median(times) for times in seconds]


def rows(network: str, seed: int) -> list[dict[str, Any]]:
    found = []
    torch.manual_seed(seed)
    model, example = NETWORKS[network]()
    model.eval()
    budget = gates.budget(model, example, latency=min(LIMITS))
    start = [torch.randn_like(phi) * 2 - 1.6 for phi in gates.gate_parameters(model)]
    for limit in LIMITS:
        for phi, value in zip(gates.gate_parameters(model), start, strict=True):
            phi.data.copy_(value)
        budget.limit = limit
        budget.fit()
        whole = copied(model)
        bake(whole)
        small = gates.harvest(model, example, repeats=1)
        before, after = in_turn([whole, small.model], example)
        found.append(
            {
                "network": network,
                "limit": limit,
                "seed": seed,
                "predicted": round(budget.realised().item(), 3),
                "measured": round(after / before, 3),
                "flops": round(small.after.flops / small.before.flops, 3),
                "milliseconds": round(1e3 * before, 2),
            }
        )
        print(found[-1], flush=True)
    return found


def table(found: list[dict[str, str]]) -> list[str]:
    """The table of the guide: means over seeds, and the range of the measurements."""
    lines = [HEAD, "|" + " --- |" * (HEAD.count("|") - 1)]
    for network, limit in dict.fromkeys((row["network"], row["limit"]) for row in found):
        runs = [row for row in found if (row["network"], row["limit"]) == (network, limit)]
        mean = {name: statistics.fmean(float(row[name]) for row in runs) for name in COLUMNS[3:]}
        measured = sorted(float(row["measured"]) for row in runs)
        lines.append(
            f"| {TITLES[network]} | {limit} | {mean['predicted']:.2f} | {mean['measured']:.2f} "
            f"({measured[0]:.2f} to {measured[-1]:.2f}) | {mean['flops']:.2f} | {mean['milliseconds']:.1f} |"
        )
    return lines


def read() -> list[dict[str, str]]:
    with (RESULTS / "latency.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def main() -> None:
    torch.set_num_threads(1)
    found = [row for network in NETWORKS for seed in SEEDS for row in rows(network, seed)]
    found.sort(key=lambda row: (row["network"], -row["limit"], row["seed"]))
    with (RESULTS / "latency.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(found)
    new = "\n".join(table(read())) + "\n"
    guide, count = re.subn(rf"{re.escape(HEAD)}\n(\|.*\n)*", lambda _: new, GUIDE.read_text(encoding="utf-8"))
    if count != 1:
        raise ValueError(f"{GUIDE} has {count} tables of this kind, and must have one to replace")
    GUIDE.write_text(guide, encoding="utf-8")
    print(new)


if __name__ == "__main__":
    main()
