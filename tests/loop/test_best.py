"""The model that Best keeps is the one a plain look through all of them would choose."""

import io
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nupi
from nupi import Measured, rates
from nupi.loop.best import largest_violation
from nupi.violations import Violation

TOLERANCE = {"rate": 0.05, "gap": 0.1}


def problem():
    return nupi.Lagrangian({"rate": nupi.Inequality(), "gap": nupi.Equality(2)})


def numbered(number):
    model = torch.nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(number)
    return model


def violations(rate, gap):
    return {"rate": torch.tensor([rate]), "gap": torch.tensor([0.0, gap])}


def show(best, models):
    for number, (metric, rate, gap) in enumerate(models, 1):
        best.see(numbered(number), metric, violations(rate, gap), number=number)


def plain_choice(models, higher_is_better):
    """The number of the best feasible model, else of the closest; the earliest of equals."""
    sign = -1 if higher_is_better else 1
    models = [(metric, torch.tensor(rate).item(), torch.tensor(gap).item()) for metric, rate, gap in models]
    excess = [
        max(rate - TOLERANCE["rate"], abs(gap) - TOLERANCE["gap"], -TOLERANCE["gap"])
        for _, rate, gap in models
    ]
    feasible = [i for i, by in enumerate(excess) if by <= 0]
    key = (lambda i: sign * models[i][0]) if feasible else (lambda i: (excess[i], sign * models[i][0]))
    return 1 + min(feasible or range(len(models)), key=key), len(feasible)


amounts = st.floats(-1, 1).map(lambda x: round(x, 1))


@settings(max_examples=settings.default.max_examples)
@given(models=st.lists(st.tuples(amounts, amounts, amounts), min_size=1, max_size=8), higher=st.booleans())
def test_it_keeps_what_a_look_through_all_would_choose(models, higher):
    best = nupi.Best(problem(), TOLERANCE, higher_is_better=higher)
    show(best, models)
    number, feasible = plain_choice(models, higher)
    assert (best.number, best.feasible, best.seen) == (number, feasible, len(models))
    assert best.is_feasible == (feasible > 0)
    assert best.notes == {"number": number}
    shipped = torch.nn.Linear(1, 1)
    best.restore(shipped)
    assert shipped.weight.item() == number


def test_on_disk_and_through_a_checkpoint(tmp_path):
    models = [(0.3, 0.0, 0.0), (0.2, 0.0, 0.0), (0.1, 1.0, 0.0), (0.25, 0.0, 0.0)]
    for path in (None, tmp_path / "best.pt"):
        best = nupi.Best(problem(), TOLERANCE, path=path)
        show(best, models[:2])
        file = io.BytesIO()
        torch.save(best.state_dict(), file)
        file.seek(0)
        resumed = nupi.Best(problem(), TOLERANCE, path=path)
        resumed.load_state_dict(torch.load(file, weights_only=True))
        show(resumed, models[2:])
        shipped = torch.nn.Linear(1, 1)
        resumed.restore(shipped)
        assert (shipped.weight.item(), resumed.seen, resumed.feasible) == (2.0, 4, 3)
    assert [file.name for file in tmp_path.iterdir()] == ["best.pt"]


def test_what_is_kept_does_not_move_with_the_model():
    best, model = nupi.Best(problem()), numbered(7)
    best.see(model, 0.1, violations(0.0, 0.0))
    with torch.no_grad():
        model.weight.fill_(0)
    best.restore(model)
    assert model.weight.item() == 7


def test_several_parts_are_kept_together():
    parts = {"model": numbered(3), "head": numbered(4)}
    best = nupi.Best(problem())
    best.see(parts, 0.1, violations(0.0, 0.0))
    fresh = {"model": numbered(0), "head": numbered(0)}
    best.restore(fresh)
    assert [part.weight.item() for part in fresh.values()] == [3, 4]


def test_what_is_not_finite_changes_nothing():
    best = nupi.Best(problem(), 0.5)
    best.see(numbered(1), 0.2, violations(0.0, 0.0))
    before = repr(best)
    for metric, rate in ((float("nan"), 0.0), (float("-inf"), 0.0), (0.1, float("nan")), (0.1, float("inf"))):
        with pytest.raises(ValueError, match="not finite"):
            best.see(numbered(2), metric, violations(rate, 0.0))
    assert repr(best) == before


def test_constraints_that_were_not_measured_are_not_met():
    lagrangian = nupi.Lagrangian({"precision": nupi.Inequality(2)})
    best = nupi.Best(lagrangian)
    unknown = nupi.Averaged(torch.tensor([-1.0, 0.0]), torch.tensor([10.0, 0.0]))
    partial = nupi.Indexed(torch.tensor([-1.0]), torch.tensor([1]))
    for violation in (unknown, partial):
        assert not best.see(numbered(1), 0.1, {"precision": violation})
    assert repr(best) == "Best(0 of 2 feasible; nothing kept)"
    with pytest.raises(RuntimeError, match="no model is kept"):
        best.restore(numbered(0))
    assert best.see(numbered(2), 0.9, {"precision": nupi.Indexed(torch.zeros(2), torch.tensor([1, 0]))})
    with pytest.raises(ValueError, match="violations lacks 'precision'"):
        best.see(numbered(1), 0.1, {})


def test_it_reads_the_hard_side_of_what_rates_measure():
    constraint = rates.accuracy() >= 0.5
    best = nupi.Best(nupi.Lagrangian({"accuracy": constraint.kind()}))
    best.see(numbered(1), 0.1, {"accuracy": constraint(torch.tensor([0.1, 0.1]), torch.tensor([1, 0]))})
    assert (best.feasible, best.violation) == (1, 0.0)
    best.see(numbered(2), 0.0, {"accuracy": Measured(soft=torch.tensor([-1.0]), hard=torch.tensor([1.0]))})
    assert best.feasible == 1


def test_the_closest_is_called_so():
    best = nupi.Best(problem())
    show(best, [(0.1, 0.3, 0.0), (0.5, 0.2, 0.0)])
    assert repr(best) == "Best(0 of 2 feasible; the closest: number 2, metric 0.5, largest violation 0.2)"
    assert not best.is_feasible


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"tolerance=-1\.0 of '(gap|rate)'"):
        nupi.Best(problem(), -1.0)
    with pytest.raises(ValueError, match=r"given for \['rate'\], but the constraints are \['gap', 'rate'\]"):
        nupi.Best(problem(), {"rate": 0.1})
    with pytest.raises(TypeError, match="the violation of 'rate' must be a tensor"):
        nupi.Best(problem()).see(numbered(1), 0.1, {"rate": 0.3, "gap": torch.zeros(2)})
    with pytest.raises(ValueError, match="not the state_dict of a Best"):
        nupi.Best(problem()).load_state_dict({"seen": 1})


class Doubled(Violation):
    """A kind of one's own that does not say whether the whole group was measured."""

    def __init__(self, values):
        self.values = values

    def term(self, target):
        return 2 * (target.multiplier * self.values).sum()

    def error(self, target):
        return target.move(2 * self.values.detach())


class DoubledWhole(Doubled):
    def measured(self, constraint):
        return 2 * self.values if len(self.values) == constraint.shape[0] else None


def test_a_kind_of_ones_own_is_judged_by_what_it_measured():
    rate = nupi.Inequality(2)
    assert largest_violation("rate", rate, DoubledWhole(torch.tensor([0.1, -0.3]))) == pytest.approx(0.2)
    assert largest_violation("rate", rate, DoubledWhole(torch.tensor([0.1]))) == math.inf
    with pytest.raises(TypeError, match="give its class the method measured"):
        largest_violation("rate", rate, Doubled(torch.zeros(2)))
