"""Without a dual optimizer of the user's, the front ends take gains that find themselves."""

import pytest
import torch
from examples import huggingface_trainer as example
from integrations import lightning_run, trl_run

import nupi

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*is shorter than the model's optimizer can follow"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*litlogger"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*val_dataloader"),
]


def of(dual):
    assert isinstance(dual, nupi.SelfTuned)
    return dual.param_groups[0]


def test_the_trainer_gives_a_quarter_of_its_steps_and_its_optimizer(tmp_path):
    trainer = example.make_trainer(tmp_path, steps=16, logging_strategy="steps", logging_steps=16)
    trainer.train()
    group = of(trainer.dual)
    assert (group["steps"], group["taken"], group["per_step"]) == (4, 16, 1.0)
    assert group["measured_at"] > 4
    logged = trainer.state.log_history[0]
    assert logged["nupi/rate/kp"] > 0
    assert logged["nupi/rate/multiplier"] > 0


def test_an_optimizer_that_cannot_be_measured_is_identified(tmp_path):
    trainer = example.make_trainer(tmp_path, steps=8, optim="adafactor")
    trainer.train()
    assert (of(trainer.dual)["steps"], of(trainer.dual)["measured"]) == (2, False)
    assert trainer.lagrangian.multipliers["rate"].item() > 0


def test_measuring_goes_through_gradient_checkpoints(tmp_path):
    trainer = trl_run.sft(tmp_path, 6, k=2, dual=None, checkpointing=True)
    trainer.train()
    assert getattr(trainer.model, f"is_{trl_run.CHECKPOINTING}")
    assert of(trainer.dual)["measured_at"] > 0
    assert torch.isfinite(trainer.lagrangian.multipliers["memory"]).all()


def test_batches_that_say_nothing_are_passed_over_with_fused_attention(tmp_path):
    """Two steps then go by until a dual step, and the curvature would need the attention's second derivative."""
    batches = []

    def two_of_three(_, __, outputs):
        positive = outputs.logits.softmax(1)[:, 1]
        batches.append(len(positive))
        rows = torch.full((), float(len(positive)) * (len(batches) % 3 > 0))
        return {"rate": nupi.Averaged((positive.mean() - 0.3) * rows, rows)}

    trainer = example.make_trainer(tmp_path, steps=7)
    trainer.violations = two_of_three
    assert trainer.model.config._attn_implementation == "sdpa"
    trainer.train()
    assert (of(trainer.dual)["taken"], of(trainer.dual)["per_step"]) == (5, 2.0)
    assert trainer.lagrangian.multipliers["rate"].item() > 0


def test_lightning_gives_a_quarter_of_its_steps_and_its_optimizers():
    pl = lightning_run.package("pytorch_lightning")
    found = lightning_run.module(pl, dual=None)
    lightning_run.trainer(pl, 16, accumulate_grad_batches=2).fit(found, lightning_run.loader(64, 16))
    group = of(found.dual)
    assert (group["steps"], group["taken"], group["per_step"]) == (4, 16, 1.0)
    assert group["measured_at"] > 4
    assert found.lagrangian.multipliers["rate"].item() > 0
