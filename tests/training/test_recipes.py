"""Mixed precision, accumulation and clipping do not touch the multipliers' path; nor does a step the scaler skips."""

import copy
import math

import oracles
import pytest
import torch
from examples import training_recipes as recipes
from torch import nn

import nupi

KI, KP, NU = 0.02, 0.5, 0.5


def plain_loop(violations, project):
    """nuPI in a few plain lines, from the violations that came."""
    low = 0.0 if project else -math.inf
    return oracles.nupi(violations, 0.0, KI, KP, NU, "bumpless", "conditional", low=low)


class Recorded(nupi.Lagrangian):
    """Keeps what it was given, and where its multipliers went."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen, self.path = {}, {}

    def ascend(self, dual, violations):
        super().ascend(dual, violations)
        for name, violation in violations.items():
            if isinstance(violation, nupi.Averaged):
                violation = violation.sums / violation.counts
            self.seen.setdefault(name, []).append(violation.item())
            self.path.setdefault(name, []).append(self.multipliers[name].item())


def problem(dtype=torch.float32):
    model, _, _, _ = recipes.problem()
    model = model.to(dtype)
    lagrangian = Recorded({"mean": nupi.Equality(), "size": nupi.Inequality()}).to(dtype)
    primal = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, primal, lagrangian, nupi.NuPI(lagrangian.parameters(), KI, KP, NU)


def assert_follows_the_rule(lagrangian):
    assert any(lagrangian.path["mean"])
    for name, project in (("mean", False), ("size", True)):
        expected = plain_loop(lagrangian.seen[name], project)
        assert lagrangian.path[name] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def without_anything(parts, batches, *, autocast=False):
    model, primal, lagrangian, dual = parts
    for batch in batches:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss, violations = recipes.evaluate(model, batch)
        lagrangian.ascend(dual, violations)
        lagrangian(loss, violations).backward()
        primal.step()
        primal.zero_grad()


def test_a_scaler_changes_no_bit_of_the_path():
    batches = recipes.draw(40)
    plain, scaled = problem(), problem()
    without_anything(plain, batches, autocast=True)
    # A scale that is a power of two rounds nothing, so all must be equal.
    recipes.mixed_precision(*scaled, batches, torch.amp.GradScaler("cpu", init_scale=2.0**10))
    assert scaled[2].path == plain[2].path
    assert_follows_the_rule(scaled[2])
    for left, right in zip(plain[0].parameters(), scaled[0].parameters(), strict=True):
        assert torch.equal(left, right)


def test_autocast_itself_costs_bfloat16_and_no_more():
    batches = recipes.draw(40)
    exact, cast = problem(), problem()
    without_anything(exact, batches)
    without_anything(cast, batches, autocast=True)
    assert cast[2].path["mean"] == pytest.approx(exact[2].path["mean"], abs=0.02)
    assert all(multiplier.dtype == torch.float32 for multiplier in cast[2].multipliers.values())


def test_steps_that_the_scaler_skips_do_not_corrupt_the_multipliers():
    parts = problem()
    model, _, lagrangian, _ = parts
    start = copy.deepcopy(model.state_dict())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    overflow = model[0].weight.register_hook(lambda grad: grad * torch.inf)
    batches = recipes.draw(60)
    recipes.mixed_precision(*parts, batches[:2], scaler)
    assert scaler.get_scale() == 2.0**14, "the scaler must have skipped both steps"
    assert all(torch.equal(start[name], value) for name, value in model.state_dict().items())
    assert_follows_the_rule(lagrangian)
    overflow.remove()
    recipes.mixed_precision(*parts, batches[2:], scaler)
    assert scaler.get_scale() == 2.0**14
    assert_follows_the_rule(lagrangian)
    assert not torch.equal(start["0.weight"], model.state_dict()["0.weight"])


def test_an_overflow_in_the_violation_itself_is_refused_and_the_run_goes_on():
    parts = problem()
    model, primal, lagrangian, dual = parts
    recipes.mixed_precision(*parts, recipes.draw(5), torch.amp.GradScaler("cpu"))
    before, state = lagrangian.state_dict(), copy.deepcopy(dual.state_dict()["state"])
    huge = (torch.full((4, 4), 1e30), torch.zeros(4))
    model[0].weight.data *= 1e10
    model[1] = nn.Identity()
    with pytest.raises(nupi.NonFiniteViolationError, match="'size'"):
        recipes.mixed_precision(model, primal, lagrangian, dual, [huge], torch.amp.GradScaler("cpu"))
    assert all(torch.equal(value, lagrangian.state_dict()[name]) for name, value in before.items())
    for key, slots in state.items():
        assert torch.equal(slots["xi"], dual.state_dict()["state"][key]["xi"])


@pytest.mark.parametrize("k", [1, 2, 4])
def test_k_micro_batches_are_one_batch(k):
    batches = [tuple(part.double() for part in batch) for batch in recipes.draw(30)]
    whole, split = problem(torch.float64), problem(torch.float64)
    recipes.accumulation(*whole, [[batch] for batch in batches])
    recipes.accumulation(*split, [list(zip(x.chunk(k), y.chunk(k), strict=True)) for x, y in batches])
    for name in ("mean", "size"):
        assert split[2].path[name] == pytest.approx(whole[2].path[name], rel=1e-9, abs=1e-12)
    assert_follows_the_rule(split[2])


def test_every_micro_batch_counts_by_its_rows_and_for_the_constraints_it_has(monkeypatch):
    """The last micro-batch is small and lacks "size"; another lacks "mean"."""
    sizes, lacks = (8, 20, 4), ("mean", None, "size")
    batches = [tuple(part.double() for part in batch) for batch in recipes.draw(20)]
    plain = recipes.evaluate

    def evaluate(model, batch):
        loss, violations = plain(model, batch)
        return loss, {n: v for n, v in violations.items() if lacks[sizes.index(len(batch[0]))] != n}

    monkeypatch.setattr(recipes, "evaluate", evaluate)
    model, primal, lagrangian, dual = problem(torch.float64)
    expected = {"mean": [], "size": []}
    for x, y in batches:
        with torch.no_grad():
            out = model(x).squeeze(1)
        expected["mean"].append(out[8:].mean().item())
        expected["size"].append(out[:28].square().mean().item() - 0.3)
        parts = [list(zip(x.split(sizes), y.split(sizes), strict=True))]
        recipes.accumulation(model, primal, lagrangian, dual, parts)
    for name, values in expected.items():
        assert lagrangian.seen[name] == pytest.approx(values, rel=1e-9, abs=1e-12)
    assert_follows_the_rule(lagrangian)


def test_sums_and_counts_are_where_the_model_is():
    """On the meta device, which stands for an accelerator: it has no numbers, but it is not the CPU."""

    class Watched(nupi.Lagrangian):
        def ascend(self, _dual, violations):
            self.devices = {
                part.device.type for each in violations.values() for part in (each.sums, each.counts)
            }

    model, _, lagrangian, dual = recipes.problem()
    model, lagrangian = model.to("meta"), Watched(lagrangian.constraints).to("meta")
    primal = torch.optim.SGD(model.parameters(), 0.1)
    batches = [[tuple(part.to("meta") for part in batch) for batch in recipes.draw(2)]]
    recipes.accumulation(model, primal, lagrangian, dual, batches)
    assert lagrangian.devices == {"meta"}


def test_clipping_is_for_the_model_alone():
    batches = recipes.draw(40)
    plain, loose, tight = problem(), problem(), problem()
    without_anything(plain, batches)
    recipes.clipping(*loose, batches, max_norm=1e9)
    recipes.clipping(*tight, batches, max_norm=0.05)
    assert loose[2].path == plain[2].path
    assert tight[2].path != plain[2].path  # the model went another way ...
    assert_follows_the_rule(tight[2])  # ... and its multipliers answered what they saw, in full


def test_the_example_runs_and_ends_feasible(capsys):
    recipes.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    for line in lines:
        mean, size = (float(part.split()[1]) for part in line.split(":")[1].split("(")[0].split(","))
        assert abs(mean) < 0.1
        assert size < 0.1
