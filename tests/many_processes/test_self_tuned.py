"""All ranks hold the gains that `SelfTuned` found on their batches together, to the bit."""

import pytest
import torch
from many_processes import self_tuned


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_ranks_measure_on_batches_of_their_own_and_hold_the_same_gains(ranks, optimizer):
    answers = ranks.run(self_tuned.trained, optimizer, 6, world=2)
    (multipliers, gains, state), (others, their_gains, their_state) = answers
    assert all(torch.equal(multipliers[name], others[name]) for name in multipliers)
    for name, found in gains.items():
        assert (found["response"] > 0).all()
        for key, value in found.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(their_gains[name][key]))
    for one, other in zip(state, their_state, strict=True):
        assert all(torch.equal(one[slot], other[slot]) for slot in one)


def test_a_rank_that_cannot_measure_leaves_none_waiting(ranks):
    (first, response), (second, _) = ranks.run(self_tuned.one_rank_cannot_measure, world=2)
    assert (first, second) == ("RuntimeError", "ZeroDivisionError")
    assert response == 0


@pytest.mark.parametrize(
    ("reduce", "tensor", "row"), [("mean", 0.5, 2.0), ("sum", 2.0, 2.0), (None, 0.5, 0.5)]
)
def test_a_violation_that_adds_up_over_ranks_responds_as_their_sum_does(ranks, reduce, tensor, row):
    """Under SGD the response is lr |a|^2, with a the gradient of the joined violation: here 2 a if it is a sum."""
    for found in ranks.run(self_tuned.responses, reduce, world=2):
        assert found == pytest.approx({"tensor": tensor, "row": row})
