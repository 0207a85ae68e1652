"""Gates under DistributedDataParallel, SyncBatchNorm and torch.compile."""

import pytest
import torch
import torch._inductor.config
from gates import parallel
from gates.networks import IMAGES, chain, gated
from gates.transformers_tiny import gpt2
from ranks import Ranks
from torch import nn

from nupi import gates


@pytest.fixture(scope="module")
def ranks():
    both = Ranks(2)
    yield both
    both.close()


def test_ranks_keep_the_same_gates_and_the_same_multiplier(ranks):
    first, second = ranks.run(parallel.trained_on_ranks, world=2)
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


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of its own doings
@pytest.mark.parametrize(
    ("build", "backend"),
    [
        ("chain", "aot_eager"),
        pytest.param("chain", "inductor", marks=pytest.mark.nightly),
        ("gpt2", "aot_eager"),
        pytest.param("gpt2", "inductor", marks=pytest.mark.nightly),
    ],
)
def test_a_compiled_model_computes_and_trains_as_the_plain_one(build, backend):
    torch._dynamo.reset()
    if build == "chain":
        model, example = gated(chain), IMAGES
    else:
        model, example = gpt2()
        gates.attach_transformer(model)
    compiled = torch.compile(model, backend=backend)

    def number(net):
        output = net(example)
        return (output if build == "chain" else output.logits).square().mean()

    results = []
    with torch._inductor.config.patch(fallback_random=True):  # gates draw their noise as eager code does
        for net in (model, compiled):
            torch.manual_seed(3)
            model.train().zero_grad()
            for module in model.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.reset_running_stats()
            loss = number(net)
            loss.backward()
            gradients = [phi.grad.clone() for phi in gates.gate_parameters(model)]
            model.eval()
            results.append([loss.detach(), number(net).detach(), *gradients])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    with pytest.raises(gates.HarvestError, match=r"pass model\._orig_mod"):
        gates.harvest(compiled, example)
    with pytest.raises(gates.HarvestError, match=r"pass model\._orig_mod"):
        gates.budget(compiled, example, flops=0.5)
