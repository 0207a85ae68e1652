"""What every rank does in the tests of this folder. Each function runs in a process of its own."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import nupi
from nupi.distributed import total

LARGE = 5_000  # multipliers: more than fit the first message
STEPS = 6


def constraints():
    return {
        "rate": nupi.Inequality(3),
        "norm": nupi.Equality(),
        "table": nupi.Equality((4, 2)),
        "scalar": nupi.Equality(()),
        "rows": nupi.Inequality(40),
        "large": nupi.Inequality(LARGE),
        "wide": nupi.Equality(LARGE),
        "many": nupi.Equality((LARGE, 2)),
    }


def problem(reduce="mean", **more):
    lagrangian = nupi.Lagrangian({**constraints(), **more}, reduce=reduce)
    return lagrangian, nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=1.0, nu=0.3)


def seen_by(rank, step):
    """What one rank sees in one step: the kinds and sizes are fixed, the numbers and the sparsity are not."""
    draw = torch.Generator().manual_seed(1000 * step + rank)

    def randn(*shape):
        return torch.randn(shape, generator=draw)

    def indexed(rows, count, *shape):
        return nupi.Indexed(randn(count, *shape), torch.randint(rows, (count,), generator=draw))

    counts = torch.randint(5, (3,), generator=draw)
    counts[0] = 0 if rank == 1 else counts[0]  # rank 1 never sees anyone of group 0
    counts[1] = 0 if step % 2 else counts[1]  # and group 1 is often seen by nobody
    sums = torch.where(counts > 0, randn(3), torch.nan)  # an empty group's sum may be anything
    return {
        "rate": nupi.Averaged(sums, counts),
        "norm": randn(),
        "table": randn(4, 2),
        "scalar": randn(),
        "rows": indexed(40, 3 + rank),
        "large": indexed(LARGE, 5 * rank),  # rank 0 has none
        "wide": nupi.Averaged(randn(LARGE), torch.randint(2, (LARGE,), generator=draw)),
        "many": indexed(LARGE, 2, 2),
    }


def state(lagrangian, dual):
    return {"multipliers": lagrangian.state_dict(), "dual": dual.state_dict()["state"]}


def train_multipliers(reduce, kinds):
    """Each rank names its violations in an order of its own."""
    rank = dist.get_rank()
    lagrangian, dual = problem(reduce)
    for step in range(STEPS):
        violations = {name: v for name, v in seen_by(rank, step).items() if name in kinds}
        names = sorted(violations, reverse=bool(rank % 2))
        lagrangian.ascend(dual, {name: violations[name] for name in names})
    return state(lagrangian, dual)


def some_are_absent():
    """Rank 0 has "norm" and "rows", the last rank "table" and "large", and those between nothing at all."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    mine = {0: ("norm", "rows"), last: ("table", "large")}.get(rank, ())
    lagrangian, dual = problem()
    for step in range(STEPS):
        seen = seen_by(rank, step)
        lagrangian.ascend(dual, {name: seen[name] for name in mine})
    return state(lagrangian, dual)


def one_rank_refuses(what):
    """After two good steps the last rank has something wrong; then one more good step."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    lagrangian, dual = problem()
    for step in range(2):
        lagrangian.ascend(dual, seen_by(rank, step))
    before = [value.clone() for value in _tensors(lagrangian, dual)]
    wrong = {
        "nan": {"norm": torch.tensor(torch.nan)},
        "inf in large rows": {"large": nupi.Indexed(torch.tensor([torch.inf]), torch.tensor([3]))},
        "nan sum": {"rate": nupi.Averaged(torch.full((3,), torch.nan), torch.ones(3))},
        "shape": {"table": torch.zeros(3)},
        "name": {"tabel": torch.zeros(4, 2)},
        "index": {"rows": nupi.Indexed(torch.ones(1), torch.tensor([40]))},
        "count": {"rate": nupi.Averaged(torch.zeros(3), torch.tensor([1, -1, 1]))},
        "kind": {"rows": torch.zeros(40)},
        "no mapping": None,
    }
    violations = seen_by(rank, 2)
    error = None
    try:
        if rank == last and what == "dual":
            lagrangian.ascend(torch.optim.SGD(lagrangian.parameters(), 0.1), violations)
        elif rank == last and what == "another dual":
            lagrangian.ascend(
                nupi.NuPI([lagrangian.get_parameter("norm")], 0.1), {"norm": violations["norm"]}
            )
        elif rank == last:
            lagrangian.ascend(dual, violations | wrong[what] if wrong[what] is not None else [torch.zeros(3)])
        else:
            lagrangian.ascend(dual, violations)
    except Exception as caught:  # noqa: BLE001 - whatever it is, the test is about it
        error = (type(caught).__name__, str(caught))
    kept = all(torch.equal(a, b) for a, b in zip(before, _tensors(lagrangian, dual), strict=True))
    lagrangian.ascend(dual, seen_by(rank, 3))
    return {"error": error, "kept": kept, "after": state(lagrangian, dual)}


def another_problem(what):
    """Ranks that were built differently: refused at the first step, by all."""
    rank = dist.get_rank()
    if what == "constraints":
        lagrangian, dual = problem(**({"extra": nupi.Equality()} if rank else {}))
    elif what == "reduce":
        lagrangian, dual = problem("sum" if rank else "mean")
    else:
        lagrangian, dual = problem(start=nupi.Equality(2, init=float(rank)))
    try:
        lagrangian.ascend(dual, {"norm": torch.tensor(1.0)})
    except ValueError as error:
        return str(error)
    return None


def collectives(reduce, kinds):
    """How many collectives a step takes once the ranks have agreed."""
    rank = dist.get_rank()
    lagrangian, dual = problem(reduce)
    lagrangian.ascend(dual, {})
    violations = {name: v for name, v in seen_by(rank, 0).items() if name in kinds}
    with Calls() as calls:
        lagrangian.ascend(dual, violations)
    return calls.names


class Calls(TorchDispatchMode):
    """The collectives that are called within it, by name."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def rows(step):
    """The joined batch of a step: features, targets, and the group of each row."""
    draw = torch.Generator().manual_seed(step)
    x = torch.randn(24, 5, generator=draw, dtype=torch.float64)
    return x, x.sum(1, keepdim=True).sin(), torch.randint(3, (24,), generator=draw)


def shard_of(step, rank, world):
    """Equal shards for the loss; but all rows of group 2 are on the last ranks."""
    x, y, g = rows(step)
    order = torch.argsort((g == 2).int(), stable=True)
    return tuple(part[order].chunk(world)[rank] for part in (x, y, g))


def tally(out, groups):
    """By group, the sum of the predictions and how many there are."""
    member = nn.functional.one_hot(groups, 3).to(out.dtype)
    return out.squeeze(1) @ member, member.sum(0)


def evaluate(model, batch, number):
    """Loss, and each kind of violation a model can have."""
    x, y, g = batch
    out = model(x)
    sums, counts = tally(out, g)
    seen = nupi.Indexed(out.squeeze(1)[:2] - 0.1, 2 * number + torch.arange(2))
    return (out - y).square().mean(), {
        "mean": out.square().mean() - 0.2,
        "bound": seen,
        "gap": total(sums) / total(counts).clamp(min=1) - total(sums.sum()) / total(counts.sum()),
    }


def fit(model, batches, lagrangian):
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=0.5, init="error", form="velocity")
    primal = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    for number, batch in batches:
        loss, violations = evaluate(model, batch, number)
        lagrangian.ascend(dual, violations)
        primal.zero_grad()
        lagrangian(loss, violations).backward()
        primal.step()
    return [p.detach().clone() for p in model.parameters()], lagrangian.state_dict()


def model_constraints():
    return {"mean": nupi.Equality(), "bound": nupi.Inequality(8), "gap": nupi.Equality(3)}


def data_parallel():
    rank, world = dist.get_rank(), dist.get_world_size()
    lagrangian = nupi.Lagrangian(model_constraints(), reduce="mean").double()
    model = DistributedDataParallel(net())
    return fit(model, [(rank, shard_of(step, rank, world)) for step in range(STEPS)], lagrangian)


def fully_sharded():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    lagrangian = nupi.Lagrangian(model_constraints(), reduce="mean", group=mesh.get_group()).double()
    model = net()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert all(p.to_local().numel() < p.numel() for p in model.parameters() if len(p) % world == 0)
    parameters, multipliers = fit(
        model, [(rank, shard_of(step, rank, world)) for step in range(STEPS)], lagrangian
    )
    return [p.full_tensor() for p in parameters], multipliers


def _tensors(lagrangian, dual):
    yield from lagrangian.state_dict().values()
    for slots in dual.state_dict()["state"].values():
        yield from slots.values()


def a_hook_fails(when, make):
    """The last rank has a hook that raises in the third step."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    lagrangian, dual = problem()
    if make == "Adam":
        dual = torch.optim.Adam(lagrangian.parameters(), 0.1, maximize=True)
    for step in range(2):
        lagrangian.ascend(dual, {"norm": seen_by(rank, step)["norm"]})
    before = [value.clone() for value in _tensors(lagrangian, dual)]
    error = None
    if rank == last:
        register = dual.register_step_pre_hook if when == "pre" else dual.register_step_post_hook
        handle = register(lambda *_: 1 / 0)
    try:
        lagrangian.ascend(dual, {"norm": seen_by(rank, 2)["norm"]})
    except Exception as caught:  # noqa: BLE001 - whatever it is, the test is about it
        error = (type(caught).__name__, str(caught))
    kept = all(torch.equal(a, b) for a, b in zip(before, _tensors(lagrangian, dual), strict=True))
    if rank == last:
        handle.remove()
    lagrangian.ascend(dual, {"norm": seen_by(rank, 3)["norm"]})
    return {"error": error, "kept": kept, "after": state(lagrangian, dual)}


def band_problem(reduce):
    lagrangian = nupi.Lagrangian(
        {
            "dense": nupi.Band(3, tolerance=0.4),
            "rows": nupi.Band(4, tolerance=0.4),
            "many": nupi.Band((LARGE, 2), tolerance=0.4),
            "mean": nupi.Band(3, tolerance=0.4),
            "capped": nupi.Inequality(2, upper=0.05),
        },
        reduce=reduce,
    )
    return lagrangian, nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=1.0, nu=0.3)


def bands_of(rank, step):
    draw = torch.Generator().manual_seed(100 * step + rank)

    def randn(*shape):
        return torch.randn(shape, generator=draw)

    return {
        "dense": randn(3),
        "rows": nupi.Indexed(randn(3), torch.randint(4, (3,), generator=draw)),
        "many": nupi.Indexed(randn(3, 2), torch.randint(LARGE, (3,), generator=draw)),
        "mean": nupi.Averaged(randn(3), torch.tensor([1.0 + rank, 2.0, 3.0])),
        "capped": randn(2),
    }


def joined_bands(step, world=2):
    """What all ranks see, as one process would give it."""
    seen = [bands_of(rank, step) for rank in range(world)]
    joined = {name: sum(each[name] for each in seen) / world for name in ("dense", "capped")}
    for name in ("rows", "many"):
        values, indices = (
            torch.cat([getattr(each[name], part) for each in seen]) for part in ("values", "indices")
        )
        joined[name] = nupi.Indexed(values, indices)
    joined["mean"] = nupi.Averaged(
        sum(each["mean"].sums for each in seen), sum(each["mean"].counts for each in seen)
    )
    return joined


def bands():
    lagrangian, dual = band_problem("mean")
    for step in range(STEPS):
        lagrangian.ascend(dual, bands_of(dist.get_rank(), step))
    return state(lagrangian, dual)
