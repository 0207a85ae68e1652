"""SelfTuned on many ranks: each measures on its own batch, and all hold the same gains."""

import torch
import torch.distributed as dist
from many_processes.scenarios import net, shard_of
from torch.nn.parallel import DistributedDataParallel

import nupi


def sharded_net():
    """The net with its layers sharded over all ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh, model = init_device_mesh("cpu", (dist.get_world_size(),)), net()
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)
    return model


def trained(optimizer, steps, *, sharded=False):
    """Multipliers, gains and state after some steps of data-parallel training."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model = sharded_net() if sharded else DistributedDataParallel(net())
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


def measured_by_evaluate(*, fails):
    """The response of a x - 1 where each rank gives other data to measure on, or one of them raises."""
    rank = dist.get_rank()
    x = torch.zeros(2, requires_grad=True)
    primal = torch.optim.SGD([x], lr=0.1)
    lagrangian = nupi.Lagrangian({"sum": nupi.Equality()}, reduce="mean")

    def evaluate():
        if fails and rank == 1:
            raise KeyError("no data on this rank")
        return x.square().sum(), {"sum": (1.0 + rank) * x.sum() - 1}

    dual = nupi.SelfTuned(lagrangian.parameters(), steps=8, primal=primal, evaluate=evaluate)
    violations = {"sum": 10 * x.sum() - 1}
    lagrangian.ascend(dual, violations)
    try:
        lagrangian(x.square().sum(), violations)
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return type(error).__name__, dual.gains()["sum"]["response"].item()
    return "nothing", dual.gains()["sum"]["response"].item()


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


def alike(optimizer, steps, *, sharded):
    """The gains after some steps in which all ranks have the same batch, and so the gradient of one process."""
    model = sharded_net() if sharded else net()
    lagrangian = nupi.Lagrangian({"mean": nupi.Inequality(), "gap": nupi.Equality(2)}, reduce="mean").double()
    primal = getattr(torch.optim, optimizer)(model.parameters(), lr=0.05)
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=8, primal=primal)
    for step in range(steps):
        x, y, _ = shard_of(step, 0, 1)
        out = model(x)
        p = out.squeeze(1)
        violations = {
            "mean": p.square().mean() - 0.01,
            "gap": torch.stack([p[:4].mean(), p[4:].mean()]) - 0.2,
        }
        lagrangian.ascend(dual, violations)
        primal.zero_grad()
        lagrangian((out - y).square().mean(), violations).backward()
        primal.step()
    return dict(lagrangian.multipliers), dual.gains()


def rows_of_a_sharded_model():
    """What is raised where rows are to be measured through sharded parameters."""
    model = sharded_net()
    lagrangian = nupi.Lagrangian({"row": nupi.Inequality(8)}, reduce="mean").double()
    primal = torch.optim.SGD(model.parameters(), lr=0.05)
    dual = nupi.SelfTuned(lagrangian.parameters(), steps=8, primal=primal)
    x, y, _ = shard_of(0, dist.get_rank(), dist.get_world_size())
    out = model(x)
    violations = {"row": nupi.Indexed(out[:2, 0], torch.arange(2) + 2 * dist.get_rank())}
    lagrangian.ascend(dual, violations)
    try:
        lagrangian((out - y).square().mean(), violations)
    except TypeError as error:
        return str(error)
    return ""
