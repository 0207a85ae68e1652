"""The mixin in front of TRL's trainers: what they train on, log and save, with constraints."""

from functools import partial

import oracles
import pytest
import torch
from integrations import trl_run
from trl import DPOTrainer, SFTTrainer

import nupi

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:trl"),
    pytest.mark.filterwarnings("ignore:.*unclosed:ResourceWarning"),
]

BOTH = pytest.mark.parametrize(
    ("make", "plain", "name"),
    [(trl_run.sft, SFTTrainer, "memory"), (trl_run.dpo, DPOTrainer, "entropy")],
    ids=["sft", "dpo"],
)


def logged(trainer, key):
    return [entry[key] for entry in trainer.state.log_history if "loss" in entry]


@BOTH
def test_violations_without_a_gradient_leave_the_training_as_it_is(tmp_path, make, plain, name):
    ours = make(tmp_path / "ours", 4, k=2, violations=lambda *_: {name: torch.zeros(1)})
    theirs = make(tmp_path / "theirs", 4, k=2, trainer=plain)
    for trainer in (ours, theirs):
        trainer.train()
    assert logged(ours, "loss") == logged(theirs, "loss") == logged(ours, "nupi/lagrangian")
    assert ours.evaluate()["eval_loss"] == theirs.evaluate()["eval_loss"]
    for parameter, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        assert torch.equal(parameter, other)


@BOTH
def test_multipliers_follow_the_rule_once_a_step_and_the_constraint_counts(tmp_path, make, plain, name):
    trainer = make(tmp_path / "ours", 24, k=2)
    trainer.lagrangian.multipliers[name].fill_(1.0)
    trainer.train()
    violations, multipliers = (logged(trainer, f"nupi/{name}/{what}") for what in ("violation", "multiplier"))
    assert len(violations) == 24
    path = oracles.nupi(violations, 1.0, 0.1, 1.0, 0.9, "bumpless", "conditional", low=0.0)
    assert multipliers == pytest.approx(path, abs=1e-4)
    without = make(tmp_path / "without", 24, k=2, dual=partial(nupi.NuPI, ki=1e-12))
    without.train()
    assert violations[-1] < logged(without, f"nupi/{name}/violation")[-1] - 0.05


def test_what_is_constrained_is_what_the_loss_is_made_of(tmp_path):
    trainer = trl_run.sft(tmp_path, 4)
    trainer.train()
    again = [3.4 - loss for loss in logged(trainer, "loss")]
    assert logged(trainer, "nupi/memory/violation") == pytest.approx(again, abs=1e-4)
    metrics = trainer.evaluate()
    assert metrics["eval_nupi_violation"] == pytest.approx(3.4 - metrics["eval_loss"], abs=1e-5)


@BOTH
def test_a_run_goes_on_from_its_checkpoint_bit_for_bit(tmp_path, make, plain, name):
    whole = make(tmp_path / "whole", 4)
    whole.train()
    make(tmp_path / "part", 2).train()
    again = make(tmp_path / "part", 4)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 4
    for part in ("model", "lagrangian"):
        ours, theirs = (getattr(trainer, part).state_dict() for trainer in (again, whole))
        for key, value in theirs.items():
            assert torch.equal(ours[key], value), key
    assert torch.equal(*(each.dual.state_dict()["state"][0]["xi"] for each in (again, whole)))
