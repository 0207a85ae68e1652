"""A kind of violation written by a user: the median of samples; and what ranks do with it."""

import torch
import torch.distributed as dist

import nupi
from nupi.violations import Dense, Parts, Violation


class Median(Violation):
    """The median of samples for each constraint, in the first dimension."""

    def __init__(self, samples):
        self.samples = samples

    def term(self, target):
        return Dense(self.samples.median(dim=0).values).term(target)

    def error(self, target):
        return Dense(self.samples.median(dim=0).values).error(target)

    def parts(self, target):
        return Parts(Dense(self.samples.median(dim=0).values).checked(target).detach().double())

    @classmethod
    def joined(cls, target, total, ranks, reduce):  # noqa: ARG003
        return target.move(total.values / ranks)

    def detached(self):
        return Median(self.samples.detach())

    @classmethod
    def average(cls, several, batches, constraint):  # noqa: ARG003
        return Median(torch.cat([each.samples for each in several]))  # the median of all samples


class Alone(Violation):
    """One that says nothing of how it is joined."""

    def term(self, target):
        return target.multiplier.sum()

    def error(self, target):
        return target.move(torch.ones_like(target.multiplier))


def joined():
    lagrangian = nupi.Lagrangian({"c": nupi.Inequality(2)}, reduce="mean")
    dual = nupi.NuPI(lagrangian.parameters(), ki=1.0)
    rank = dist.get_rank()
    lagrangian.ascend(dual, {"c": Median(torch.full((3, 2), 1.0 + 3.0 * rank))} if rank < 2 else {})
    return lagrangian.multipliers["c"].tolist()


def not_joinable():
    lagrangian = nupi.Lagrangian({"c": nupi.Inequality(2)}, reduce="mean")
    dual = nupi.NuPI(lagrangian.parameters(), ki=1.0)
    try:
        lagrangian.ascend(dual, {"c": Alone()})
    except TypeError as error:
        return type(error).__name__, str(error)
    return None
