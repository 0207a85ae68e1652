"""A sharded model that stops and goes on as docs/howto/many_processes.md says: distributed checkpoints, and a file."""

from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from many_processes.scenarios import net, shard_of
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import nupi


def build(seed):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = net()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(seed)  # what is not loaded will show
    fully_shard(model, mesh=mesh)
    # Names with dots, as of layers: torch's functions would take them for parts of parts.
    constraints = {"out.size": nupi.Inequality(), "out.mean": nupi.Equality(init=float(seed))}
    lagrangian = nupi.Lagrangian(constraints, reduce="mean", group=mesh.get_group()).double()
    primal = torch.optim.Adam(model.parameters(), 0.05)
    return model, primal, lagrangian, nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=1.0, nu=0.9)


def train(model, primal, lagrangian, dual, steps):
    for step in steps:
        x, y, _ = shard_of(step, dist.get_rank(), dist.get_world_size())
        out = model(x)
        violations = {"out.size": out.square().mean() - 0.1, "out.mean": out.mean() - 0.2}
        lagrangian.ascend(dual, violations)
        lagrangian((out - y).square().mean(), violations).backward()
        primal.step()
        primal.zero_grad()


def save(folder, model, primal, lagrangian, dual):
    sharded = dict(zip(("model", "primal"), get_state_dict(model, primal), strict=True))
    dcp.save(sharded, checkpoint_id=folder)
    if dist.get_rank() == 0:
        torch.save(
            {"lagrangian": lagrangian.state_dict(), "dual": dual.state_dict()}, folder / "constraints.pt"
        )
    dist.barrier()


def load(folder, model, primal, lagrangian, dual):
    saved = torch.load(folder / "constraints.pt", weights_only=True)
    lagrangian.load_state_dict(saved["lagrangian"])
    dual.load_state_dict(saved["dual"])
    sharded = dict(zip(("model", "primal"), get_state_dict(model, primal), strict=True))
    dcp.load(sharded, checkpoint_id=folder)
    set_state_dict(model, primal, model_state_dict=sharded["model"], optim_state_dict=sharded["primal"])


def everything(model, primal, lagrangian, dual):
    """All numbers of a run, whole on every rank."""
    shards = [*model.parameters(), *(state["exp_avg"] for state in primal.state.values())]
    kept = [value for state in dual.state.values() for value in state.values()]
    return [shard.full_tensor().detach() for shard in shards] + kept + list(lagrangian.multipliers.values())


def sharded(folder):
    """Six steps; and six with a stop after three, gone on with by objects that were built with other numbers."""
    whole = build(0)
    train(*whole, range(6))
    first = build(0)
    train(*first, range(3))
    save(Path(folder), *first)
    again = build(1)
    load(Path(folder), *again)
    train(*again, range(3, 6))
    return everything(*whole), everything(*again)
