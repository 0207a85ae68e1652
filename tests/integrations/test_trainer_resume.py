"""A constrained Trainer goes on from its checkpoints bit for bit, and says when it cannot."""

import signal
from functools import partial

import pytest
import torch
from examples import huggingface_trainer as example
from integrations import trainer_run
from ranks import processes

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*is shorter than the model's optimizer can follow"),
]
make = partial(example.make_trainer, dual=trainer_run.NUPI)


def tensors(value):
    """All tensors and numbers of a nested state, in order."""
    if isinstance(value, dict):
        return [leaf for key in value for leaf in tensors(value[key])]
    if isinstance(value, (list, tuple)):
        return [leaf for each in value for leaf in tensors(each)]
    return [value]


def everything(trainer):
    parts = (trainer.model, trainer.lagrangian, trainer.dual, trainer.optimizer)
    return tensors([part.state_dict() for part in parts])


def assert_equal(left, right):
    assert len(left) == len(right)
    for ours, theirs in zip(left, right, strict=True):
        same = torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else ours == theirs
        assert same, (ours, theirs)


@pytest.mark.parametrize(
    "dual", [pytest.param(trainer_run.NUPI, marks=pytest.mark.nightly), None], ids=["given", "default"]
)
def test_a_run_that_was_killed_goes_on_bit_for_bit(tmp_path, dual):
    whole = trainer_run.make(tmp_path / "whole", dual)
    whole.train()
    dying = processes().Process(target=trainer_run.train_and_die, args=(tmp_path / "broken", dual))
    dying.start()
    dying.join(120)
    assert dying.exitcode == -signal.SIGKILL
    assert not (tmp_path / "broken" / f"checkpoint-{trainer_run.STEPS}").exists()
    again = trainer_run.make(tmp_path / "broken", dual)
    steps = []
    again.lagrangian.listen(steps.append)
    again.train(resume_from_checkpoint=True)
    assert len(steps) == trainer_run.STEPS - trainer_run.SAVED
    assert whole.lagrangian.multipliers["rate"].item() > 0
    assert_equal(everything(whole), everything(again))


def test_a_checkpoint_of_the_model_alone_says_why_it_cannot_go_on(tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 2, "save_only_model": True}
    make(tmp_path, steps=2, **saving).train()
    before = make(tmp_path, steps=4, **saving)
    with pytest.raises(FileNotFoundError, match=r"multipliers\.nupi is missing.*save_only_model=True"):
        before.train(resume_from_checkpoint=True)
    with pytest.raises(FileNotFoundError, match="checkpoint-2"):
        before.train(str(tmp_path / "checkpoint-2"))
    assert before.state.global_step == 0


def test_a_model_that_is_saved_by_hand_has_no_multipliers_beside_it(tmp_path):
    trainer = make(tmp_path, steps=1)
    trainer.train()
    trainer.save_model(str(tmp_path / "final"))
    assert not (tmp_path / "final" / "multipliers.nupi").exists()


def test_a_checkpoint_of_other_constraints_is_refused(tmp_path):
    import nupi

    make(tmp_path, steps=1, save_strategy="steps", save_steps=1).train()
    other = make(tmp_path, steps=2)
    other.lagrangian = nupi.Lagrangian({"rate": nupi.Equality()})
    with pytest.raises(RuntimeError, match="'rate' is an inequality in it and an equality here"):
        other.train(resume_from_checkpoint=True)
