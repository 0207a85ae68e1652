"""Gates under DistributedDataParallel and SyncBatchNorm; test_compiled.py has torch.compile."""

import pytest
from gates import parallel
from gates.networks import IMAGES, chain, gated
from torch import nn

from nupi import gates


@pytest.mark.parametrize(
    ("build", "backend"),
    [
        (parallel.model, None),
        (parallel.transformer, None),
        pytest.param(parallel.model, "aot_eager", marks=pytest.mark.nightly),
    ],
    ids=["norms", "transformer", "norms, compiled"],
)
def test_ranks_keep_the_same_gates_and_the_same_multiplier(ranks, build, backend):
    first, second = ranks.run(parallel.trained_on_ranks, 4, build, backend, world=2)
    assert first == second
    assert first["moved"]
    assert first["realised"] == pytest.approx(first["harvested"], rel=1e-6)


def test_the_gradient_of_the_gates_is_the_mean_over_ranks_plus_that_of_the_size(ranks):
    for found, expected in ranks.run(parallel.gate_gradients, world=2):
        for one, other in zip(found, expected, strict=True):
            assert one == pytest.approx(other, rel=1e-5, abs=1e-8)


def test_a_budget_on_time_is_the_same_on_all_ranks(ranks):
    """Each has its own clock; with two tables the ranks would fit two networks."""
    first, second = ranks.run(parallel.latency_shares, world=2)
    assert first == second


def test_a_gated_norm_that_was_converted_to_sync_batch_norm_is_refused():
    model = nn.SyncBatchNorm.convert_sync_batchnorm(gated(chain))
    for what in (
        gates.density,
        lambda m: gates.budget(m, IMAGES, flops=0.5),
        lambda m: gates.harvest(m, IMAGES),
    ):
        with pytest.raises(ValueError, match="in a SyncBatchNorm, which does not use them"):
            what(model)


def test_a_budget_notices_a_conversion_to_sync_batch_norm_when_training_starts():
    """Else the gates would close, the network would not use them, and only the harvest would say so."""
    model = gated(chain)
    budget = gates.budget(model, IMAGES, flops=0.5)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for _ in range(2):
        with pytest.raises(ValueError, match="in a SyncBatchNorm, which does not use them"):
            budget()
