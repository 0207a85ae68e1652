"""Rates and gaps against plain loops, fairlearn's metrics and finite differences."""

import fairlearn.metrics
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nupi
from nupi import rates
from nupi.rates import EqualizedOdds, EqualOpportunity, StatisticalParity

CRITERIA = (StatisticalParity, EqualOpportunity, EqualizedOdds)


def rows(count, num_groups, seed):
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, generator=rng, dtype=torch.float64) * 2
    labels = torch.randint(2, (count,), generator=rng)
    groups = torch.randint(num_groups, (count,), generator=rng)
    return logits, labels, groups


def plain_rates(logits, labels, groups, num_groups, hard):
    """Positive, true positive and false positive rate per group; nan where there are no rows."""
    p = (logits > 0).double() if hard else 1 / (1 + torch.exp(-logits))
    conditions = (labels >= 0, labels == 1, labels == 0)
    table = np.full((3, num_groups + 1), np.nan)
    for c, condition in enumerate(conditions):
        for g in range(num_groups + 1):
            chosen = p[condition & ((groups == g) | (g == num_groups))]  # the last column is everybody
            if len(chosen):
                table[c, g] = chosen.mean()
    return table


def plain_gaps(table, against):
    if against == "overall":
        return table[:, :-1] - table[:, -1:]
    count = table.shape[1] - 1
    return np.array([[row[g] - row[h] for g in range(count) for h in range(g + 1, count)] for row in table])


def dense(indexed, size):
    out = np.full(size, np.nan)
    out[indexed.indices.numpy()] = indexed.values.detach().numpy()
    return out


@settings(max_examples=settings.default.max_examples)
@given(
    count=st.integers(1, 40),
    num_groups=st.integers(2, 6),
    seed=st.integers(0, 10_000),
    hard=st.booleans(),
    against=st.sampled_from(["overall", "groups"]),
)
def test_rates_and_gaps_are_those_of_a_plain_loop(count, num_groups, seed, hard, against):
    logits, labels, groups = rows(count, num_groups, seed)
    table = plain_rates(logits, labels, groups, num_groups, hard)
    functions = (
        lambda: rates.positive_rate(logits, groups, num_groups, hard=hard),
        lambda: rates.true_positive_rate(logits, labels, groups, num_groups, hard=hard),
        lambda: rates.false_positive_rate(logits, labels, groups, num_groups, hard=hard),
    )
    for expected, function in zip(table, functions, strict=True):
        np.testing.assert_allclose(dense(function(), num_groups), expected[:-1], atol=1e-12)
    gaps = plain_gaps(table, against)
    for criterion, expected in zip(CRITERIA, (gaps[:1], gaps[1:2], gaps[1:]), strict=True):
        chosen = criterion(num_groups, against)
        found = dense(chosen(logits, labels, groups, hard=hard), chosen.size)
        np.testing.assert_allclose(found, expected.flatten(), atol=1e-12)


def test_hard_rates_are_fairlearns():
    logits, labels, groups = rows(400, 5, seed=0)
    metrics = {
        "selection": fairlearn.metrics.selection_rate,
        "tpr": fairlearn.metrics.true_positive_rate,
        "fpr": fairlearn.metrics.false_positive_rate,
    }
    frame = fairlearn.metrics.MetricFrame(
        metrics=metrics, y_true=labels.numpy(), y_pred=(logits > 0).numpy(), sensitive_features=groups.numpy()
    )
    ours = {
        "selection": rates.positive_rate(logits, groups, 5, hard=True),
        "tpr": rates.true_positive_rate(logits, labels, groups, 5, hard=True),
        "fpr": rates.false_positive_rate(logits, labels, groups, 5, hard=True),
    }
    for name, found in ours.items():
        np.testing.assert_allclose(found.values.numpy(), frame.by_group[name], atol=1e-12)
    gaps = StatisticalParity(5).measure([(logits, labels, groups)], hard=True)
    expected = frame.difference(method="to_overall")["selection"]
    assert gaps.abs().max().item() == pytest.approx(expected, abs=1e-12)
    pairs = StatisticalParity(5, "groups").measure([(logits, labels, groups)], hard=True)
    assert pairs.abs().max().item() == pytest.approx(frame.difference()["selection"], abs=1e-12)


@pytest.mark.parametrize("against", ["overall", "groups"])
@pytest.mark.parametrize("criterion", CRITERIA)
def test_the_gradient_of_soft_gaps_is_the_finite_difference(criterion, against):
    logits, labels, groups = rows(30, 4, seed=1)
    chosen = criterion(4, against)
    logits.requires_grad_()
    torch.autograd.gradcheck(lambda z: chosen(z, labels, groups).values, (logits,))
    assert not chosen(logits, labels, groups, hard=True).values.requires_grad


@settings(max_examples=settings.default.max_examples // 2)
@given(seed=st.integers(0, 10_000), chunk=st.integers(1, 70), hard=st.booleans())
def test_a_measure_does_not_depend_on_the_chunks(seed, chunk, hard):
    logits, labels, groups = rows(60, 3, seed)
    chosen = EqualizedOdds(3)
    whole = chosen(logits, labels, groups, hard=hard)
    if len(whole.indices) < chosen.size:
        with pytest.raises(ValueError, match="batches must hold rows for every group"):
            chosen.measure([(logits, labels, groups)], hard=hard)
        return
    chunks = zip(*(column.split(chunk) for column in (logits, labels, groups)), strict=True)
    torch.testing.assert_close(chosen.measure(chunks, hard=hard), whole.values)


def test_a_measure_reads_a_loader_once_and_builds_no_graph():
    logits, labels, groups = rows(64, 4, seed=2)
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(logits, labels, groups), batch_size=10
    )
    reads = []

    def batches():
        for x, y, g in loader:
            reads.append(len(x))
            yield x * scale, y, g

    measured = StatisticalParity(4).measure(batches())
    assert sum(reads) == 64
    assert max(reads) == 10
    assert not measured.requires_grad
    torch.testing.assert_close(measured, StatisticalParity(4)(logits, None, groups).values)


def test_many_float32_rows_are_summed_exactly_enough():
    rng = torch.Generator().manual_seed(0)
    logits, groups = torch.randn(500_000, generator=rng), torch.randint(2, (500_000,), generator=rng)
    chunks = zip(logits.split(1000), groups.split(1000), strict=True)
    measured = StatisticalParity(2).measure((x, x, g) for x, g in chunks)
    exact = torch.stack([logits.double().sigmoid()[groups == g].mean() for g in range(2)])
    assert measured.dtype == torch.float32
    torch.testing.assert_close(measured.double(), exact - logits.double().sigmoid().mean(), atol=1e-8, rtol=0)


@pytest.mark.nightly
def test_a_chunk_with_more_rows_than_float32_can_count_is_measured_exactly():
    rows, few = 2**24 + 2**20, 1000
    groups = torch.zeros(rows, dtype=torch.long)
    groups[-few:] = 1
    gaps = nupi.rates.StatisticalParity(2).measure([(torch.ones(rows), None, groups)], hard=True)
    assert gaps.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("labels", [[-1, 1, 1], [0, 2, 0], [0.0, 0.5, 1.0], [0.0, float("nan"), 1.0]])
def test_labels_that_would_count_for_nothing_are_refused(labels):
    arguments = (torch.zeros(3), torch.tensor(labels), torch.tensor([0, 1, 1]))
    with pytest.raises(ValueError, match="labels are 0 and 1"):
        nupi.rates.EqualizedOdds(2)(*arguments)
    nupi.rates.StatisticalParity(2)(*arguments)  # which does not look at them


def test_a_group_absent_from_a_batch_pulls_nothing():
    parity = StatisticalParity(3)
    lagrangian = nupi.Lagrangian({"parity": nupi.Equality(3, init=torch.tensor([1.0, 100.0, -1.0]))})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1)
    logits = torch.tensor([0.3, -0.2, 0.1], requires_grad=True)
    gaps = parity(logits, None, torch.tensor([0, 2, 2]))
    assert gaps.indices.tolist() == [0, 2]
    lagrangian(logits.sum() * 0, {"parity": gaps}).backward()
    assert logits.grad.abs().max() < 1  # the multiplier of 100 is group 1's
    lagrangian.ascend(dual, {"parity": gaps})
    assert lagrangian.multipliers["parity"][1] == 100


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_rates_are_never_narrower_than_float32(dtype):
    logits, _, groups = rows(50, 2, seed=3)
    values = rates.positive_rate(logits.to(dtype), groups, 2).values
    assert values.dtype == torch.promote_types(dtype, torch.float32)


def test_what_is_wrong_is_named():
    logits, labels, groups = rows(10, 3, seed=4)
    parity = StatisticalParity(3)
    with pytest.raises(ValueError, match=r"groups=1: a gap needs at least 2"):
        StatisticalParity(1)
    with pytest.raises(ValueError, match=r"against='all'.*overall, groups"):
        StatisticalParity(3, "all")
    with pytest.raises(ValueError, match=r"logits has shape \(10, 1\).*squeeze"):
        parity(logits.unsqueeze(1), None, groups)
    with pytest.raises(ValueError, match=r"groups has shape \(9,\)"):
        parity(logits, None, groups[:9])
    with pytest.raises(ValueError, match=r"groups has dtype torch.float32.*long"):
        parity(logits, None, groups.float())
    with pytest.raises(IndexError, match=r"groups runs from .* to 3, but the groups are 0 to 2"):
        parity(logits, None, torch.full_like(groups, 3))
    with pytest.raises(ValueError, match="labels=None"):
        EqualOpportunity(3)(logits, None, groups)
    with pytest.raises(ValueError, match="batches is empty"):
        parity.measure([])
    with pytest.raises(ValueError, match="group 2 without any row"):
        parity.measure([(logits, labels, groups.clamp(max=1))])


@pytest.mark.parametrize("criterion", CRITERIA)
def test_a_model_of_nans_is_not_fair(criterion):
    batch = (torch.full((4,), torch.nan), torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 1, 1]))
    gaps = criterion(2).measure([batch], hard=True)
    assert gaps.isnan().all()
    lagrangian = nupi.Lagrangian({"gap": nupi.Equality(criterion(2).size)})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1)
    for seen in (gaps, criterion(2)(*batch, hard=True)):
        with pytest.raises(nupi.NonFiniteViolationError):
            lagrangian.ascend(dual, {"gap": seen})
    rate = rates.positive_rate(batch[0], batch[2], 2, hard=True)
    assert rate.values.isnan().all()


def test_a_tally_knows_two_kinds_of_gaps():
    logits, labels, groups = rows(10, 3, seed=4)
    tally = StatisticalParity(3).tally(logits, labels, groups)
    with pytest.raises(ValueError, match=r"against='Overall'.*overall, groups"):
        tally.gaps("Overall")


def test_tallies_of_other_groups_do_not_add_up():
    logits, _, _ = rows(10, 3, seed=4)
    three, one = (
        rates.Tally.of(logits, None, torch.zeros(10, dtype=torch.long), count, ("all",)) for count in (3, 1)
    )
    with pytest.raises(ValueError, match=r"\(1, 3\) and \(1, 1\) cannot be added"):
        three + one


def test_a_tally_whose_parts_do_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"rows has shape \(1, 3\) and predictions \(1, 1\)"):
        rates.Tally(torch.ones(1, 3), torch.ones(1, 1))


def test_sizes_are_plain_ints_whatever_the_number_of_groups_was():
    for groups in (torch.tensor(3), np.int64(3)):
        assert type(StatisticalParity(groups).size) is int
        assert StatisticalParity(groups) == StatisticalParity(3)


@pytest.mark.parametrize("groups", [2.5, "2", None, True])
def test_the_number_of_groups_is_a_whole_number(groups):
    with pytest.raises(ValueError, match=r"groups=.* must be a whole number"):
        StatisticalParity(groups)


def test_a_list_is_refused_by_name():
    logits, labels, groups = rows(4, 2, seed=4)
    with pytest.raises(TypeError, match="logits must be a tensor, but a list came"):
        rates.positive_rate(logits.tolist(), groups, 2)
    with pytest.raises(TypeError, match="groups must be a tensor, but a list came"):
        rates.true_positive_rate(logits, labels, groups.tolist(), 2)
    with pytest.raises(TypeError, match="labels must be a tensor, but a list came"):
        EqualizedOdds(2)(logits, labels.tolist(), groups)
