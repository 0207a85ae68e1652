"""A window is the measure of its rows together, whatever comes in between."""

import copy
import io

import pytest
import torch

import nupi
from nupi import rates


def batch(seed, count=20):
    rng = torch.Generator().manual_seed(seed)
    return (
        torch.randn(count, generator=rng),
        torch.randint(2, (count,), generator=rng),
        torch.randint(3, (count,), generator=rng),
    )


CONSTRAINTS = [
    rates.recall(groups=3).gap() <= 0.05,
    rates.precision() >= 0.9,
    rates.roc_auc() >= 0.9,
    rates.recall(groups=3) >= rates.accuracy() - 0.1,
]


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=str)
def test_a_window_is_the_exact_measure_of_its_last_batches(constraint):
    window, seen = rates.Window(4), []
    for seed in range(9):
        seen.append(batch(seed, count=20 + seed))
        measured = constraint(*seen[-1], window=window)
        joined = constraint.hard(*(torch.cat(columns) for columns in zip(*seen[-4:], strict=True)))
        assert torch.equal(measured.hard.sums / measured.hard.counts, joined.sums / joined.counts)
        alone = constraint.soft(*seen[-1])
        assert torch.equal(measured.soft.sums, alone.sums)  # the model sees its own batch
    assert len(window) == 4


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=str)
def test_a_batch_of_nans_is_refused_and_forgotten(constraint):
    window, plain = rates.Window(3), rates.Window(3)
    lagrangian = nupi.Lagrangian({"rate": constraint.kind()})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1)
    for each in (window, plain):
        constraint(*batch(0), window=each)
    logits, labels, groups = batch(1)
    with pytest.raises(nupi.NonFiniteViolationError):
        lagrangian.ascend(dual, {"rate": constraint.hard(logits * torch.nan, labels, groups, window=window)})
    after = constraint.hard(*batch(2), window=window)
    expected = constraint.hard(*batch(2), window=plain)
    torch.testing.assert_close(after.sums / after.counts, expected.sums / expected.counts)


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=str)
def test_a_window_goes_on_from_a_checkpoint(constraint):
    window = rates.Window(3)
    for seed in range(5):
        constraint(*batch(seed), window=window)
    file = io.BytesIO()
    torch.save(window.state_dict(), file)
    file.seek(0)
    resumed = rates.Window(3)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    copied = copy.deepcopy(window)
    there = [constraint.hard(*batch(9), window=each) for each in (window, resumed, copied)]
    assert torch.equal(there[0].sums, there[1].sums)
    assert torch.equal(there[0].sums, there[2].sums)


def test_a_window_belongs_to_one_constraint():
    window = rates.Window(3)
    (rates.recall(groups=3) >= 0.9)(*batch(0), window=window)
    with pytest.raises(ValueError, match="another constraint"):
        (rates.recall() >= 0.9)(*batch(1), window=window)
    assert len(window) == 1
    window.clear()
    (rates.recall() >= 0.9)(*batch(1), window=window)


@pytest.mark.parametrize("batches", [0, -1, 2.5, True])
def test_a_window_holds_a_whole_number_of_batches(batches):
    with pytest.raises(ValueError, match="batches="):
        rates.Window(batches)


def test_another_windows_state_is_refused():
    with pytest.raises(ValueError, match="window of 5 batches, not 3"):
        rates.Window(3).load_state_dict(rates.Window(5).state_dict())
    with pytest.raises(ValueError, match="must have 'batches'"):
        rates.Window(3).load_state_dict({})
