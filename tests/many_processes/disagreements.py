"""Ranks that are set apart in the middle of a run, and what each of them then does and says."""

import copy

import numpy as np
import torch
import torch.distributed as dist
from many_processes.scenarios import Calls, _tensors, problem, seen_by, state

import nupi


def tensor_gains(lagrangian):
    return nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=torch.tensor(1.0), nu=0.3)


def set_apart(what, lagrangian, dual, old):
    """Do to one rank what should be done to all or none. Returns the dual it goes on with."""
    norm = lagrangian.get_parameter("norm")
    if what == "gains":
        dual.param_groups[0]["ki"] = 0.2
    elif what == "class":
        dual = nupi.PID(lagrangian.parameters(), 0.1, 1.0)
    elif what == "another of the same":
        dual = nupi.NuPI(lagrangian.parameters(), 0.1, 1.0, 0.3)
    elif what == "loaded dual":
        dual.load_state_dict(old["dual"])
    elif what == "loaded multipliers":
        lagrangian.load_state_dict(old["lagrangian"])
    elif what == "lost state":
        del dual.state[norm]
    elif what == "written":
        lagrangian.multipliers["norm"].add_(1.0)
    elif what == "replaced":
        norm.data = norm.data + 1.0
    elif what == "tensor gain":
        dual.param_groups[0]["kp"].mul_(2.0)
    elif what == "gain that is a tensor":
        dual.param_groups[0]["ki"] = torch.tensor(0.1)
    elif what == "stepped":
        norm.grad = torch.ones_like(norm)
        dual.step()
        norm.grad = None
    return dual


def apart(what):
    """Two good steps; the last rank is set apart; two refused steps; the same checkpoint for all; a good step."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    lagrangian, dual = problem()
    if what == "tensor gain":
        dual = tensor_gains(lagrangian)
    old = {}
    for step in range(2):
        lagrangian.ascend(dual, seen_by(rank, step))
        if step == 0:
            old = copy.deepcopy({"lagrangian": lagrangian.state_dict(), "dual": dual.state_dict()})
    mine = set_apart(what, lagrangian, dual, old) if rank == last else dual
    errors, kept = [], []
    for _ in range(2):
        before = [value.clone() for value in _tensors(lagrangian, mine)]
        errors.append(refusal(lagrangian, mine, seen_by(rank, 2)))
        kept.append(all(torch.equal(*pair) for pair in zip(before, _tensors(lagrangian, mine), strict=True)))
    lagrangian.load_state_dict(old["lagrangian"])
    dual.load_state_dict(old["dual"])
    with Calls() as first:
        lagrangian.ascend(dual, {})
    with Calls() as second:
        lagrangian.ascend(dual, {"norm": torch.tensor(float(rank))})
    return {
        "errors": errors,
        "kept": kept,
        "calls": (first.names, second.names),
        "after": state(lagrangian, dual),
    }


def apart_from_the_start(what):
    """The first step of ranks of which one has a checkpoint, or gains of its own."""
    rank = dist.get_rank()
    lagrangian, dual = problem()
    if rank and what == "checkpoint":
        elsewhere = nupi.Lagrangian(lagrangian.constraints)
        other = nupi.NuPI(elsewhere.parameters(), ki=0.1, kp=1.0, nu=0.3)
        elsewhere.ascend(other, seen_by(0, 0))
        dual.load_state_dict(other.state_dict())
    elif rank:
        dual = nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=2.0, nu=0.3)
    error = refusal(lagrangian, dual, seen_by(rank, 0))
    return error, any(m.any().item() for m in lagrangian.multipliers.values())


def two_duals():
    """Constraints with optimizers of their own, which take turns; a scheduler, the same on all ranks."""
    rank = dist.get_rank()
    lagrangian, _ = problem()
    duals = {
        name: nupi.NuPI([lagrangian.get_parameter(name)], ki=gain, kp=1.0)
        for name, gain in (("norm", 0.1), ("table", 0.2))
    }
    for dual in duals.values():
        dual.param_groups[0].update(
            warm=lambda _: 1.0, of={"what": object()}
        )  # at another address on every rank
        dual.param_groups[0].update(betas=(0.9, None))
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(dual, 0.9) for dual in duals.values()]
    with Calls() as calls:
        for step in range(4):
            seen = seen_by(rank, step)
            for name, dual in duals.items():
                lagrangian.ascend(dual, {name: seen[name]})
            for scheduler in schedulers:
                scheduler.step()
    return calls.names, state(lagrangian, duals["norm"])


def refusal(lagrangian, dual, violations):
    try:
        lagrangian.ascend(dual, violations)
    except Exception as caught:  # noqa: BLE001 - whatever it is, the test is about it
        return type(caught).__name__, str(caught)
    return None


def outside():
    """A group of two of the ranks: the others are not in it. A copy of a Lagrangian has its group."""
    rank = dist.get_rank()
    group = dist.new_group([0, 1])
    lagrangian = nupi.Lagrangian({"norm": nupi.Equality()}, reduce="mean", group=group)
    twin = copy.deepcopy(lagrangian)
    assert twin.group is lagrangian.group
    said = []
    for each in (lagrangian, twin):
        dual = nupi.NuPI(each.parameters(), ki=1.0)
        said.append(refusal(each, dual, {"norm": torch.tensor(float(rank))}))
    try:
        nupi.distributed.total(torch.ones(()), group)
    except ValueError as error:
        said.append(("ValueError", str(error)))
    return said, [each.multipliers["norm"].item() for each in (lagrangian, twin)]


def cast_at_zero():
    """One rank holds its multipliers in double precision: as long as they are 0, no bit of them differs."""
    lagrangian = nupi.Lagrangian({"norm": nupi.Inequality(3)}, reduce="mean")
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1)
    lagrangian.ascend(dual, {"norm": -torch.ones(3)})
    if dist.get_rank():
        lagrangian.double()
    return refusal(lagrangian, dual, {"norm": torch.full((3,), 1 / 3)}), lagrangian.multipliers[
        "norm"
    ].tolist()


def numbers_of_numpy(mine):
    """A learning rate that is a number of numpy, and not the same on every rank unless it is `mine`."""
    lagrangian = nupi.Lagrangian({"norm": nupi.Inequality()}, reduce="mean")
    dual = torch.optim.SGD(lagrangian.parameters(), lr=0.1, maximize=True)
    for group in dual.param_groups:
        group["lr"] = np.float32(0.5 if mine else 0.5 + dist.get_rank())
    return refusal(lagrangian, dual, {"norm": torch.ones(())}), lagrangian.multipliers["norm"].item()


def sparse_momentum(kind):
    """Rows through an optimizer with momentum, or one that has made it sparse; then one rank alone loads its state."""
    lagrangian = nupi.Lagrangian({"rows": nupi.Equality(4)}, reduce="mean")
    dual = torch.optim.SGD(lagrangian.parameters(), lr=0.1, momentum=0.5, maximize=True)
    rank, path, old, theta = dist.get_rank(), [], None, lagrangian.get_parameter("rows")
    for _ in range(3):
        if kind == "Indexed":
            seen = {"rows": nupi.Indexed(torch.tensor([1.0]), torch.tensor([rank]))}
        elif kind == "Averaged":
            seen = {"rows": nupi.Averaged(torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.tensor([1, rank, 0, 0]))}
        else:
            seen, theta.grad = {}, torch.tensor([1.0, 1.0, 0.0, 0.0]).to_sparse()
            dual.step()
            theta.grad = None
        lagrangian.ascend(dual, seen)
        path.append(lagrangian.multipliers["rows"].tolist())
        old = old or copy.deepcopy(dual.state_dict())
    assert dual.state[theta]["momentum_buffer"].is_sparse == (kind == "by hand")
    if rank:
        dual.load_state_dict(old)
    return path, refusal(lagrangian, dual, {})
