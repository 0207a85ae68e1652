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
    assert trainer.model.is_gradient_checkpointing
    assert of(trainer.dual)["measured_at"] > 0
    assert torch.isfinite(trainer.lagrangian.multipliers["memory"]).all()


def test_lightning_gives_a_quarter_of_its_steps_and_its_optimizers():
    pl = lightning_run.package("pytorch_lightning")
    found = lightning_run.module(pl, dual=None)
    lightning_run.trainer(pl, 16, accumulate_grad_batches=2).fit(found, lightning_run.loader(64, 16))
    group = of(found.dual)
    assert (group["steps"], group["taken"], group["per_step"]) == (4, 16, 1.0)
    assert group["measured_at"] > 4
    assert found.lagrangian.multipliers["rate"].item() > 0
