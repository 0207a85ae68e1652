"""All ranks hold the gains that `SelfTuned` found on their batches together, to the bit."""

from functools import partial

import pytest
import torch
from many_processes import self_tuned

SHARDS = pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"), reason="fully_shard needs a newer torch to work on the CPU"
)


@pytest.mark.parametrize("sharded", [False, pytest.param(True, marks=SHARDS)], ids=["copies", "shards"])
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_ranks_measure_on_batches_of_their_own_and_hold_the_same_gains(ranks, optimizer, sharded):
    answers = ranks.run(partial(self_tuned.trained, sharded=sharded), optimizer, 6, world=2)
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


def test_ranks_join_what_each_has_measured_on_its_own_data(ranks):
    """Rank 0 has b = 0.1 |(1, 1)|^2 and rank 1 four times as much; the mean is that of the logarithms."""
    for failure, response in ranks.run(partial(self_tuned.measured_by_evaluate, fails=False), world=2):
        assert failure == "nothing"
        assert response == pytest.approx((0.2 * 0.8) ** 0.5)


def test_a_rank_whose_evaluate_raises_leaves_none_waiting(ranks):
    answers = ranks.run(partial(self_tuned.measured_by_evaluate, fails=True), world=2)
    assert answers == [("RuntimeError", 0.0), ("KeyError", 0.0)]


@pytest.mark.parametrize(
    ("reduce", "tensor", "row"), [("mean", 0.5, 2.0), ("sum", 2.0, 2.0), (None, 0.5, 0.5)]
)
def test_a_violation_that_adds_up_over_ranks_responds_as_their_sum_does(ranks, reduce, tensor, row):
    """Under SGD the response is lr |a|^2, with a the gradient of the joined violation: here 2 a if it is a sum."""
    for found in ranks.run(self_tuned.responses, reduce, world=2):
        assert found == pytest.approx({"tensor": tensor, "row": row})


@SHARDS
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_a_sharded_model_is_measured_as_a_whole_one(ranks, optimizer):
    sharded, whole = (
        ranks.run(partial(self_tuned.alike, sharded=sharded), optimizer, 6, world=2)[0]
        for sharded in (True, False)
    )
    for name, multiplier in whole[0].items():
        assert multiplier.any()
        torch.testing.assert_close(sharded[0][name], multiplier, rtol=1e-7, atol=1e-10)
        for key in ("response", "ki", "kp"):
            torch.testing.assert_close(sharded[1][name][key], whole[1][name][key], rtol=1e-7, atol=1e-10)


@SHARDS
def test_rows_of_a_sharded_model_are_refused_with_a_way_out(ranks):
    for said in ranks.run(self_tuned.rows_of_a_sharded_model, world=2):
        assert "Indexed" in said
        assert "build SelfTuned without primal" in said
