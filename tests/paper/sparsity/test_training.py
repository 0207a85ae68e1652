"""The loop against one written by hand, the rates of each scale, the checkpoint that runs share, and a kill."""

import signal
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from ranks import program
from torch.nn.functional import cross_entropy

from nupi import gates
from nupi.paper import jobs
from nupi.paper.data import cifar10
from nupi.paper.sparsity import training
from nupi.paper.sparsity.descent import Descent
from nupi.paper.sparsity.methods import GA, RESTARTS, Dual
from nupi.paper.sparsity.resnet import GATED, ResNet18
from nupi.paper.sparsity.scales import EXPERIMENTS, Experiment

TINY = Experiment(images=20, side=8, width=2, batch=8, epochs=3, warm_up=2, rate=0.05)
EPSILON = 0.5


@pytest.fixture(autouse=True)
def noise(monkeypatch):
    """Noise in place of CIFAR-10: what is tested here does not depend on the images."""
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.randn(20, 3, 8, 8, generator=generator), torch.arange(20) % 10
    monkeypatch.setattr(training, "data", lambda _: ((images, labels), (images[:10], labels[:10])))


def gated(seed=0):
    torch.manual_seed(seed)
    model = ResNet18(TINY.width)
    gates.attach(model, GATED, place=TINY.place, droprate_init=TINY.droprate_init, clamp=TINY.clamp)
    return model


def descended(player, *, layerwise=False):
    run = Descent(gated(), TINY, player, EPSILON, layerwise=layerwise)
    training.descend(run, TINY)
    return run.curves()


def by_hand(model, *, layerwise, update):
    """The same run in plain torch: the dual moves first, by `update(multiplier, violation)`."""
    weights = torch.optim.SGD(gates.weight_parameters(model), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(weights, 9)
    factor = 78_200 / 9
    phi = torch.optim.Adam(gates.gate_parameters(model), lr=1e-3 * factor, betas=(0.9, 0.999**factor))
    multiplier = torch.zeros(8 if layerwise else 1)
    seen = []
    model.train()
    for _ in range(3):
        for images, labels in training.batches(TINY):
            loss = cross_entropy(model(images), labels)
            density = gates.layer_densities(model) if layerwise else gates.density(model).reshape(1)
            violation = density - EPSILON
            multiplier = update(multiplier, violation.detach())
            (loss + (multiplier * violation).sum()).backward()
            seen.append(torch.cat([violation.detach(), multiplier]))
            weights.step(), phi.step(), schedule.step()
            weights.zero_grad(), phi.zero_grad()
    return torch.stack(seen)


def nupi_rule(kp, ki):
    """The velocity form at nu = 0 from xi_{-1} = e_0, its projection written out: no kick at the start."""
    before = []

    def update(multiplier, violation):
        damping = kp * (violation - before[-1]) if before else 0.0
        before.append(violation)
        return (multiplier + ki * violation + damping).clamp(min=0)

    return update


def restarts(ki):
    return lambda multiplier, violation: torch.where(
        violation < 0, 0.0, (multiplier + ki * violation).clamp(min=0)
    )


KI = 8e-4 * 78_200 / 9


@pytest.mark.parametrize("layerwise", [False, True])
@pytest.mark.parametrize(
    ("player", "update"),
    [
        (GA, lambda: lambda multiplier, violation: (multiplier + KI * violation).clamp(min=0)),
        (RESTARTS, lambda: restarts(KI)),
        (Dual(kp=3.0), lambda: nupi_rule(3.0, KI)),
        (Dual("penalty", multiplier=0.7), lambda: lambda multiplier, _: torch.full_like(multiplier, 0.7)),
    ],
    ids=["ga", "restarts", "nupi", "penalty"],
)
def test_the_loop_is_the_one_written_by_hand(player, update, layerwise):
    expected = by_hand(gated(), layerwise=layerwise, update=update())
    found = descended(player, layerwise=layerwise)
    assert found["step"].tolist() == list(range(9))
    torch.testing.assert_close(
        torch.cat([found["violations"], found["multipliers"]], 1), expected, rtol=1e-4, atol=1e-5
    )
    assert torch.equal(found["multiplier"], found["multipliers"][-1])


def test_scales_play_the_papers_run_faster():
    paper, laptop = EXPERIMENTS["paper"], EXPERIMENTS["laptop"]
    assert (paper.steps, paper.speed) == (78_200, 1)
    assert (paper.ki, paper.gate_rate, paper.beta2) == (8e-4, 1e-3, 0.999)
    assert (laptop.steps, EXPERIMENTS["desk"].steps) == (1_500, 9_384)
    for setting in EXPERIMENTS.values():
        assert setting.ki * setting.steps == pytest.approx(
            8e-4 * 78_200
        )  # the integral of an error over the run
        assert setting.beta2**setting.steps == pytest.approx(0.999**78_200)
    with pytest.raises(ValueError, match="side=12"):
        Experiment(images=1, side=12, width=1, batch=1, epochs=1, warm_up=0, rate=1.0)


def test_augmented_images_are_the_image_moved_or_mirrored():
    """Every result is one of the 9 x 9 x 2 that numpy's pad and slices give, and all of them occur."""
    torch.manual_seed(0)
    image = torch.randn(3, 6, 5)
    black = cifar10.standardised(torch.zeros(3, 1, 1))
    framed = (image - black).numpy()
    framed = torch.from_numpy(np.pad(framed, ((0, 0), (4, 4), (4, 4)))) + black
    crops = [framed[:, down : down + 6, right : right + 5] for down in range(9) for right in range(9)]
    expected = torch.stack([*crops, *(crop.flip(2) for crop in crops)]).flatten(1)
    found = training.shifted_and_mirrored(image.expand(2_000, 3, 6, 5))
    assert found.shape == (2_000, 3, 6, 5)
    equal = (found.flatten(1).unsqueeze(1) - expected).abs().amax(2) < 1e-6
    assert equal.any(1).all()
    assert equal.any(0).all()


def test_only_training_images_are_augmented(monkeypatch):
    seen = []
    monkeypatch.setattr(training, "shifted_and_mirrored", lambda images: seen.append(len(images)) or images)
    size = replace(TINY, augment=True)
    assert [len(images) for images, _ in training.batches(size)] == seen == [8, 8, 4]
    training.accuracies(gated(), size)
    list(training.batches(TINY))
    assert seen == [8, 8, 4]


def test_adam_and_momentum_get_the_paper_s_gains():
    import nupi

    lagrangian = nupi.Lagrangian({"density": nupi.Inequality()})
    adam = Dual("adam", step=1e-3).optimizer(lagrangian, EXPERIMENTS["laptop"])
    assert adam.defaults["lr"] == pytest.approx(1e-3 * 78_200 / 1_500)
    assert adam.defaults["maximize"]
    nesterov = Dual("nesterov", beta=-0.3).optimizer(lagrangian, EXPERIMENTS["paper"])
    assert {name: nesterov.defaults[name] for name in ("lr", "beta", "gamma")} == {
        "lr": 8e-4,
        "beta": -0.3,
        "gamma": 1.0,
    }
    assert Dual("penalty").optimizer(lagrangian, EXPERIMENTS["paper"]) is None


def test_a_ramp_scales_both_gains_from_the_first_step():
    assert [Dual(ramp=0.5).gain(8)(step) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert Dual().gain(8)(0) == 1.0
    steps = descended(Dual(ramp=0.999))
    full = descended(GA)
    ratio = steps["multipliers"][0] / full["multipliers"][0]
    assert ratio.item() == pytest.approx(1 / (9 * 0.999), rel=1e-5)


def test_at_nu_zero_the_starts_ema_and_error_are_one_controller():
    paths = [
        descended(Dual(kp=2.0, init=init))["multipliers"] for init in ("ema", "error", "zero", "bumpless")
    ]
    assert torch.equal(paths[0], paths[1])
    assert not torch.equal(paths[0], paths[2])
    assert not torch.equal(paths[0], paths[3])


def test_runs_of_a_seed_start_from_one_checkpoint_and_are_repeatable(tmp_path):
    setting = asdict(TINY)
    for seed in (0, 1):
        list(
            jobs.run(
                training.warm_up, [{"seed": seed, "setting": setting}], tmp_path, version=training.VERSION
            )
        )

    def train(seed, dual):
        arguments = {"epsilon": EPSILON, "layerwise": False, "dual": dual.settings(), "setting": setting}
        return training.train(seed=seed, runs=str(tmp_path), **arguments)

    state = torch.random.get_rng_state()
    one, same, other, elsewhere = train(0, GA), train(0, GA), train(0, Dual(kp=2.0)), train(1, GA)
    assert torch.equal(state, torch.random.get_rng_state())  # the caller's generator is left alone
    assert torch.equal(one["violations"], same["violations"])
    assert one["train_accuracy"] == same["train_accuracy"]
    assert torch.equal(one["violations"][:2], other["violations"][:2])  # until the multipliers differ
    assert not torch.equal(one["violations"][-1], other["violations"][-1])
    assert not torch.equal(one["violations"][-1], elsewhere["violations"][-1])
    assert 0 <= one["test_accuracy"] <= 1
    assert one["layer_densities"].shape == (8,)


def run_of(dual, layerwise=False):
    arguments = {"epsilon": EPSILON, "layerwise": layerwise, "dual": dual.settings(), "setting": asdict(TINY)}
    return {"seed": 0, **arguments}


def assert_same_run(one, other):
    assert one.keys() == other.keys()
    for name in one.keys() - {"seconds"}:
        assert torch.equal(torch.as_tensor(one[name]), torch.as_tensor(other[name])), name


@pytest.mark.parametrize(
    ("dual", "layerwise"),
    [
        (RESTARTS, True),
        (Dual(kp=2.0), False),
        (Dual(kp=2.0, init="bumpless", form="positional", ramp=0.5), True),
        (Dual("nesterov", beta=0.5), False),
        (Dual("adam"), False),
        (Dual("penalty", multiplier=0.7), False),
    ],
    ids=lambda each: each.label if isinstance(each, Dual) else str(each),
)
def test_a_run_that_was_stopped_goes_on_bit_for_bit(tmp_path, monkeypatch, dual, layerwise):
    """Stopped once in the second epoch and once in the third, each time a step after the last save."""
    warm = {"seed": 0, "setting": asdict(TINY)}
    jobs.values(jobs.run(training.warm_up, [warm], tmp_path, version=training.VERSION))
    whole = training.train(**run_of(dual, layerwise), runs=str(tmp_path))
    monkeypatch.setattr(training, "SECONDS_BETWEEN_SAVES", 0.0)
    take, begun = Descent.take, []

    def stopping(self, images, labels):
        begun.append(self.step)
        if begun in ([0, 1, 2, 3], [0, 1, 2, 3, 3, 4, 5, 6]):
            raise InterruptedError
        take(self, images, labels)

    monkeypatch.setattr(Descent, "take", stopping)
    shared = {"runs": str(tmp_path)}

    def attempt():
        settings = [run_of(dual, layerwise)]
        (outcome,) = jobs.run(training.train, settings, tmp_path, version=training.VERSION, shared=shared)
        return outcome

    assert "InterruptedError" in attempt().failure
    assert len(list(tmp_path.glob("*.progress"))) == 1
    assert "InterruptedError" in attempt().failure
    assert_same_run(whole, attempt().value)
    assert begun == [0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8]  # nothing that was saved is done again
    assert list(tmp_path.glob("*.progress")) == []


KILLED = """
import os, signal
import torch
from nupi.paper import jobs
from nupi.paper.sparsity import training
from nupi.paper.sparsity.descent import Descent

generator = torch.Generator().manual_seed(0)
images, labels = torch.randn(20, 3, 8, 8, generator=generator), torch.arange(20) % 10
training.data = lambda _: ((images, labels), (images[:10], labels[:10]))
training.SECONDS_BETWEEN_SAVES = 0.0
take = Descent.take

def dying(self, *batch):
    if self.step == last:
        os.kill(os.getpid(), signal.SIGKILL)
    take(self, *batch)

Descent.take = dying
list(jobs.run(training.train, [settings], folder, version=training.VERSION, shared={"runs": str(folder)}))
"""


def test_a_run_that_was_killed_goes_on_bit_for_bit(tmp_path):
    folder = tmp_path / "runs"
    warm = {"seed": 0, "setting": asdict(TINY)}
    jobs.values(jobs.run(training.warm_up, [warm], folder, version=training.VERSION))
    settings = run_of(Dual(kp=2.0))
    whole = training.train(**settings, runs=str(folder))
    for step in (1, 4, 8):
        dying = program(KILLED, folder=folder, last=step, settings=settings)
        dying.start()
        dying.join(120)
        assert dying.exitcode == -signal.SIGKILL
    (outcome,) = jobs.run(
        training.train, [settings], folder, version=training.VERSION, shared={"runs": str(folder)}
    )
    assert not outcome.cached
    assert_same_run(whole, outcome.value)


def test_the_warm_up_trains_a_dense_network():
    setting = asdict(TINY)
    trained = training.warm_up(seed=3, setting=setting)
    torch.manual_seed(3)
    untrained = ResNet18(TINY.width).state_dict()
    assert trained.keys() == untrained.keys()
    assert all(not torch.equal(trained[name], untrained[name]) for name in ("stem.0.weight", "head.weight"))
    model = ResNet18(TINY.width)
    model.load_state_dict(trained)
    (images, labels), _ = training.data(TINY)
    assert cross_entropy(model(images), labels) < 2.4
