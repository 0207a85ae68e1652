"""The mixin in front of TRL's trainers: what they train on, log and save, with constraints."""

from functools import partial

import oracles
import pytest
import torch
import transformers
from integrations import trl_run
from packaging.version import Version
from trl import DPOTrainer, SFTTrainer

import nupi

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:trl"),
    pytest.mark.filterwarnings("ignore:.*unclosed:ResourceWarning"),
]

BOTH = pytest.mark.parametrize("name", ["memory", "entropy"])
MAKE = {"memory": trl_run.sft, "entropy": trl_run.dpo}
PLAIN = {"memory": SFTTrainer, "entropy": DPOTrainer}


def logged(trainer, key):
    return [entry[key] for entry in trainer.state.log_history if "loss" in entry]


@BOTH
def test_violations_without_a_gradient_leave_the_training_as_it_is(tmp_path, name):
    ours = MAKE[name](tmp_path / "ours", 4, k=2, violations=lambda *_: {name: torch.zeros(1)})
    theirs = MAKE[name](tmp_path / "theirs", 4, k=2, trainer=PLAIN[name])
    with pytest.warns(UserWarning, match=f"the violation of '{name}' has no gradient"):
        ours.train()
    theirs.train()
    assert logged(ours, "loss") == logged(theirs, "loss")
    assert logged(ours, "nupi/lagrangian") == pytest.approx(
        logged(ours, "loss"), abs=1e-4
    )  # older ones round
    assert ours.evaluate()["eval_loss"] == theirs.evaluate()["eval_loss"]
    for parameter, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        assert torch.equal(parameter, other)


@BOTH
def test_multipliers_follow_the_rule_once_a_step_and_the_constraint_counts(tmp_path, name):
    trainer = MAKE[name](tmp_path / "ours", 12, k=2)
    trainer.lagrangian.multipliers[name].fill_(2.0)
    trainer.train()
    violations, multipliers = (logged(trainer, f"nupi/{name}/{what}") for what in ("violation", "multiplier"))
    assert len(violations) == 12
    path = oracles.nupi(violations, 2.0, 0.1, 1.0, 0.9, "bumpless", "conditional", low=0.0)
    assert multipliers == pytest.approx(path, abs=1e-4)
    without = MAKE[name](tmp_path / "without", 12, k=2, dual=partial(nupi.NuPI, ki=1e-12))
    without.train()
    assert violations[-1] < logged(without, f"nupi/{name}/violation")[-1] - 0.02


def test_what_is_constrained_is_what_the_loss_is_made_of(tmp_path):
    trainer = trl_run.sft(tmp_path, 4)
    trainer.train()
    # Older versions of the Trainer count the first of 9 tokens too, which has no prediction.
    once = 9 / 8 if Version(transformers.__version__) < Version("5") else 1.0
    again = [3.4 - once * loss for loss in logged(trainer, "loss")]
    assert logged(trainer, "nupi/memory/violation") == pytest.approx(again, abs=2e-4)
    metrics = trainer.evaluate()
    assert metrics["eval_nupi_violation"] == pytest.approx(3.4 - metrics["eval_loss"], abs=1e-5)


@BOTH
def test_a_run_goes_on_from_its_checkpoint_bit_for_bit(tmp_path, name):
    whole = MAKE[name](tmp_path / "whole", 4)
    whole.train()
    MAKE[name](tmp_path / "part", 2).train()
    again = MAKE[name](tmp_path / "part", 4)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 4
    for part in ("model", "lagrangian"):
        ours, theirs = (getattr(trainer, part).state_dict() for trainer in (again, whole))
        for key, value in theirs.items():
            assert torch.equal(ours[key], value), key
    assert torch.equal(*(each.dual.state_dict()["state"][0]["xi"] for each in (again, whole)))
