"""Ranks that have come to differ are refused by all of them, which say in what; and nobody hangs."""

import pytest
import torch
from many_processes import disagreements
from many_processes.test_reduce import assert_same_bits

from nupi.distributed import fingerprint


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("gains", "different duals: 'ki' of group 0 is 0.1 on rank 0 and 0.2 on rank 1; build and load"),
        ("class", "the dual is NuPI on rank 0 and PID on rank 1"),
        ("another of the same", r"different state in the dual of 'large', .*\(rank 1 compared with rank 0\)"),
        ("loaded dual", r"different state in the dual of 'large', .*\(rank 1 compared with rank 0\)"),
        (
            "loaded multipliers",
            "different multipliers of 'large', 'many', 'norm', .*was a checkpoint loaded on",
        ),
        ("lost state", "the ranks have different state in the dual of 'norm' "),
        ("written", "the ranks have different multipliers of 'norm' "),
        ("replaced", "the ranks have different multipliers of 'norm' "),
        ("tensor gain", "the ranks have different tensors among the dual's gains "),
        (
            "gain that is a tensor",
            r"'ki' of group 0 is 0.1 on rank 0 and a tensor of torch.float32 and shape \(\) ",
        ),
        ("stepped", "different multipliers of 'norm' and different state in the dual of 'norm' "),
    ],
)
def test_a_rank_that_was_set_apart_is_refused_by_all_until_they_are_alike_again(ranks, what, message):
    answers = ranks.run(disagreements.apart, what, world=2)
    for answer in answers:
        assert answer["errors"] == answers[0]["errors"]
        for error in answer["errors"]:
            with pytest.raises(ValueError, match=message):
                raise ValueError(error[1])
            assert error[0] == "ValueError"
            assert error[1].endswith("No rank has moved")
        assert answer["kept"] == [True, True], "a refusal changed something"
        assert answer["calls"] == (["allreduce_", "allgather_"], ["allreduce_"])
    assert_same_bits([answer["after"] for answer in answers])


def test_the_rank_that_differs_is_named_among_many(ranks):
    for answer in ranks.run(disagreements.apart, "gains", world=4):
        assert "'ki' of group 0 is 0.1 on rank 0, 1, 2 and 0.2 on rank 3" in answer["errors"][0][1]


@pytest.mark.parametrize(
    ("what", "message"),
    [("checkpoint", "different state in the dual of 'large'"), ("gains", "'kp' of group 0 is 1.0 on rank 0")],
)
def test_ranks_that_differ_from_the_start_do_not_start(ranks, what, message):
    answers = ranks.run(disagreements.apart_from_the_start, what, world=2)
    for error, moved in answers:
        assert message in error[1]
        assert not moved


def test_duals_that_take_turns_and_schedulers_need_no_second_look(ranks):
    (calls, first), (_, second) = ranks.run(disagreements.two_duals, world=2)
    # The problem, and then each dual once.
    assert calls == ["allgather_", *["allreduce_", "allgather_"] * 2, *["allreduce_"] * 6]
    assert_same_bits([first, second])


def test_a_rank_that_holds_its_multipliers_in_another_precision_is_refused_even_at_zero(ranks):
    for error, multipliers in ranks.run(disagreements.cast_at_zero, world=2):
        assert "different multipliers of 'norm'" in error[1]
        assert multipliers == [0.0] * 3


def test_numbers_of_numpy_are_compared_by_value(ranks):
    for error, multiplier in ranks.run(disagreements.numbers_of_numpy, False, world=2):
        assert "'lr' of group 0 is 0.5 on rank 0 and 1.5 on rank 1" in error[1]
        assert multiplier == 0.0
    assert ranks.run(disagreements.numbers_of_numpy, True, world=2) == [(None, 0.5)] * 2


@pytest.mark.parametrize("kind", ["Indexed", "Averaged", "by hand"])
def test_a_sparse_momentum_is_kept_alike_and_looked_at(ranks, kind):
    """The error of rows 0 and 1 is 1 at every step, and nobody sees the others."""
    path, momentum, theta = [], 0.0, 0.0
    for _ in range(3):
        momentum = 0.5 * momentum + 1.0
        theta += 0.1 * momentum
        path.append([theta, theta, 0.0, 0.0])
    for steps, error in ranks.run(disagreements.sparse_momentum, kind, world=2):
        torch.testing.assert_close(torch.tensor(steps), torch.tensor(path))
        assert "different state in the dual of 'rows'" in error[1]


def test_a_rank_outside_the_group_is_refused_and_copies_share_the_group(ranks):
    for rank, (said, multipliers) in enumerate(ranks.run(disagreements.outside, world=3)):
        if rank < 2:
            assert said == [None, None]
            assert multipliers == [0.5, 0.5]
        else:
            assert [kind for kind, _ in said] == ["ValueError"] * 3
            assert all("rank 2 is not in the process group that it got as group" in text for _, text in said)
            assert multipliers == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.bool])
def test_a_fingerprint_knows_every_element_and_its_place_and_writes_nothing(dtype):
    # Round numbers, whose bits a sum weighed by place would mistake for each other.
    tensors = [
        torch.tensor(values) for values in ([2.0, 1.0, 0, 0, 0], [0.5, 2.0, 0, 0, 0], [0, 0, 0, 2.0, 1.0])
    ]
    tensors += [torch.ones(5), torch.zeros(5), torch.zeros(4)]
    tensors = [tensor.to(dtype) for tensor in tensors]
    kept = [tensor.clone() for tensor in tensors]
    texts = [fingerprint.of_value(tensor) for tensor in tensors]
    assert texts == [fingerprint.of_value(tensor) for tensor in tensors]
    assert all(torch.equal(*pair) for pair in zip(tensors, kept, strict=True))
    different = {tuple(tensor.tolist()) for tensor in tensors}
    assert len({fingerprint.of_text(text) for text in texts}) == len(different)
    assert fingerprint.of_value(torch.tensor(1.0).to(dtype).expand(2)) not in texts
