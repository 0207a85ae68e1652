"""The model's gradient where only the last rank has anyone of the constrained group; rates over shards."""

from functools import reduce
from operator import add

import torch
import torch.distributed as dist
from many_processes.scenarios import net, shard_of
from torch.nn.parallel import DistributedDataParallel

import nupi
from nupi.distributed import total
from nupi.rates import StatisticalParity, Tally

THETA = 3.0
WAYS = ("absent", "averaged", "total")


def group_2_on_one_rank(way):
    """One step in which group 2 is bounded, given in one of the `WAYS`: the gradient, and where the multiplier went."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x, y, g = shard_of(0, rank, world)
    inside = (g == 2).double()
    assert bool(inside.any()) == (rank == world - 1), "only the last rank has anyone of group 2"
    lagrangian = nupi.Lagrangian({"two": nupi.Equality(init=THETA)}, reduce="mean").double()
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1)
    model = DistributedDataParallel(net())
    out = model(x)
    sums, counts = (out.squeeze(1) - 0.3) @ inside, inside.sum()
    if way == "absent":
        violations = {"two": sums / counts} if counts else {}
    elif way == "averaged":
        violations = {"two": nupi.Averaged(sums, counts)}
    else:
        violations = {"two": total(sums) / total(counts).clamp(min=1)}
    lagrangian((out - y).square().mean(), violations).backward()
    lagrangian.ascend(dual, violations)
    gradient = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    return gradient, lagrangian.multipliers["two"]


def of_a_gradient(weights, x):
    """Each rank's part of a loss that has a gradient in it, made of a total: the gradient of it all in its own x."""
    rank = dist.get_rank()
    here = x[rank].clone().requires_grad_()
    loss = weights[rank] * total(here).pow(3).sum()
    (slope,) = torch.autograd.grad(loss, here, create_graph=True)
    (weights[rank] * slope.square().sum()).backward()
    return here.grad


def scores(rank):
    """The chunks of one rank's loader: logits, labels and groups. The ranks have groups in different numbers."""
    draw = torch.Generator().manual_seed(rank)
    return [
        (torch.randn(n, generator=draw), None, torch.arange(n) % (3 if n > 5 else 2))
        for n in (4, 5 + 2 * rank, 8)
    ]


def parity(way, how):
    """Where the multipliers of parity go in one step of size 1, when it is given in one of several ways."""
    criterion = StatisticalParity(groups=3)
    tallies = [criterion.tally(*chunk) for chunk in scores(dist.get_rank())]
    here = reduce(add, (Tally(tally.rows.double(), tally.predictions.double()) for tally in tallies))
    joined = Tally(total(here.rows), total(here.predictions)).gaps("overall")
    given = {"own": here.gaps("overall"), "joined": joined, "tensor": joined.values}[way]
    lagrangian = nupi.Lagrangian({"parity": nupi.Equality(criterion.size)}, reduce=how).double()
    lagrangian.ascend(nupi.NuPI(lagrangian.parameters(), ki=1.0), {"parity": given})
    return lagrangian.multipliers["parity"]
