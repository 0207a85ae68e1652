"""Every rank sees its own violations; all hold the same multipliers, those of one process on the joined batch."""

import pytest
import torch
from many_processes import scenarios
from many_processes.scenarios import LARGE, STEPS

import nupi
from nupi.distributed import together

KINDS = {
    "dense": ("norm", "table", "scalar"),
    "averaged": ("rate", "wide"),
    "indexed": ("rows", "large", "many"),
    "all": tuple(scenarios.constraints()),
}
WORLDS = (2, 4)


def assert_same_bits(answers):
    first, *others = answers
    for other in others:
        assert first["multipliers"].keys() == other["multipliers"].keys()
        assert all(
            torch.equal(first["multipliers"][n], other["multipliers"][n]) for n in first["multipliers"]
        )
        assert first["dual"].keys() == other["dual"].keys()
        for key, slots in first["dual"].items():
            assert all(torch.equal(slots[name], other["dual"][key][name]) for name in slots)


def joined(seen, reduce):
    """The violations of all ranks as one process would give them, written out anew for each kind."""
    first = seen[0]
    if isinstance(first, nupi.Indexed):
        return nupi.Indexed(torch.cat([s.values for s in seen]), torch.cat([s.indices for s in seen]))
    if isinstance(first, nupi.Averaged):
        sums = sum(torch.where(s.counts > 0, s.sums, 0.0).double() for s in seen)
        counts = sum(s.counts.double() for s in seen)
        present = counts.nonzero().squeeze(1)
        return nupi.Indexed((sums[present] / counts[present]).float(), present)
    together = torch.stack([s.double() for s in seen])
    return (together.mean(0) if reduce == "mean" else together.sum(0)).float()


def one_process(world, reduce, kinds, present=lambda *_: True):
    lagrangian, dual = scenarios.problem(None)
    for step in range(STEPS):
        seen = [scenarios.seen_by(rank, step) for rank in range(world)]
        violations = {}
        for name in kinds:
            parts = [each[name] for rank, each in enumerate(seen) if present(rank, name)]
            if parts:
                violations[name] = joined(parts, reduce)
        lagrangian.ascend(dual, violations)
    return lagrangian.state_dict()


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("reduce", ["mean", "sum"])
@pytest.mark.parametrize("kinds", KINDS)
def test_all_ranks_hold_the_multipliers_of_the_joined_batch(ranks, world, reduce, kinds):
    answers = ranks.run(scenarios.train_multipliers, reduce, KINDS[kinds], world=world)
    assert_same_bits(answers)
    expected = one_process(world, reduce, KINDS[kinds])
    for name in KINDS[kinds]:
        assert expected[name].any(), f"{name} did not move, so nothing was compared"
        torch.testing.assert_close(answers[0]["multipliers"][name], expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("world", WORLDS)
def test_ranks_may_have_different_constraints_or_none_in_a_step(ranks, world):
    answers = ranks.run(scenarios.some_are_absent, world=world)
    assert_same_bits(answers)
    whose = {"norm": 0, "rows": 0, "table": world - 1, "large": world - 1}
    expected = one_process(world, "mean", whose, present=lambda rank, name: rank == whose[name])
    for name in scenarios.constraints():
        torch.testing.assert_close(answers[0]["multipliers"][name], expected[name], rtol=1e-5, atol=1e-6)


def test_without_reduce_each_rank_goes_its_own_way(ranks):
    first, second = ranks.run(scenarios.train_multipliers, None, KINDS["dense"], world=2)
    assert not torch.equal(first["multipliers"]["table"], second["multipliers"]["table"])


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(
    ("what", "there", "elsewhere"),
    [
        ("nan", "violations of 'norm' are not finite", None),
        ("inf in large rows", "violations of 'large' are not finite", None),
        ("nan sum", "violations of 'rate' are not finite", None),
        ("kind", "'rows' came as a tensor on 1 and as Indexed on", None),
        ("another dual", "ranks have a dual that holds the multiplier of", None),
        ("shape", r"'table' has shape \(3,\)", "PeerRefusedError"),
        ("name", "not a constraint here", "PeerRefusedError"),
        ("index", "run from 40 to 40", "PeerRefusedError"),
        ("count", "counts of 'rate' must be finite and >= 0", "PeerRefusedError"),
        ("dual", "would minimize", "PeerRefusedError"),
        ("no mapping", "violations must map", "PeerRefusedError"),
    ],
)
def test_what_one_rank_refuses_all_refuse_and_nobody_hangs(ranks, world, what, there, elsewhere):
    answers = ranks.run(scenarios.one_rank_refuses, what, world=world)
    *others, last = answers
    assert last["error"] is not None
    with pytest.raises(AssertionError, match=there):
        raise AssertionError(last["error"][1])
    for other in others:
        assert other["error"] is not None
        if elsewhere is None:
            assert other["error"] == last["error"]
        else:
            assert other["error"][0] == elsewhere
            assert f"rank {world - 1} refused" in other["error"][1]
    assert all(answer["kept"] for answer in answers), "a refusal changed something"
    assert_same_bits([answer["after"] for answer in answers])


@pytest.mark.parametrize(
    ("what", "message"),
    [("constraints", "different constraints"), ("reduce", "reduce='"), ("start", "different multipliers")],
)
def test_ranks_that_were_built_differently_are_refused_at_the_first_step(ranks, what, message):
    for answer in ranks.run(scenarios.another_problem, what, world=2):
        assert message in answer


def test_a_step_is_one_message_and_a_second_round_only_for_large_groups(ranks):
    def calls(kinds, reduce="mean"):
        return ranks.run(scenarios.collectives, reduce, kinds, world=2)[0]

    assert calls(("norm", "table", "scalar", "rate", "rows")) == ["allreduce_"]
    assert calls(("norm", "wide")) == ["allreduce_"] * 2
    assert calls(("norm", "large", "many")) == ["allreduce_", "allgather_"]
    assert calls(("norm", "table"), reduce=None) == []


def test_no_collective_when_nothing_is_distributed(monkeypatch):
    for name in ("all_reduce", "all_gather", "get_world_size"):
        monkeypatch.setattr(torch.distributed, name, lambda *_, name=name, **__: pytest.fail(name))
    lagrangian, dual = scenarios.problem("mean")
    plain, its_dual = scenarios.problem(None)
    for step in range(3):
        violations = scenarios.seen_by(0, step)
        for each, optimizer in ((lagrangian, dual), (plain, its_dual)):
            each.ascend(optimizer, violations)
        assert lagrangian(torch.ones(()), violations) == plain(torch.ones(()), violations)
    for name, multiplier in plain.multipliers.items():
        assert torch.equal(lagrangian.multipliers[name], multiplier)


def test_a_world_of_one_takes_no_collective(ranks):
    assert ranks.run(scenarios.collectives, "mean", KINDS["all"], world=1) == [[]]


def test_reduce_is_checked_and_kept_by_copies(tmp_path):
    with pytest.raises(ValueError, match='reduce must be "mean", "sum" or None, but \'max\' came'):
        nupi.Lagrangian({"a": nupi.Equality()}, reduce="max")
    lagrangian = nupi.Lagrangian({"a": nupi.Equality()}, reduce="sum")
    torch.save(lagrangian, tmp_path / "whole")
    assert torch.load(tmp_path / "whole", weights_only=False).reduce == "sum"


def test_a_large_group_is_large():
    assert LARGE > together.SMALL


@pytest.mark.parametrize("make", ["NuPI", "Adam"])
@pytest.mark.parametrize("when", ["pre", "post"])
def test_a_hook_that_fails_on_one_rank_undoes_the_step_on_all(ranks, when, make):
    *others, last = ranks.run(scenarios.a_hook_fails, when, make, world=3)
    assert last["error"] == ("ZeroDivisionError", "division by zero")
    for other in others:
        assert other["error"][0] == "PeerRefusedError"
        assert "rank 2 could not take the step" in other["error"][1]
    assert all(answer["kept"] for answer in (*others, last))
    assert_same_bits([answer["after"] for answer in (*others, last)])


def test_bands_and_upper_bounds_join_as_in_one_process(ranks):
    answers = ranks.run(scenarios.bands, world=2)
    assert_same_bits(answers)
    lagrangian, dual = scenarios.band_problem(None)
    for step in range(STEPS):
        lagrangian.ascend(dual, scenarios.joined_bands(step))
    for name, multiplier in lagrangian.multipliers.items():
        assert multiplier.any()
        torch.testing.assert_close(answers[0]["multipliers"][name], multiplier, rtol=1e-5, atol=1e-6)
