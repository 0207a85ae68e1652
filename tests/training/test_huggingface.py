"""The Trainer subclass of the example does what the plain loop does, and goes on from its checkpoints."""

import pytest
import torch
from examples import huggingface_trainer as example

pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")


def state(trainer):
    return {
        **trainer.model.state_dict(),
        **trainer.lagrangian.state_dict(),
        "xi": trainer.dual.state_dict()["state"][0]["xi"],
    }


def assert_equal(left, right):
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert torch.equal(value, right[name]), name


def test_the_trainer_ascends_once_a_step_by_the_rule(tmp_path):
    trainer = example.make_trainer(tmp_path, steps=8)
    seen = []
    real = trainer.lagrangian.ascend

    def ascend(dual, violations):
        real(dual, violations)
        seen.append((violations["rate"].item(), trainer.lagrangian.multipliers["rate"].item()))

    trainer.lagrangian.ascend = ascend
    trainer.train()
    assert len(seen) == 8
    theta = xi = 0.0
    for t, (e, multiplier) in enumerate(seen):
        new = 0.0 if t == 0 else 0.9 * xi + 0.1 * e
        theta = max(theta + 0.1 * e + 1.0 * (new - xi), 0.0)
        xi = new
        assert multiplier == pytest.approx(theta, abs=1e-5)


def test_a_checkpoint_of_the_trainer_goes_on_bit_for_bit(tmp_path):
    whole = example.make_trainer(tmp_path / "whole", steps=12)
    whole.train()
    example.make_trainer(tmp_path / "broken", steps=6, save_strategy="steps", save_steps=6).train()
    again = example.make_trainer(tmp_path / "broken", steps=12)
    again.load_multipliers(tmp_path / "broken" / "checkpoint-6")
    again.train(resume_from_checkpoint=str(tmp_path / "broken" / "checkpoint-6"))
    assert_equal(state(whole), state(again))
    assert whole.lagrangian.multipliers["rate"].item() > 0


def test_the_constraint_is_kept_and_evaluation_does_not_ascend(tmp_path):
    trainer = example.make_trainer(tmp_path, steps=150)
    trainer.train()
    assert example.rate(trainer.model) == pytest.approx(0.3, abs=0.1)
    before = trainer.lagrangian.multipliers["rate"].item()
    trainer.evaluate(example.Sentences(64, seed=2))
    assert trainer.lagrangian.multipliers["rate"].item() == before
