"""What a step writes to may be given as a violation: it is read as it was before the step.

The oracle is the same step on copies, which nothing writes to.
"""

import copy

import pytest
import torch
from many_processes import own_kind

import nupi

DUALS = {
    "conditional": (lambda p, **more: nupi.NuPI(p, 0.1, 1.0, 0.2, **more), "xi"),
    "beyond": (lambda p, **more: nupi.NuPI(p, 0.1, 1.0, 0.2, **more), "beyond"),
    "velocity": (lambda p, **more: nupi.NuPI(p, 0.1, 1.0, 0.2, init="zero", form="velocity", **more), "xi"),
    "positional": (lambda p, **more: nupi.NuPI(p, 0.1, 1.0, 0.2, form="positional", **more), "xi"),
    "momentum": (lambda p, **more: nupi.UnifiedMomentum(p, 0.1, 0.5, **more), None),
    "PID": (lambda p, **more: nupi.PID(p, 0.1, 1.0, 0.2, **more), "xi"),
    "SelfTuned": (lambda p, **more: nupi.SelfTuned(p, 20, **more), "xi"),
    "SelfTuned gains": (lambda p, **more: nupi.SelfTuned(p, 20, **more), "ki"),
    "SGD": (
        lambda p, **more: torch.optim.SGD(p, 0.1, momentum=0.5, maximize=True, **more),
        "momentum_buffer",
    ),
    "Adam": (lambda p, **more: torch.optim.Adam(p, 0.1, maximize=True, **more), "exp_avg"),
}
SIZE = 3


class Mine(own_kind.Alone):
    """A kind of violation that hands on the tensor that it was given."""

    def __init__(self, values):
        self.values = values

    def error(self, target):
        return target.move(self.values)


KINDS = {
    "itself": lambda live: live,
    "view": lambda live: live.view(1, SIZE)[0],
    "detached": lambda live: live.detach(),
    "measured": lambda live: nupi.Measured(torch.ones(SIZE), live),
    "row": lambda live: nupi.Indexed(live[1:2], torch.tensor([0])),
    "own kind": Mine,
}


def twins(make, groups, foreach):
    """A problem after some steps, and a copy of it."""
    torch.manual_seed(0)
    kinds = (
        nupi.Equality(SIZE),
        nupi.Inequality(SIZE, init=0.4),
        nupi.Inequality(SIZE, init=0.1, restart=True),
    )
    lagrangian = nupi.Lagrangian({f"c{i}": kinds[i % 3] for i in range(groups)})
    dual = make(lagrangian.parameters(), foreach=foreach)
    for _ in range(4):
        lagrangian.ascend(dual, {name: torch.randn(SIZE) for name in lagrangian.constraints})
    return (lagrangian, dual), copy.deepcopy((lagrangian, dual))


def live_state(lagrangian, dual, slot):
    """A tensor of the dual's state for each group; its multiplier where there is none."""
    found = {}
    for name in lagrangian.constraints:
        theta = lagrangian.get_parameter(name)
        state = dual.state.get(theta, {})
        if slot is None:
            (slot,) = state
        found[name] = state.get(slot, theta)
    return found


@pytest.mark.parametrize("groups", [1, 12])
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("case", DUALS)
def test_live_state_given_as_a_violation_is_read_before_it_moves(case, foreach, groups):
    for kind, made_of in KINDS.items():
        if (case, kind) != ("Adam", "row"):  # which it refuses
            steps_are_those_on_copies(case, foreach, groups, made_of)


def steps_are_those_on_copies(case, foreach, groups, made_of):
    make, slot = DUALS[case]
    (lagrangian, dual), (twin, its) = twins(make, groups, foreach)
    heard, expected = [], []
    for problem, errors in ((lagrangian, heard), (twin, expected)):
        problem.listen(lambda step, errors=errors: errors.append({m.name: m.error for m in step.moves}))
    names = list(lagrangian.constraints)
    for _ in range(4):  # of which the later ones are like the ones before
        live = live_state(lagrangian, dual, slot)
        # Each group is given the state of the group before it, and the first that of the last, or its own.
        given = {name: live[names[i - 1]] for i, name in enumerate(names)}
        twin.ascend(its, {name: made_of(each.clone()) for name, each in given.items()})
        lagrangian.ascend(dual, {name: made_of(each) for name, each in given.items()})
        for name in names:
            assert torch.equal(lagrangian.multipliers[name], twin.multipliers[name])
            mine, other = dual.state[lagrangian.get_parameter(name)], its.state[twin.get_parameter(name)]
            assert all(torch.equal(mine[slot], other[slot]) for slot in other)
    for mine, other in zip(heard, expected, strict=True):
        assert all(torch.equal(mine[name], other[name]) for name in names)


def test_state_in_lists_is_found_too():
    """Another library's optimizer may keep its state in any shape."""

    class Nested(torch.optim.Optimizer):
        def step(self):
            for group in self.param_groups:
                for param in group["params"]:
                    state = self.state[param]
                    state.setdefault("seen", [{"sum": torch.zeros_like(param)}])[0]["sum"].add_(param.grad)
                    param.add_(param.grad)

    lagrangian = nupi.Lagrangian({"a": nupi.Inequality(2, restart=True)})
    theta = lagrangian.get_parameter("a")
    dual = Nested([theta], {"maximize": True})
    heard = []
    lagrangian.listen(lambda ascent: heard.append(ascent.moves[0].error))
    lagrangian.ascend(dual, {"a": torch.tensor([1.0, 2.0])})
    lagrangian.ascend(dual, {"a": dual.state[theta]["seen"][0]["sum"]})
    assert [error.tolist() for error in heard] == [[1.0, 2.0], [1.0, 2.0]]
