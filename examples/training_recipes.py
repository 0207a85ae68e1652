"""Mixed precision, gradient accumulation and gradient clipping with constraints: the usual lines are enough.

The Lagrangian is a scalar, so you can treat it like any loss. The multipliers use the violations themselves, which are
neither scaled nor clipped.

    python examples/training_recipes.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

import nupi

if TYPE_CHECKING:
    from collections.abc import Iterable

Batch = tuple[torch.Tensor, torch.Tensor]


def evaluate(model: nn.Module, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Fit y, with a mean prediction of 0 and a mean square of at most 0.3."""
    x, y = batch
    out = model(x).squeeze(1)
    return (out - y).square().mean(), {"mean": out.mean(), "size": out.square().mean() - 0.3}


def mixed_precision(
    model: nn.Module,
    primal: torch.optim.Optimizer,
    lagrangian: nupi.Lagrangian,
    dual: torch.optim.Optimizer,
    batches: Iterable[Batch],
    scaler: torch.amp.GradScaler,
) -> None:
    """Autocast and a GradScaler. It scales only the Lagrangian; if it skips a step, only the model skips it."""
    for batch in batches:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss, violations = evaluate(model, batch)
        lagrangian.ascend(dual, violations)
        scaler.scale(lagrangian(loss, violations)).backward()
        scaler.step(primal)
        scaler.update()
        primal.zero_grad()


def accumulation(
    model: nn.Module,
    primal: torch.optim.Optimizer,
    lagrangian: nupi.Lagrangian,
    dual: torch.optim.Optimizer,
    batches: Iterable[list[Batch]],
) -> None:
    """Gradients of several micro-batches, then one step of the model and one of the multipliers, on the mean violation.

    The multipliers must not change while gradients accumulate, so `ascend` is after `backward`. Micro-batches are
    weighted by their rows. If some lack a constraint, its violation is averaged over those that have it.
    """
    for micro_batches in batches:
        rows = sum(len(x) for x, _ in micro_batches)
        sums: dict[str, torch.Tensor] = {}
        counts: dict[str, int] = {}
        for batch in micro_batches:
            loss, violations = evaluate(model, batch)
            here = len(batch[0])
            (lagrangian(loss, violations) * (here / rows)).backward()
            for name, violation in violations.items():
                sums[name] = sums.get(name, 0.0) + here * violation.detach()
                counts[name] = counts.get(name, 0) + here
        rows_seen = {name: torch.tensor(counts[name], device=sums[name].device) for name in sums}
        lagrangian.ascend(dual, {name: nupi.Averaged(sums[name], rows_seen[name]) for name in sums})
        primal.step()
        primal.zero_grad()


def clipping(
    model: nn.Module,
    primal: torch.optim.Optimizer,
    lagrangian: nupi.Lagrangian,
    dual: torch.optim.Optimizer,
    batches: Iterable[Batch],
    max_norm: float = 1.0,
) -> None:
    """The gradient of the model is clipped. That of a multiplier is its violation, and is not clipped."""
    for batch in batches:
        loss, violations = evaluate(model, batch)
        lagrangian.ascend(dual, violations)
        lagrangian(loss, violations).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        primal.step()
        primal.zero_grad()


def problem() -> tuple[nn.Module, torch.optim.Optimizer, nupi.Lagrangian, nupi.NuPI]:
    """A small network and its constraints, the same every time."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    lagrangian = nupi.Lagrangian({"mean": nupi.Equality(), "size": nupi.Inequality()})
    primal = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, primal, lagrangian, nupi.NuPI(lagrangian.parameters(), ki=0.02, kp=0.5, nu=0.5)


def draw(steps: int, rows: int = 32) -> list[Batch]:
    """Batches of a problem whose unconstrained answer breaks both constraints."""
    generator = torch.Generator().manual_seed(1)
    xs = torch.randn(steps, rows, 4, generator=generator)
    return [(x, x[:, 0] + 0.5) for x in xs]


def main() -> None:
    """Train in each of the three ways, and print the violations at the end."""
    batches = draw(1500)
    pairs = [batches[i : i + 2] for i in range(0, len(batches), 2)]

    parts = problem()
    mixed_precision(*parts, batches, torch.amp.GradScaler("cpu"))
    report("mixed precision", parts[0])

    parts = problem()
    accumulation(*parts, pairs)
    report("accumulation", parts[0])

    parts = problem()
    clipping(*parts, batches)
    report("clipping", parts[0])


def report(name: str, model: nn.Module) -> None:
    """Print the violations of a trained model on rows it has not seen."""
    with torch.no_grad():
        _, violations = evaluate(model, draw(1, rows=4096)[0])
    seen = ", ".join(f"{key} {value.item():+.3f}" for key, value in violations.items())
    print(f"{name:>15}: {seen}  (mean should be 0, size at most 0)")


if __name__ == "__main__":
    main()
