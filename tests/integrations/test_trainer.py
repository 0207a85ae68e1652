"""The constrained Trainer does what a plain loop does, logs what it should, and leaves evaluations as they were."""

from functools import partial

import oracles
import pytest
import torch
from examples import huggingface_trainer as example
from integrations import trainer_run
from transformers import EarlyStoppingCallback, Trainer

import nupi
from nupi.integrations.transformers import ConstrainedTrainer

make = partial(example.make_trainer, dual=trainer_run.NUPI)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*warmup_ratio.*:FutureWarning"),
]


def recorded(trainer):
    """The violations that move the multiplier, and where it goes."""
    seen = []
    trainer.lagrangian.listen(
        lambda step: seen.append((step.moves[0].error.item(), step.moves[0].multiplier.item()))
    )
    return seen


def batch_of(sentences):
    return {"input_ids": sentences.tokens, "labels": sentences.labels}


@pytest.mark.parametrize("batches", [1, 2])
def test_the_trainer_trains_as_a_plain_loop_does(tmp_path, batches):
    trainer = trainer_run.one_batch(tmp_path, batches=batches, optim="adamw_torch")
    trainer.train()

    model = example.tiny_model()
    primal = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    multiplier, errors, logged = 0.0, [], []
    for _ in range(6):
        outputs = model(**batch_of(example.Sentences(64, seed=0)))
        violation = outputs.logits.softmax(1)[:, 1].mean() - 0.3
        value = outputs.loss + multiplier * violation
        value.backward()
        logged.append((outputs.loss.item(), value.item(), violation.item()))
        errors.append(violation.item())
        multiplier = oracles.nupi(errors, 0.0, 0.1, 1.0, 0.9, "bumpless", "conditional", low=0.0)[-1]
        primal.step()
        primal.zero_grad()
    assert multiplier > 0.1
    found = trainer_run.result(trainer)
    assert found["multiplier"].item() == pytest.approx(multiplier, abs=1e-4)
    for ours, theirs in zip(found["logged"], logged, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-3)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(found["model"][name], value, atol=2e-3, rtol=1e-2, msg=name)


@pytest.mark.parametrize("batches", [1, 3])
def test_multipliers_ascend_once_an_optimizer_step_by_the_rule(tmp_path, batches):
    # 512 rows are 16 batches, which 3 does not divide: the last step of an epoch has one micro-batch.
    trainer = make(tmp_path, steps=8, gradient_accumulation_steps=batches)
    seen = recorded(trainer)
    trainer.train()
    assert len(seen) == 8
    path = oracles.nupi([e for e, _ in seen], 0.0, 0.1, 1.0, 0.9, "bumpless", "conditional", low=0.0)
    assert [multiplier for _, multiplier in seen] == pytest.approx(path, abs=1e-5)
    assert path[-1] > 0


def test_the_constraint_is_kept(tmp_path):
    trainer = make(tmp_path, steps=150)
    trainer.train()
    metrics = trainer.evaluate(example.Sentences(1024, seed=3))
    assert metrics["eval_nupi/rate/violation"] == pytest.approx(0.0, abs=0.1)


def test_evaluations_have_the_plain_loss_and_a_verdict_and_do_not_ascend(tmp_path):
    trainer = make(tmp_path, steps=4, per_device_eval_batch_size=48)  # 100 = 48 + 48 + 4
    trainer.train()
    trainer.lagrangian.multipliers["rate"].fill_(5.0)  # the Lagrangian is far from the loss
    sentences = example.Sentences(100, seed=2)
    with torch.no_grad():
        outputs = trainer.model.eval()(**batch_of(sentences))
    violation = outputs.logits.softmax(1)[:, 1].mean().item() - 0.3
    for tolerance in (violation + 1e-3, violation - 1e-3):
        trainer._evaluation._tolerance["rate"] = tolerance
        metrics = trainer.evaluate(sentences)
        assert metrics["eval_loss"] == pytest.approx(outputs.loss.item(), abs=1e-5)
        assert metrics["eval_nupi_violation"] == pytest.approx(violation, abs=1e-6)
        assert metrics["eval_nupi/rate/violation"] == metrics["eval_nupi_violation"]
        assert metrics["eval_nupi_feasible"] == float(tolerance > violation)
        better = metrics["eval_loss"] if tolerance > violation else 1e9 * 1.001
        assert metrics["eval_nupi_score"] == pytest.approx(better, rel=2e-6)
    assert trainer.lagrangian.multipliers["rate"].item() == 5.0
    named = trainer.evaluate({"new": sentences})
    assert named["eval_new_nupi_violation"] == pytest.approx(violation, abs=1e-6)


def test_predictions_are_those_of_a_trainer_without_constraints(tmp_path):
    class WithoutLabels(example.Sentences):
        def __getitem__(self, i):
            return {"input_ids": self.tokens[i]}

    def needs_labels(_, inputs, outputs):
        return {"rate": (outputs.logits[:, 1] - inputs["labels"]).mean()}

    ours = make(tmp_path, steps=2)
    ours.violations = needs_labels
    ours.train()
    plain = Trainer(ours.model, ours.args)
    for sentences in (example.Sentences(40, seed=2), WithoutLabels(40, seed=2)):
        mine, theirs = ours.predict(sentences), plain.predict(sentences)
        assert (mine.predictions == theirs.predictions).all()
        assert mine.metrics.keys() <= theirs.metrics.keys() | {"test_model_preparation_time"}
        if theirs.label_ids is not None:
            assert (mine.label_ids == theirs.label_ids).all()


def trainer_with(folder, violations, data=None, **more):
    options = {name: more.pop(name) for name in ("columns", "dual", "model_init") if name in more}
    plain = make(folder, steps=3, **more)
    model = {} if "model_init" in options else {"model": example.tiny_model()}
    return ConstrainedTrainer(
        **model,
        args=plain.args,
        train_dataset=data or example.Sentences(64, seed=0),
        constraints={"rate": nupi.Inequality()},
        violations=violations,
        **{"dual": trainer_run.NUPI, **options},
    )


class Grouped(example.Sentences):
    def __getitem__(self, i):
        return {**super().__getitem__(i), "group": self.tokens[i, 1] % 2, "text": "unused"}


def test_violations_see_columns_that_the_model_does_not(tmp_path):
    seen = []

    def of_group_one(_, inputs, outputs):
        seen.append(set(inputs))
        inside = (inputs["group"] == 1).float()
        return {"rate": nupi.Averaged((outputs.logits.softmax(1)[:, 1] - 0.3) @ inside, inside.sum())}

    trainer = trainer_with(tmp_path, of_group_one, Grouped(64, seed=0), columns=["group"])
    trainer.train()
    assert seen == [{"input_ids", "labels", "group"}] * 3
    rows = Grouped(50, seed=5)
    metrics = trainer.evaluate(rows)
    with torch.no_grad():
        rates = trainer.model.eval()(input_ids=rows.tokens).logits.softmax(1)[:, 1]
    expected = rates[rows.tokens[:, 1] % 2 == 1].mean().item() - 0.3
    assert metrics["eval_nupi_violation"] == pytest.approx(expected, abs=1e-6)
    assert len(trainer.predict(rows).predictions) == 50


def test_a_column_that_was_removed_is_named(tmp_path):
    trainer = trainer_with(
        tmp_path, lambda _, inputs, __: {"rate": inputs["group"].float().mean()}, Grouped(64, seed=0)
    )
    with pytest.raises(KeyError, match=r"asked for 'group', but inputs has .*give columns=\['group'\]"):
        trainer.train()


def test_violations_see_labels_that_the_loss_takes_out_of_the_batch(tmp_path):
    seen = []

    def needs_labels(_, inputs, outputs):
        seen.append(inputs["labels"].shape)
        return {"rate": outputs.logits[:, 1].mean()}

    trainer_with(tmp_path, needs_labels, label_smoothing_factor=0.1).train()
    assert seen == [(32,)] * 3


def test_a_run_with_model_init_begins_anew_each_time(tmp_path):
    trainer = trainer_with(tmp_path, example.violations, model_init=example.tiny_model)
    ends = []
    for _ in range(2):
        trainer.train()
        ends.append((trainer.lagrangian.multipliers["rate"].item(), trainer.dual))
    assert ends[0][0] == ends[1][0] > 0
    assert ends[0][1] is not ends[1][1]


def test_a_given_lagrangian_and_optimizer_are_used(tmp_path):
    lagrangian = nupi.Lagrangian({"rate": nupi.Inequality()}, penalty=2.0)
    dual = nupi.PID(lagrangian.parameters(), ki=0.2)
    plain = make(tmp_path, steps=1)
    trainer = ConstrainedTrainer(
        example.tiny_model(),
        plain.args,
        train_dataset=plain.train_dataset,
        constraints=lagrangian,
        violations=example.violations,
        dual=dual,
    )
    seen = recorded(trainer)
    trainer.train()
    assert trainer.dual is dual
    assert lagrangian.multipliers["rate"].item() == pytest.approx(0.2 * seen[0][0])


def test_bfloat16_stays_close_to_float32(tmp_path):
    paths = []
    for bf16 in (False, True):
        trainer = make(tmp_path, steps=12, bf16=bf16)
        paths.append(recorded(trainer))
        trainer.train()
        assert trainer.lagrangian.multipliers["rate"].dtype == torch.float32
    assert paths[0] != paths[1]
    for full, half in zip(*paths, strict=True):
        assert half == pytest.approx(full, abs=0.02)


@pytest.mark.parametrize(
    ("metric", "greater"), [("loss", False), ("nupi_feasible", True), ("nupi_score", False)]
)
def test_the_best_model_is_loaded_by_loss_by_feasibility_or_by_both(tmp_path, metric, greater):
    every = {"eval_strategy": "steps", "eval_steps": 6, "save_strategy": "steps", "save_steps": 6}
    trainer = make(
        tmp_path,
        steps=96,
        dual=partial(nupi.NuPI, ki=0.4, kp=4.0),
        per_device_eval_batch_size=256,
        load_best_model_at_end=True,
        metric_for_best_model=metric,
        greater_is_better=greater,
        **every,
    )
    trainer._evaluation._tolerance["rate"] = 0.1
    trainer.train()
    history = [e for e in trainer.state.log_history if "eval_loss" in e]
    feasible = [e for e in history if e["eval_nupi_feasible"]]
    assert 1 < len(feasible) < len(history)
    best = {
        "loss": min(history, key=lambda e: e["eval_loss"]),
        "nupi_feasible": feasible[0],
        "nupi_score": min(feasible, key=lambda e: e["eval_loss"]),
    }[metric]
    assert trainer.state.best_model_checkpoint.endswith(f"checkpoint-{best['step']}")
    assert trainer.evaluate()["eval_nupi_violation"] == pytest.approx(best["eval_nupi_violation"], abs=1e-6)


def test_a_run_stops_early_when_feasible_models_get_no_better(tmp_path):
    every = {"eval_strategy": "steps", "eval_steps": 4, "save_strategy": "steps", "save_steps": 4}
    trainer = make(
        tmp_path,
        steps=400,
        per_device_eval_batch_size=256,
        load_best_model_at_end=True,
        metric_for_best_model="nupi_score",
        greater_is_better=False,
        **every,
    )
    trainer.add_callback(EarlyStoppingCallback(early_stopping_patience=3))
    trainer.train()
    scores = [e["eval_nupi_score"] for e in trainer.state.log_history if "eval_nupi_score" in e]
    assert trainer.state.global_step == 4 * len(scores) < 400
    assert scores.index(min(scores)) == len(scores) - 4


def test_bad_arguments_are_refused_by_name(tmp_path):
    good = {"constraints": {"rate": nupi.Inequality()}, "violations": example.violations}
    for name, bad in (
        ("constraints", ["rate"]),
        ("violations", {"rate": 1}),
        ("dual", 0.1),
        ("columns", "group"),
        ("tolerance", {"other": 0.1}),
    ):
        with pytest.raises((TypeError, ValueError), match=name):
            ConstrainedTrainer(example.tiny_model(), **{**good, name: bad})
    trainer = trainer_with(tmp_path, example.violations, dual=lambda _: None)
    with pytest.raises(TypeError, match="dual returned None"):
        trainer.train()


def test_a_trainer_that_goes_around_the_model_or_the_accelerator_is_told(tmp_path):
    class Around(ConstrainedTrainer):
        def compute_loss(self, model, inputs, *_, **__):
            return model.get_submodule("bert")(inputs["input_ids"]).pooler_output.sum()

    plain = make(tmp_path, steps=1)
    options = {
        "train_dataset": plain.train_dataset,
        "constraints": {"rate": nupi.Inequality()},
        "violations": example.violations,
        "dual": trainer_run.NUPI,
    }
    with pytest.raises(RuntimeError, match="did not call the model"):
        Around(example.tiny_model(), plain.args, **options).train()

    class Own(Trainer):
        def training_step(self, model, inputs, *_):
            loss = model(**inputs).loss
            loss.backward()
            return loss.detach()

    class Ours(ConstrainedTrainer, Own):
        pass

    with pytest.raises(RuntimeError, match=r"did not call accelerator\.backward"):
        Ours(example.tiny_model(), plain.args, **options).train()


def test_the_mixin_behind_the_trainer_is_refused():
    from nupi.integrations.transformers import ConstrainedMixin

    with pytest.raises(TypeError, match="put it first: class Wrong"):
        type("Wrong", (Trainer, ConstrainedMixin), {})


def test_violations_that_are_no_mapping_are_refused(tmp_path):
    trainer = example.make_trainer(tmp_path, steps=1)
    trainer.violations = lambda *given: given[-1].logits.mean()
    with pytest.raises(TypeError, match="violations must map constraint names to tensors, but a Tensor came"):
        trainer.train()
