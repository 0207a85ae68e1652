"""A training run as a user would write it: checkpoints written whole, continued from if there is one.

    python loop.py FOLDER [--die STEP WHERE] [--rank R --world W --init URL]

`--die` makes it kill itself, with the signal that nothing can catch, at a named point of a step.
"""

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import nupi

STEPS, EVERY = 30, 4


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--die", nargs=2, default=(-1, ""))
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world", type=int, default=1)
    parser.add_argument("--init")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.world > 1:
        dist.init_process_group("gloo", init_method=options.init, rank=options.rank, world_size=options.world)

    def point(step, where):
        if (step, where) == (int(options.die[0]), options.die[1]):
            os.kill(os.getpid(), signal.SIGKILL)

    def batch(step):
        draw = torch.Generator().manual_seed(step)
        x = torch.randn(16, 6, generator=draw)
        return (part.chunk(options.world)[options.rank] for part in (x, x.sum(1, keepdim=True).sin()))

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    if options.world > 1:
        model = DistributedDataParallel(model)
    primal = torch.optim.Adam(model.parameters(), lr=1e-2)
    lagrangian = nupi.Lagrangian(
        {"size": nupi.Inequality(), "rows": nupi.Inequality(100), "mean": nupi.Equality()}, reduce="mean"
    )
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.05, kp=1.0, nu=0.5)
    parts = {"model": model, "primal": primal, "lagrangian": lagrangian, "dual": dual}

    checkpoint, start = options.folder / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        start = saved.pop("step")
        for name, state in saved.items():
            parts[name].load_state_dict(state)

    for step in range(start, STEPS):
        x, y = batch(step)
        out = model(x)
        rows = torch.randint(100, (5,), generator=torch.Generator().manual_seed(step + options.rank))
        violations = {
            "size": out.square().mean() - 0.1,
            "rows": nupi.Indexed(out.squeeze(1)[:5] - 0.2, rows),
            "mean": out.mean() - 0.05,
        }
        point(step, "before ascend")
        lagrangian.ascend(dual, violations)
        point(step, "after ascend")
        primal.zero_grad()
        lagrangian((out - y).square().mean(), violations).backward()
        point(step, "after backward")
        primal.step()
        if (step + 1) % EVERY == 0 or step + 1 == STEPS:
            if options.rank == 0:
                content = {"step": step + 1, **{name: part.state_dict() for name, part in parts.items()}}
                torch.save(content, part := checkpoint.with_suffix(".part"))
                if (step, "half a checkpoint") == (int(options.die[0]), options.die[1]):
                    os.truncate(part, part.stat().st_size // 2)
                point(step, "half a checkpoint")
                point(step, "before rename")
                part.replace(checkpoint)
            if options.world > 1:
                dist.barrier()  # no rank is a checkpoint ahead of the one that can be read

    if options.world > 1:
        torch.save(lagrangian.state_dict(), options.folder / f"multipliers{options.rank}.pt")
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
