"""A training run as a user would write it: checkpoints written whole, and continued from if there is one."""

import os
import signal
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import nupi

STEPS, EVERY = 30, 4


def train(folder, die=None, rank=0, world=1, init=None):
    """Train to the end; or until `die`, a step and a point in it, where nothing can be caught any more."""
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=init, rank=rank, world_size=world)

    def point(step, where):
        if (step, where) == die:
            os.kill(os.getpid(), signal.SIGKILL)

    def batch(step):
        draw = torch.Generator().manual_seed(step)
        x = torch.randn(16, 6, generator=draw)
        return (part.chunk(world)[rank] for part in (x, x.sum(1, keepdim=True).sin()))

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    if world > 1:
        model = DistributedDataParallel(model)
    primal = torch.optim.Adam(model.parameters(), lr=1e-2)
    lagrangian = nupi.Lagrangian(
        {"size": nupi.Inequality(), "rows": nupi.Inequality(100), "mean": nupi.Equality()}, reduce="mean"
    )
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.05, kp=1.0, nu=0.5)
    parts = {"model": model, "primal": primal, "lagrangian": lagrangian, "dual": dual}

    checkpoint, start = folder / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        start = saved.pop("step")
        for name, state in saved.items():
            parts[name].load_state_dict(state)

    for step in range(start, STEPS):
        x, y = batch(step)
        out = model(x)
        rows = torch.randint(100, (5,), generator=torch.Generator().manual_seed(step + rank))
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
            if rank == 0:
                content = {"step": step + 1, **{name: part.state_dict() for name, part in parts.items()}}
                torch.save(content, part := checkpoint.with_suffix(".part"))
                if (step, "half a checkpoint") == die:
                    os.truncate(part, part.stat().st_size // 2)
                point(step, "half a checkpoint")
                point(step, "before rename")
                part.replace(checkpoint)
            if world > 1:
                dist.barrier()  # no rank is a checkpoint ahead of the one that can be read

    if world > 1:
        torch.save(lagrangian.state_dict(), folder / f"multipliers{rank}.pt")
        _leave_together(folder, rank, world, init)


def _leave_together(folder, rank, world, init):
    """End when all ranks are done: on a busy machine one rank has hung, for good, as the other took down its group."""
    meeting = init.rpartition("/")[2]
    (folder / f"{meeting}-done{rank}").touch()
    for _ in range(600):
        if all((folder / f"{meeting}-done{each}").exists() for each in range(world)):
            os._exit(0)
        time.sleep(0.1)
    os._exit(1)
