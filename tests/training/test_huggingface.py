"""The Trainer subclass of the example does what the plain loop does, and goes on from its checkpoints."""

import signal

import oracles
import pytest
import torch
from examples import huggingface_trainer as example
from ranks import processes
from training import trainer_run

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


def recorded(trainer):
    """What `ascend` is given, and where the multiplier goes."""
    seen = []
    real = trainer.lagrangian.ascend

    def ascend(dual, violations):
        real(dual, violations)
        rate = violations["rate"]
        seen.append(((rate.sums / rate.counts).item(), trainer.lagrangian.multipliers["rate"].item()))

    trainer.lagrangian.ascend = ascend
    return seen


@pytest.mark.parametrize("k", [1, 2])
def test_the_trainer_ascends_once_an_optimizer_step_by_the_rule(tmp_path, k):
    trainer = example.make_trainer(
        tmp_path, steps=8, gradient_accumulation_steps=k, per_device_train_batch_size=32 // k
    )
    seen = recorded(trainer)
    trainer.train()
    assert len(seen) == 8
    path = oracles.nupi([e for e, _ in seen], 0.0, 0.1, 1.0, 0.9, "bumpless", "conditional", low=0.0)
    assert [multiplier for _, multiplier in seen] == pytest.approx(path, abs=1e-5)
    assert path[-1] > 0


def test_two_micro_batches_are_one_batch(tmp_path):
    paths = []
    for k in (1, 2):
        trainer = example.make_trainer(
            tmp_path, steps=8, gradient_accumulation_steps=k, per_device_train_batch_size=32 // k
        )
        paths.append(recorded(trainer))
        trainer.train()
    for one, two in zip(*paths, strict=True):
        assert two == pytest.approx(one, rel=1e-3, abs=1e-5)


def test_a_run_that_was_killed_goes_on_bit_for_bit(tmp_path):
    whole = trainer_run.make(tmp_path / "whole")
    whole.train()
    dying = processes().Process(target=trainer_run.train_and_die, args=(tmp_path / "broken",))
    dying.start()
    dying.join(120)
    assert dying.exitcode == -signal.SIGKILL
    assert not (tmp_path / "broken" / f"checkpoint-{trainer_run.STEPS}").exists()
    again = trainer_run.make(tmp_path / "broken")
    seen = recorded(again)
    again.train(resume_from_checkpoint=True)
    assert len(seen) == trainer_run.STEPS - trainer_run.SAVED
    assert_equal(state(whole), state(again))
    assert whole.lagrangian.multipliers["rate"].item() > 0


def test_a_checkpoint_without_multipliers_is_not_resumed_from(tmp_path):
    example.make_trainer(tmp_path, steps=1, save_strategy="steps", save_steps=1).train()
    (tmp_path / "checkpoint-1" / "multipliers.pt").unlink()
    with pytest.raises(FileNotFoundError, match=r"multipliers\.pt"):
        example.make_trainer(tmp_path, steps=2).train(resume_from_checkpoint=True)


def test_the_constraint_is_kept_and_evaluation_does_not_ascend(tmp_path):
    trainer = example.make_trainer(tmp_path, steps=150)
    trainer.train()
    assert example.rate(trainer.model, example.Sentences(1024, seed=1)) == pytest.approx(0.3, abs=0.1)
    before = trainer.lagrangian.multipliers["rate"].item()
    trainer.evaluate(example.Sentences(64, seed=2))
    assert trainer.lagrangian.multipliers["rate"].item() == before


def test_what_is_logged_and_evaluated_is_the_plain_loss(tmp_path):
    trainer = example.make_trainer(
        tmp_path, steps=4, gradient_accumulation_steps=2, logging_strategy="steps", logging_steps=1
    )
    losses = []
    hook = trainer.model.register_forward_hook(lambda _, __, outputs: losses.append(outputs.loss.item()))
    trainer.lagrangian.multipliers["rate"].fill_(5.0)  # far from the loss
    trainer.train()
    hook.remove()
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    means = [(a + b) / 2 for a, b in zip(losses[::2], losses[1::2], strict=True)]
    assert logged == pytest.approx(means, abs=1e-3)

    sentences = example.Sentences(64, seed=2)
    with torch.no_grad():
        expected = trainer.model.eval()(input_ids=sentences.tokens, labels=sentences.labels).loss.item()
    assert trainer.evaluate(sentences)["eval_loss"] == pytest.approx(expected, abs=1e-4)


def test_a_checkpoint_of_the_model_alone_says_why_it_cannot_go_on(tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 2, "save_only_model": True}
    example.make_trainer(tmp_path, steps=2, **saving).train()
    with pytest.raises(FileNotFoundError, match=r"multipliers\.pt is missing.*save_only_model=True"):
        example.make_trainer(tmp_path, steps=4, **saving).train(resume_from_checkpoint=True)
