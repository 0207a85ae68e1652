"""A kind of violation that is written outside of the package: one class, in one process and in several."""

import pytest
import torch
from many_processes import own_kind

import nupi
from nupi.integrations.accumulation import Accumulator
from nupi.integrations.evaluation import Evaluation


def test_it_moves_multipliers_and_stands_in_the_lagrangian():
    lagrangian = nupi.Lagrangian({"c": nupi.Inequality(2)})
    dual = nupi.NuPI(lagrangian.parameters(), ki=1.0)
    samples = torch.tensor([[1.0, 4.0], [3.0, 2.0], [5.0, 9.0]], requires_grad=True)
    violation = own_kind.Median(samples)
    lagrangian.ascend(dual, {"c": violation})
    assert lagrangian.multipliers["c"].tolist() == [3.0, 4.0]
    lagrangian(torch.zeros(()), {"c": violation}).backward()
    assert samples.grad.tolist() == [[0.0, 4.0], [3.0, 0.0], [0.0, 0.0]]


def test_it_refuses_what_does_not_fit():
    lagrangian = nupi.Lagrangian({"c": nupi.Inequality(3)})
    dual = nupi.NuPI(lagrangian.parameters(), ki=1.0)
    with pytest.raises(ValueError, match=r"'c' has shape \(2,\), but its group has shape \(3,\)"):
        lagrangian.ascend(dual, {"c": own_kind.Median(torch.ones(3, 2))})


def test_it_is_joined_over_processes_as_it_says(ranks):
    """Rank 0 brings medians of 1 and rank 1 of 4, a third rank nothing: the mean over those who have it is 2.5."""
    for multipliers in ranks.run(own_kind.joined, world=3):
        assert multipliers == [2.5, 2.5]


def test_a_kind_that_cannot_be_joined_says_so(ranks):
    for error in ranks.run(own_kind.not_joinable, world=2):
        assert error[0] == "TypeError"
        assert "Alone, which cannot be added up over processes or batches" in error[1]


def test_it_is_averaged_over_micro_batches_as_it_says():
    lagrangian = nupi.Lagrangian({"c": nupi.Inequality(1)})
    accumulator = Accumulator(lagrangian.constraints)
    for samples in ([1.0, 9.0, 2.0], [4.0, 8.0, 9.0]):
        accumulator.add({"c": own_kind.Median(torch.tensor(samples, requires_grad=True)[:, None])})
    dual = nupi.NuPI(lagrangian.parameters(), ki=1.0)
    lagrangian.ascend(dual, accumulator.taken())
    assert lagrangian.multipliers["c"].item() == 4.0  # of 1, 2, 4, 8, 9, 9


def test_a_kind_without_an_average_says_so():
    accumulator = Accumulator({"c": nupi.Inequality(1)})
    accumulator.add({"c": own_kind.Alone()})
    assert isinstance(accumulator.taken()["c"], own_kind.Alone)  # of one batch there is nothing to average
    accumulator.add({"c": own_kind.Alone()})
    accumulator.add({"c": own_kind.Alone()})
    with pytest.raises(TypeError, match=r"'c' in 2 micro-batches are Alone of .*no average here"):
        accumulator.taken()


def test_it_is_judged_over_the_batches_of_an_evaluation():
    evaluation = Evaluation(nupi.Lagrangian({"c": nupi.Inequality(1)}), 2.5)
    evaluation.add({"c": own_kind.Median(torch.tensor([[1.0]]))}, rows=3)
    evaluation.add({"c": own_kind.Median(torch.tensor([[5.0]]))}, rows=1)
    assert evaluation.metrics() == {"feasible": 1.0, "violation": 2.0, "c/violation": 2.0}
    with pytest.raises(TypeError, match="Alone, which cannot be added up over processes or batches"):
        evaluation.add({"c": own_kind.Alone()}, rows=1)


def test_a_soft_measure_for_the_model_and_a_hard_one_for_the_multiplier():
    lagrangian = nupi.Lagrangian({"rate": nupi.Inequality(2)})
    dual = nupi.NuPI(lagrangian.parameters(), ki=1.0)
    logits = torch.tensor([2.0, -1.0], requires_grad=True)
    measured = nupi.Measured(soft=logits.sigmoid(), hard=(logits > 0).float())
    lagrangian.ascend(dual, {"rate": measured})
    assert lagrangian.multipliers["rate"].tolist() == [1.0, 0.0]
    value = lagrangian(torch.zeros(()), {"rate": measured})
    assert value.item() == pytest.approx(torch.sigmoid(torch.tensor(2.0)).item())
    value.backward()
    assert logits.grad[0] > 0
    with pytest.raises(TypeError, match=r"Measured\.hard"):
        nupi.Measured(soft=logits, hard=[1.0])
