"""The callback and the mixin do what a plain loop does, in both packages, and go on from their checkpoints."""

import oracles
import pytest
import torch
from integrations import lightning_run as run
from integrations.two_ranks import two_ranks

import nupi
from nupi.integrations.lightning import ConstrainedCallback

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*litlogger"),
    pytest.mark.filterwarnings("ignore:.*number of training batches.*smaller than the logging interval"),
    pytest.mark.filterwarnings("ignore:.*weights_only.*"),
    pytest.mark.filterwarnings("ignore:.*val_dataloader"),
    pytest.mark.filterwarnings("ignore:.*is not empty"),
]


@pytest.fixture(params=["lightning", "pytorch_lightning"])
def pl(request):
    return run.package(request.param)


def plain_loop(steps):
    """Full batches of 64 rows, by hand: the model, the multiplier, and the largest violation on new rows."""
    model = run.network()
    primal = torch.optim.Adam(model.parameters(), lr=1e-2)
    multiplier, errors = 0.0, []
    for _ in range(steps):
        loss, violations = run.evaluate(model, run.data(64).tensors)
        (loss + multiplier * violations["rate"]).backward()
        errors.append(violations["rate"].item())
        multiplier = oracles.nupi(errors, 0.0, 0.3, 1.0, 0.9, "bumpless", "conditional", low=0.0)[-1]
        primal.step()
        primal.zero_grad()
    return model, multiplier


def assert_close(found, model, multiplier):
    assert multiplier > 0.1
    assert found["lagrangian.rate"].item() == pytest.approx(multiplier, abs=1e-4)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(found[f"model.{name}"], value, atol=1e-4, rtol=1e-3, msg=name)


@pytest.mark.parametrize(
    ("kind", "batches"), [("mixin", 1), ("mixin", 2), ("callback", 1), ("callback", 2), ("manual", 2)]
)
def test_a_module_trains_as_a_plain_loop_does(pl, kind, batches):
    accumulate = {} if kind == "manual" else {"accumulate_grad_batches": batches}
    found = run.module(pl, kind)
    run.trainer(pl, 6, **accumulate).fit(found, run.loader(64, 64 // batches))
    assert_close(found.state_dict(), *plain_loop(6))


@pytest.mark.parametrize("kind", ["mixin", "own loop"])
def test_lbfgs_evaluates_often_and_the_multiplier_moves_once_a_step(pl, kind):
    """By hand: all evaluations of a step have the same multiplier, and it moves on the first violation of each."""
    model, multiplier, errors = run.network(), 0.0, []
    primal = torch.optim.LBFGS(model.parameters(), **run.LBFGS)
    for _ in range(4):
        calls = []

        def closure(multiplier=multiplier, calls=calls):
            primal.zero_grad()
            loss, violations = run.evaluate(model, run.data(64).tensors)
            calls.append(violations["rate"].item())
            value = loss + multiplier * violations["rate"]
            value.backward()
            return value

        primal.step(closure)
        assert len(calls) > 2
        errors.append(calls[0])
        multiplier = oracles.nupi(errors, 0.0, 0.3, 1.0, 0.9, "bumpless", "conditional", low=0.0)[-1]
    logger, found = Kept(pl), run.lbfgs_module(pl, own_loop=kind == "own loop")
    run.trainer(pl, 4, logger=logger, log_every_n_steps=1).fit(found, run.loader(64, 64))
    assert_close(found.state_dict(), model, multiplier)
    logged = [row["nupi/rate/violation"] for row in logger.rows if "nupi/loss" in row]
    assert logged == pytest.approx(errors, abs=1e-5)


@pytest.mark.parametrize("kind", ["mixin", "manual"])
def test_a_run_goes_on_from_its_checkpoint_bit_for_bit(pl, kind, tmp_path):
    whole = run.module(pl, kind)
    run.trainer(pl, -1, max_epochs=2).fit(whole, run.loader(128, 32))
    first = run.module(pl, kind)
    stopped = run.trainer(pl, -1, max_epochs=1)
    stopped.fit(first, run.loader(128, 32))
    stopped.save_checkpoint(tmp_path / "last.ckpt")
    again = run.module(pl, kind)
    run.trainer(pl, -1, max_epochs=2).fit(again, run.loader(128, 32), ckpt_path=tmp_path / "last.ckpt")
    ours, theirs = run.state(again), run.state(whole)
    assert ours.keys() == theirs.keys()
    assert theirs["lagrangian.rate"].item() > 0
    for name, value in theirs.items():
        assert torch.equal(torch.as_tensor(ours[name]), torch.as_tensor(value)), name
    assert not torch.equal(run.state(first)["lagrangian.rate"], theirs["lagrangian.rate"])


def test_a_checkpoint_without_a_dual_optimizer_is_refused(tmp_path):
    pl = run.package("pytorch_lightning")
    plain = run.module(pl, "callback")
    plain.configure_callbacks = list
    stopped = run.trainer(pl, 2)
    stopped.fit(plain, run.loader(64, 32))
    stopped.save_checkpoint(tmp_path / "last.ckpt")
    with pytest.raises(RuntimeError, match=r"last\.ckpt has no state of a dual optimizer"):
        run.trainer(pl, 4).fit(run.module(pl), run.loader(64, 32), ckpt_path=tmp_path / "last.ckpt")


class Kept:
    """A logger that keeps what it is given, made for either package."""

    def __new__(cls, pl):
        class Keeps(pl.loggers.Logger):
            name, version = "kept", 0

            def __init__(self):
                super().__init__()
                self.rows = []

            def log_metrics(self, metrics, step=None):  # noqa: ARG002
                self.rows.append(dict(metrics))

            def log_hyperparams(self, *_, **__):
                pass

        return Keeps()


def test_logger_and_progress_bar_show_violation_and_multiplier(pl):
    logger, found = Kept(pl), run.module(pl)
    shown = {}

    class Bar(pl.callbacks.Callback):
        def on_train_batch_end(self, trainer, *_):
            shown.update(trainer.progress_bar_metrics)

    trainer = run.trainer(pl, 4, logger=logger, log_every_n_steps=1, callbacks=[Bar()])
    seen = []
    found.lagrangian.listen(lambda step: seen.append(step.moves[0].error.item()))
    trainer.fit(found, run.loader(64, 32))
    rows = [row for row in logger.rows if "nupi/loss" in row]
    assert [row["nupi/rate/violation"] for row in rows] == pytest.approx(seen)
    path = oracles.nupi(seen, 0.0, 0.3, 1.0, 0.9, "bumpless", "conditional", low=0.0)
    assert [row["nupi/rate/multiplier"] for row in rows] == pytest.approx(path, abs=1e-5)
    assert rows[-1]["nupi/rate/ki"] == pytest.approx(0.3)
    for row, before, violation in zip(rows, [0.0, *path], seen, strict=False):
        assert row["nupi/lagrangian"] == pytest.approx(row["nupi/loss"] + before * violation, abs=1e-5)
    assert set(shown) == {"nupi/rate/violation", "nupi/rate/multiplier"}


def test_a_validation_says_whether_the_constraint_is_met(pl):
    found = run.module(pl, tolerance=0.02)
    trainer = run.trainer(pl, 3)
    trainer.fit(found, run.loader(64, 32))
    multiplier = found.lagrangian.multipliers["rate"].item()
    new = run.data(100, seed=1)
    loss, violations = run.evaluate(found.model, new.tensors)
    violation = violations["rate"].item()
    assert violation > 0.02
    for check, prefix in ((trainer.validate, "val"), (trainer.test, "test")):
        metrics = check(found, run.loader(100, 48, seed=1), verbose=False)[0]  # 100 = 48 + 48 + 4
        assert metrics[f"{prefix}_nupi_violation"] == pytest.approx(violation, abs=1e-6)
        assert metrics[f"{prefix}_nupi/rate/violation"] == pytest.approx(violation, abs=1e-6)
        assert metrics[f"{prefix}_nupi_feasible"] == 0.0
        assert metrics[f"{prefix}_nupi_score"] == pytest.approx(1e9 * (1 + violation - 0.02), rel=2e-6)
    found._constrained._evaluation._tolerance["rate"] = violation + 1e-4
    metrics = trainer.validate(found, run.loader(100, 48, seed=1), verbose=False)[0]
    assert metrics["val_nupi_feasible"] == 1.0
    assert metrics["val_nupi_score"] == pytest.approx(loss.item(), abs=1e-6)
    assert found.lagrangian.multipliers["rate"].item() == multiplier


@pytest.mark.parametrize(("metric", "mode"), [("val_nupi_feasible", "max"), ("val_nupi_score", "min")])
def test_checkpoints_monitor_feasibility(pl, metric, mode, tmp_path):
    history = []

    class Note(pl.callbacks.Callback):
        def on_validation_end(self, trainer, _):
            if not trainer.sanity_checking:
                numbers = {name: float(value) for name, value in trainer.callback_metrics.items()}
                history.append((trainer.global_step, numbers))

    best = pl.callbacks.ModelCheckpoint(tmp_path, monitor=metric, mode=mode, filename="{step}")
    trainer = run.trainer(
        pl, -1, max_epochs=40, callbacks=[Note(), best], enable_checkpointing=True, num_sanity_val_steps=1
    )
    trainer.fit(run.module(pl), run.loader(256, 64), run.loader(100, 100, seed=1))
    feasible = [(step, numbers) for step, numbers in history if numbers["val_nupi_feasible"]]
    assert 1 < len(feasible) < len(history)
    first = feasible[0][0] if mode == "max" else min(feasible, key=lambda each: each[1]["val_loss"])[0]
    assert best.best_model_path.endswith(f"step={first}.ckpt")


@pytest.mark.parametrize("name", ["lightning", pytest.param("pytorch_lightning", marks=pytest.mark.nightly)])
def test_two_processes_are_one(name, tmp_path):
    first, second = two_ranks(run.one_rank, tmp_path, name, imports=[run.package(name).__name__])
    for key, value in first["state"].items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(second["state"][key])), key
    model, multiplier = plain_loop(6)
    assert_close(first["state"], model, multiplier)
    with torch.no_grad():
        expected = run.evaluate(model, run.data(96, seed=1).tensors)[1]["rate"].item()
    for rank in (first, second):
        assert rank["metrics"]["val_nupi_violation"] == pytest.approx(expected, abs=1e-4)


def test_what_is_no_problem_is_refused():
    pl = run.package("pytorch_lightning")
    with pytest.raises(TypeError, match="dual must be a dual optimizer"):
        ConstrainedCallback(0.1)
    without = run.module(pl, "callback")
    without.lagrangian = None
    with pytest.raises(ValueError, match=r"one nupi\.Lagrangian among its parts, but it has none"):
        run.trainer(pl, 1).fit(without, run.loader(64, 32))
    two = run.module(pl, "callback")
    two.other = nupi.Lagrangian({"other": nupi.Equality()})
    with pytest.raises(ValueError, match="'lagrangian', 'other'"):
        run.trainer(pl, 1).fit(two, run.loader(64, 32))
    endless = run.module(pl, "callback", dual=None)
    with pytest.raises(ValueError, match="the training has no end"):
        run.trainer(pl, -1, max_epochs=-1, limit_train_batches=1).fit(endless, run.loader(64, 32))


def test_a_step_that_does_not_call_the_lagrangian_is_told(pl):
    forgetful = run.module(pl, "mixin")
    # Lightning looks for this name.
    forgetful.training_step = lambda batch, batch_idx: run.evaluate(forgetful.model, batch)[0]  # noqa: ARG005
    with pytest.warns(RuntimeWarning, match="training_step has not called the Lagrangian") as said:
        run.trainer(pl, 6).fit(forgetful, run.loader(64, 32))  # of three epochs
    assert len([each for each in said if "has not called" in str(each.message)]) == 1


def test_a_step_that_calls_the_lagrangian_and_returns_the_loss_is_told(pl):
    careless = run.module(pl, "mixin")

    def training_step(batch, batch_idx):  # noqa: ARG001 - Lightning looks for this name
        loss, violations = run.evaluate(careless.model, batch)
        careless.lagrangian(loss, violations)
        return loss

    careless.training_step = training_step
    with pytest.warns(RuntimeWarning, match="no backward pass went through its result") as said:
        run.trainer(pl, 4).fit(careless, run.loader(64, 32))
    assert len([each for each in said if "no backward pass" in str(each.message)]) == 1


def test_the_mixin_behind_the_module_is_refused():
    from lightning import LightningModule

    from nupi.integrations.lightning import ConstrainedMixin

    with pytest.raises(TypeError, match="put it first: class Wrong"):
        type("Wrong", (LightningModule, ConstrainedMixin), {})
