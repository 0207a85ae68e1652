"""A model trained by many ranks is the model that one process trains on the joined batch; so are its multipliers."""

import pytest
import torch
from many_processes import gradients, resumed, scenarios
from many_processes.scenarios import STEPS

import nupi

SHARDS = pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"), reason="fully_shard needs a newer torch to work on the CPU"
)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize(
    "scenario", [scenarios.data_parallel, pytest.param(scenarios.fully_sharded, marks=SHARDS)]
)
def test_many_ranks_are_one_process_on_the_joined_batch(ranks, scenario, world):
    answers = ranks.run(scenario, world=world)
    for parameters, multipliers in answers[1:]:
        assert all(torch.equal(a, b) for a, b in zip(parameters, answers[0][0], strict=True))
        assert all(torch.equal(multipliers[name], answers[0][1][name]) for name in multipliers)

    def joined(step):
        """Every rank's first two rows are bounded: the rows one process has to bound in the joined batch."""
        shards = [scenarios.shard_of(step, rank, world) for rank in range(world)]
        return tuple(torch.cat(parts) for parts in zip(*shards, strict=True))

    expected, wanted = one_process([joined(step) for step in range(STEPS)], world)
    for parameter, one in zip(answers[0][0], expected, strict=True):
        torch.testing.assert_close(parameter, one, rtol=1e-9, atol=1e-11)
    for name, multiplier in wanted.items():
        assert multiplier.any()
        torch.testing.assert_close(answers[0][1][name], multiplier, rtol=1e-9, atol=1e-11)


def one_process(batches, world):
    """The same problem by hand: no reduce, no ranks, each violation written for the joined batch."""
    model = scenarios.net()
    lagrangian = nupi.Lagrangian(scenarios.model_constraints()).double()
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=0.5, init="error", form="velocity")
    primal = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    bounded = torch.cat([torch.arange(2) + rank * 24 // world for rank in range(world)])
    for x, y, g in batches:
        out = model(x)
        p = out.squeeze(1)
        gaps = [p[g == group].mean() - p.mean() for group in range(3)]
        violations = {
            "mean": p.square().mean() - 0.2,
            "bound": nupi.Indexed(p[bounded] - 0.1, torch.arange(2 * world)),
            "gap": torch.stack(gaps),
        }
        lagrangian.ascend(dual, violations)
        primal.zero_grad()
        lagrangian((out - y).square().mean(), violations).backward()
        primal.step()
    return [p.detach() for p in model.parameters()], lagrangian.state_dict()


def test_some_rank_has_an_empty_group():
    """The premise of the test above: with 2 and with 4 ranks, the first one sees nobody of group 2."""
    for world in (2, 4):
        first, last = (scenarios.shard_of(step, rank, world)[2] for step, rank in ((0, 0), (0, world - 1)))
        assert not (first == 2).any()
        assert (last == 2).any()


@pytest.mark.parametrize("way", gradients.WAYS)
def test_a_group_that_one_rank_has_weighs_its_share_of_the_ranks_unless_it_is_given_by_total(ranks, way):
    """What docs/howto/many_processes.md says of the model's gradient; the multipliers are right in each way."""
    world = 2
    x, y, g = (
        torch.cat(parts)
        for parts in zip(*(scenarios.shard_of(0, rank, world) for rank in range(world)), strict=True)
    )
    model = scenarios.net()
    out = model(x)
    violation = (out.squeeze(1)[g == 2] - 0.3).mean()

    def gradient(value):
        grads = torch.autograd.grad(
            value, list(model.parameters()), retain_graph=True, materialize_grads=True
        )
        return torch.cat([grad.reshape(-1) for grad in grads])

    of_loss, of_constraint = gradient((out - y).square().mean()), gradient(gradients.THETA * violation)
    weight = 1.0 if way == "total" else 1 / world
    assert of_constraint.norm() > 0.1
    for found, multiplier in ranks.run(gradients.group_2_on_one_rank, way, world=world):
        torch.testing.assert_close(found, of_loss + weight * of_constraint, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(multiplier, gradients.THETA + 0.1 * violation.detach().reshape(1))


@pytest.mark.parametrize("world", [2, 4])
def test_a_total_can_be_differentiated_twice(ranks, world):
    """The ranks' losses add up to one, and a penalty on its gradient in each rank's x has a gradient of its own."""
    weights, x = torch.arange(1.0, 1.0 + world), torch.linspace(-1.0, 2.0, 3 * world).view(world, 3).double()
    joined = x.clone().requires_grad_()
    loss = weights.sum() * joined.sum(0).pow(3).sum()
    (slope,) = torch.autograd.grad(loss, joined, create_graph=True)
    (weights * slope.square().sum(1)).sum().backward()
    for answer, expected in zip(
        ranks.run(gradients.of_a_gradient, weights, x, world=world), joined.grad, strict=True
    ):
        torch.testing.assert_close(answer, expected)


@SHARDS
def test_a_sharded_model_and_its_constraints_stop_and_go_on_bit_for_bit(ranks, tmp_path):
    answers = ranks.run(resumed.sharded, str(tmp_path), world=2)
    for whole, again in answers:
        assert len(whole) == 4 + 4 + 2 + 1 + 2, "parameters, momentum, xi, beyond, multipliers"
        assert all(torch.equal(*pair) for pair in zip(whole, again, strict=True))


@pytest.mark.parametrize(
    ("way", "how", "times"),
    [
        ("joined", None, 1),
        ("tensor", None, 1),
        ("tensor", "mean", 1),
        ("joined", "mean", 2),
        ("joined", "sum", 2),
        ("tensor", "sum", 2),
        ("own", "mean", "summed"),
        ("own", "sum", "summed"),
    ],
)
def test_rates_over_shards_are_counted_as_the_page_on_training_says(ranks, way, how, times):
    shards = [gradients.scores(rank) for rank in range(2)]
    criterion = nupi.rates.StatisticalParity(groups=3)

    def exact(chunks):
        doubles = [(logits.double(), labels, groups) for logits, labels, groups in chunks]
        return criterion.measure(doubles)

    expected = sum(map(exact, shards)) if times == "summed" else times * exact(shards[0] + shards[1])
    for found in ranks.run(gradients.parity, way, how, world=2):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
