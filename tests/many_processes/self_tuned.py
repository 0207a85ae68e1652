"""SelfTuned on many ranks: each measures on its own batch, and all hold the same gains."""

import torch
import torch.distributed as dist
from many_processes.scenarios import net, shard_of
from torch.nn.parallel import DistributedDataParallel

import nupi


def trained(optimizer, steps):
    """Multipliers, gains and state after some steps of data-parallel training."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(net())
    constraints = {"mean": nupi.Inequality(), "gap": nupi.Equality(3)}
    lagrangian = nupi.Lagrangian(constraints, reduce="mean").double()
    primal = getattr(torch.optim, optimizer)(model.parameters(), lr=0.05)
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=8, primal=primal)
    for step in range(steps):
        x, y, g = shard_of(step, rank, world)
        out = model(x)
        p = out.squeeze(1)
        inside = torch.stack([(g == group).double() for group in range(3)])
        sums = inside @ p - p.mean() * inside.sum(1)
        violations = {"mean": p.square().mean() - 0.1, "gap": nupi.Averaged(sums, inside.sum(1))}
        lagrangian.ascend(dual, violations)
        primal.zero_grad()
        lagrangian((out - y).square().mean(), violations).backward()
        primal.step()
    return dict(lagrangian.multipliers), dual.gains(), list(dual.state_dict()["state"].values())


def one_rank_cannot_measure():
    """What each rank raises where one of them has a loss that cannot be differentiated."""
    x = torch.zeros(2, requires_grad=True)
    primal = torch.optim.SGD([x], lr=0.1)
    lagrangian = nupi.Lagrangian({"sum": nupi.Equality()}, reduce="mean")
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=8, primal=primal)
    violations = {"sum": x.sum() - 1}
    lagrangian.ascend(dual, violations)
    loss = x.square().sum()
    if dist.get_rank() == 1:
        loss.register_hook(lambda _: 1 / 0)
    try:
        lagrangian(loss, violations)
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return type(error).__name__, dual.gains()["sum"]["response"].item()
    return "nothing", 0.0


def responses(reduce):
    """What is measured for a x - 1 with |a|^2 = 5, which every rank has alike, as a tensor and as a row."""
    x = torch.zeros(2, requires_grad=True)
    primal = torch.optim.SGD([x], lr=0.1)
    found = {}
    for kind in ("tensor", "row"):
        lagrangian = nupi.Lagrangian({"c": nupi.Equality()}, reduce=reduce)
        dual = nupi.SelfTuned(lagrangian.parameters(), steps=8, primal=primal)
        values = (torch.tensor([[1.0, 2.0]]) @ x) - 1
        violations = {"c": values if kind == "tensor" else nupi.Indexed(values, torch.tensor([0]))}
        lagrangian.ascend(dual, violations)
        lagrangian(x.square().sum(), violations)
        found[kind] = dual.gains()["c"]["response"].item()
    return found
