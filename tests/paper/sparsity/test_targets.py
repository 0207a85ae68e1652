"""The claims on made-up runs, the tables, verdicts by scale, the dry run, and every target from end to end."""

import json
from dataclasses import replace

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from nupi import tune
from nupi.paper import jobs
from nupi.paper.command import app
from nupi.paper.data.fetch import DataUnavailableError
from nupi.paper.jobs import running
from nupi.paper.runner import Claim, TargetRun
from nupi.paper.self_tuned import sparsity as self_tuned_sparsity
from nupi.paper.sparsity import (
    adam,
    bisection,
    dry_run,
    dynamics,
    global_,
    kp,
    layerwise,
    momentum,
    penalized,
    published,
    starts,
    tables,
    training,
)
from nupi.paper.sparsity.methods import GA, RESTARTS, SELF_TUNED, Dual
from nupi.paper.sparsity.runs import Trained, Wanted, frame
from nupi.paper.sparsity.scales import EXPERIMENTS, Experiment
from nupi.rule import FORMS


def made_up(dual, epsilon, violation, train, *, worst=None, multiplier=0.0, seed=0, layers=None):
    """A run that ended so; violations in points, accuracy in percent."""
    found = torch.tensor([violation] if layers is None else layers) / 100 + epsilon
    path = torch.tensor([[60.0], [violation if worst is None else worst], [violation]]) / 100
    value = {
        "train_accuracy": train / 100,
        "test_accuracy": 0.5,
        "density": found.mean(),
        "layer_densities": found,
        "realised_density": torch.tensor(epsilon),
        "violations": path,
        "multipliers": torch.zeros(3, 1),
        "multiplier": torch.tensor([multiplier]),
        "step": torch.arange(3),
        "seconds": 1.0,
    }
    return Trained(Wanted(dual, epsilon, seed, layerwise=layers is not None), value)


def verdicts(claims):
    return {claim.claim: claim.holds for claim in claims}


def as_in_the_paper(published_rows, kps):
    """Runs that ended where the paper's did; those from zero, which it does not have, at the boundary."""
    runs = [
        made_up(dual, epsilon, row.violation, row.train, worst=min(row.violation, -0.1))
        for epsilon, rows in published_rows.items()
        for dual, row in rows.items()
    ]
    return runs + [made_up(Dual(kp=kps[each], init="zero"), each, 0.0, 90.0) for each in published_rows]


def test_the_paper_s_own_numbers_bear_its_claims_out():
    found = verdicts(global_.global_claims(as_in_the_paper(published.GLOBAL, published.KP_GLOBAL)))
    assert all(found.values())
    assert len(found) == 21
    layers = [
        made_up(dual, epsilon, 0.0, row.train, layers=[row.lowest, row.highest])
        for epsilon, rows in published.LAYERWISE.items()
        for dual, row in rows.items()
    ]
    for epsilon, kp_there in published.KP_LAYERWISE.items():
        kicked = Dual(kp=kp_there, init="zero")
        layers.append(made_up(kicked, epsilon, 0.0, 90.0, layers=[0.0, 0.1]))
    found = verdicts(layerwise.layerwise_claims(layers))
    assert all(found.values())
    assert len(found) == 22


def test_the_gains_of_the_tables():
    assert published.KP_GLOBAL == {0.7: 9.6, 0.5: 9.6, 0.3: 14.4, 0.1: 1.6}
    assert published.KP_LAYERWISE == {0.7: 8.0, 0.5: 8.0, 0.3: 12.0, 0.1: 12.0}


def test_claims_about_one_constraint_fail_where_runs_say_so():
    runs = as_in_the_paper({0.3: published.GLOBAL[0.3]}, published.KP_GLOBAL)

    def failing(dual, violation, train, worst=-0.1):
        changed = [each for each in runs if each.wanted.dual != dual]
        changed.append(made_up(dual, 0.3, violation, train, worst=worst))
        every = verdicts(global_.global_claims(changed))
        return [claim.removeprefix("at 30%: ") for claim, holds in every.items() if not holds]

    assert failing(GA, -4.0, 95.0) == ["gradient ascent and momentum overshoot by more than 5 points"]
    restarts = "dual restarts reach the density and end slightly infeasible"
    assert failing(RESTARTS, -0.1, 97.0) == [restarts]
    assert failing(RESTARTS, 1.3, 97.0, worst=1.3) == [restarts]  # never reached: that is gradient ascent
    assert failing(GA, -13.9, 97.1) == ["all that overshoot train worse than nuPI and restarts"]
    assert failing(RESTARTS, 1.3, 98.0) == [
        "nuPI has the highest training accuracy, by more than the seeds' spread"
    ]
    assert failing(Dual(kp=14.4), -1.1, 98.0) == ["nuPI ends within 1 point of the boundary"]
    assert len(failing(Dual(kp=14.4), -20.0, 98.0)) == 2


def test_claims_about_layers():
    def claims(nupi_layers):
        layers = {dual: [-20.0, -5.0] for dual in published.LAYERWISE[0.3]}
        layers |= {
            RESTARTS: [0.0, 1.0],
            Dual(kp=12.0): nupi_layers,
            Dual(kp=12.0, init="zero"): [0.0, 0.1],
        }
        accuracy = {Dual(kp=12.0): 96.0}
        runs = [made_up(d, 0.3, 0.0, accuracy.get(d, 95.0), layers=each) for d, each in layers.items()]
        return list(verdicts(layerwise.layerwise_claims(runs)).values())

    assert claims([-1.0, 0.5]) == [True] * 6
    assert claims([-18.0, 0.5]) == [True, False, True, False, True, True]
    assert claims([-2.5, 0.5]) == [True, True, True, False, True, True]
    assert claims([0.0, 1.5]) == [True, True, True, False, True, True]


def test_claims_about_kp():
    rows = published.KP[0.3]
    series = {"nuPI": {0.3: {dual.kp: dual for dual in rows}}}
    runs = [made_up(dual, 0.3, row.violation, row.train) for dual, row in rows.items()]
    assert all(verdicts(kp.kp_claims(runs, series)).values())
    flat = [made_up(dual, 0.3, -10.0, 90.0 + i % 2) for i, dual in enumerate(rows)]
    assert not any(verdicts(kp.kp_claims(flat, series)).values())


def test_claims_about_adam_and_momentum():
    runs = [made_up(d, 0.3, row.violation, row.train) for d, row in published.ADAM[0.3].items()]
    assert all(verdicts(adam.adam_claims(runs)).values())
    noisy = [made_up(dual, 0.3, i - 15 + i % 2 * 1.9, 90.0) for i, dual in enumerate(published.ADAM[0.3])]
    assert not any(verdicts(adam.adam_claims(noisy)).values())
    both = published.POLYAK | published.NESTEROV
    runs = [made_up(dual, 0.3, row.violation, row.train) for dual, row in both.items()]
    assert all(verdicts(momentum.momentum_claims(runs)).values())
    mild = [made_up(dual, 0.3, -dual.beta - 4.0, 90.0) for dual in both]
    assert list(verdicts(momentum.momentum_claims(mild)).values()) == [False, True, False, True]


def test_claims_about_dynamics_and_penalties():
    runs = {dual: made_up(dual, 0.3, -2.0, 95.0, worst=-9.0) for dual in (GA, dynamics.POLYAK, dynamics.ADAM)}
    runs[dynamics.ADAM] = made_up(dynamics.ADAM, 0.3, -1.0, 95.0, worst=-9.0)
    runs[RESTARTS] = made_up(RESTARTS, 0.3, 0.5, 97.0, worst=-0.1, multiplier=0.1)
    for dual in (dynamics.NUPI, dynamics.KICKED):
        runs[dual] = made_up(dual, 0.3, -0.2, 97.0, multiplier=2.0)
    assert all(verdicts(dynamics.dynamics_claims(list(runs.values()))).values())
    runs[dynamics.NUPI] = made_up(dynamics.NUPI, 0.3, -0.2, 97.0, worst=-3.0)
    assert list(verdicts(dynamics.dynamics_claims(list(runs.values()))).values()) == [True] * 3 + [False] * 2
    runs[GA] = made_up(GA, 0.3, -0.5, 95.0, worst=-9.0)  # comes back further than Adam
    assert not list(verdicts(dynamics.dynamics_claims(list(runs.values()))).values())[1]

    source = made_up(Dual(kp=16.0), 0.3, 0.1, 97.0, multiplier=2.0)
    free = [made_up(penalized.ZERO, 0.3, 69.0, 99.0)]
    for violation, holds in ((2.0, True), (8.0, False)):
        fixed = made_up(Dual("penalty", multiplier=2.0), 0.3, violation, 97.0)
        assert list(verdicts(penalized.penalized_claims([(source, fixed)], free)).values()) == [True, holds]


def test_the_question_of_starts():
    tuned = Dual(kp=7.0, init="bumpless")

    def found(first, second, paper_train=94.0):
        """Verdicts if `tuned` ends so (violation, accuracy) with the seed it was tuned on and with another."""
        runs = []
        for seed, (violation, train) in enumerate((first, second)):
            runs += [made_up(GA, 0.3, -9.0, 93.0, seed=seed), made_up(RESTARTS, 0.3, 0.5, 97.0, seed=seed)]
            runs += [made_up(dual, 0.3, -0.9, paper_train, seed=seed) for dual in starts.variants(14.4)]
            runs.append(made_up(tuned, 0.3, violation, train, seed=seed))
        return list(verdicts(starts.starts_claims(runs, tuned)).values())

    assert found((5.0, 90.0), (0.3, 97.5)) == [False, True]  # the seed it was tuned on does not count
    assert found((0.0, 99.0), (0.3, 96.5)) == [False, False]
    assert found((0.0, 99.0), (-1.5, 97.5)) == [False, False]
    assert found((0.0, 99.0), (-1.5, 97.5), paper_train=97.0) == [True, False]
    only = [made_up(RESTARTS, 0.3, 0.5, 97.0), made_up(tuned, 0.3, 0.3, 97.0)]
    assert list(verdicts(starts.starts_claims(only, tuned)).values()) == [False, True]
    assert list(verdicts(starts.starts_claims(only, None)).values()) == [False, False]  # bisection found none
    # Three controllers at nu = 0: in every form, and in two of them with a ramp.
    assert len(starts.variants(14.4)) == 3 * (len(FORMS) + 2)


@pytest.mark.parametrize(
    ("violation", "train", "expected"),
    [(0.3, 97.0, [True, True]), (-2.0, 97.0, [False, True]), (0.3, 90.0, [True, False])],
)
def test_self_tuned_has_to_end_on_the_bound_and_as_accurate(violation, train, expected):
    """A method that ends far too dense is no measure of accuracy."""
    runs = [
        made_up(dual, 0.5, ends, accuracy, seed=seed)
        for seed in range(3)
        for dual, ends, accuracy in (
            (SELF_TUNED, violation, train),
            (RESTARTS, 0.1, 97.0 + 0.1 * seed),
            (GA, 9.0, 99.0),
        )
    ]
    assert [claim.holds for claim in self_tuned_sparsity.claims(runs)] == expected


def test_a_search_counts_only_if_it_converged_within_the_runs():
    runs = tuple(tune.Run(float(each), 0.1) for each in range(8))
    search = tune.Bisection(3.0, 0.1, "converged", (2.0, 4.0), runs)
    assert bisection._verdict("bumpless", search).holds
    assert not bisection._verdict("bumpless", replace(search, status="no sign change")).holds
    assert not bisection._verdict("bumpless", replace(search, runs=(*runs, runs[0]))).holds


def test_a_verdict_has_to_exceed_the_spread_of_the_seeds():
    def seeds(*violations):
        return [made_up(GA, 0.3, each, 90.0, seed=seed) for seed, each in enumerate(violations)]

    def violation(trained):
        return trained.violation

    # Differences 1, 2, 3: mean 2, deviation 1, standard error 0.577.
    assert tables.exceeds(seeds(1.0, 2.0, 3.0), seeds(0.0, 0.0, 0.0), violation, by=0.8)
    assert not tables.exceeds(seeds(1.0, 2.0, 3.0), seeds(0.0, 0.0, 0.0), violation, by=0.9)
    # Seed by seed: what all runs of a seed share does not count.
    assert tables.exceeds(seeds(11.0, 1.0, -9.0), seeds(10.0, 0.0, -10.0), violation, by=0.9)
    assert tables.exceeds(seeds(1.0), seeds(0.0), violation)
    assert tables.below(seeds(-4.0, -6.0, -8.0), violation, -3.0)  # -6 + 2 * 1.15
    assert not tables.below(seeds(-4.0, -6.0, -8.0), violation, -4.0)


def test_tables_have_the_paper_s_numbers_beside_ours():
    runs = [made_up(GA, 0.3, violation, 94.0, seed=seed) for seed, violation in enumerate((-9.0, -11.0))]
    row = tables.beside(tables.by_method(runs, 0.3), published.GLOBAL[0.3]).iloc[0]
    assert row["violation (paper)"] == "-10.0 ± 1.4 (-13.9 ± 0.11)"
    assert row["train (paper)"] == "94.0 ± 0.0 (95.9 ± 0.11)"
    assert row["relative % (paper)"] == "-33.3 ± 4.7 (-46.3)"
    assert tables.beside(tables.by_method(runs, 0.3), {}).iloc[0]["violation"] == "-10.0 ± 1.4"
    rows = frame(runs)
    assert rows["seed"].tolist() == [0, 1]  # every run that was made, not their mean
    assert rows["violation"].round(3).tolist() == [-9.0, -11.0]


def test_verdicts_are_kept_scale_by_scale(tmp_path, monkeypatch):
    def claims(here, holds):
        return [Claim("nuPI lands", "-0.2", here, holds)]

    for scale, here, holds in (("smoke", "-30", False), ("laptop", "-1.0", False), ("desk", "-0.1", True)):
        run = TargetRun("sparsity-global", scale, tmp_path)
        assert tables.score(run, claims(here, holds)) == claims(here, holds)
    assert run.tables[-1]["columns"] == ["claim", "paper", "laptop", "desk"]
    assert run.tables[-1]["rows"] == [["nuPI lands", "-0.2", "NO: -1.0", "holds: -0.1"]]
    again = TargetRun("sparsity-global", "laptop", tmp_path)
    tables.score(again, claims("-0.2", holds=True))
    assert again.tables[-1]["rows"][0][2] == "holds: -0.2"
    monkeypatch.setattr(tables, "CRITERIA", tables.CRITERIA + 1)
    judged_otherwise = TargetRun("sparsity-global", "desk", tmp_path)
    tables.score(judged_otherwise, claims("-0.1", holds=True))
    assert judged_otherwise.tables == []  # what another criterion said of the laptop is not shown beside it
    for nonsense in ("[]", "null", '{"scales": 3}', "no JSON", "\xff"):
        (tmp_path / tables.BY_SCALE).write_text(nonsense, encoding="latin-1")
        tables.score(judged_otherwise, claims("-0.1", holds=True))


@pytest.fixture
def noise(monkeypatch):
    """Noise in place of CIFAR-10, and every job in this process, where the noise is."""
    size = replace(EXPERIMENTS["smoke"], images=32, batch=16, epochs=2)
    monkeypatch.setitem(EXPERIMENTS, "smoke", size)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(size.images, 3, size.side, size.side, generator=generator)
    labels = torch.arange(size.images) % 10
    monkeypatch.setattr(training, "data", lambda _: ((images, labels), (images, labels)))
    monkeypatch.setattr(running, "available_cores", lambda: 1)


TARGETS = {
    "sparsity-global": 7,
    "sparsity-layerwise": 7,
    "sparsity-dynamics": 6,
    "sparsity-penalized": 3,
    "sparsity-kp": 5,
    "sparsity-adam": 4,
    "sparsity-momentum": 7,
    "sparsity-starts": 14,
    "sparsity-bisection": 4,
    "sparsity-time": 8,
    "self-tuned-sparsity": 4,
    "self-tuned-layerwise": 4,
}


@pytest.mark.filterwarnings("ignore:steps=1 is too short")  # SelfTuned, of four steps
@pytest.mark.usefixtures("noise")
def test_every_target_runs_at_smoke_scale(tmp_path):
    outcome = CliRunner().invoke(app, ["reproduce", *TARGETS, "--scale", "smoke", "--out", str(tmp_path)])
    assert "failed" not in outcome.output, outcome.output
    for name, least in TARGETS.items():
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        assert summary["scale"] == "smoke"
        assert summary["claims"]
        assert summary["tables"]
        assert len(pd.read_csv(tmp_path / name / "results.csv")) >= least
        assert (tmp_path / name / "figure.png").exists() == (
            name not in ("sparsity-bisection", "sparsity-time")
        )
        assert (tmp_path / name / "report.html").exists() == (name == "sparsity-dynamics")
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()}
    assert sum(path.name.startswith("warm_up") for path in made) == 2  # one for all targets, and one rescaled
    CliRunner().invoke(app, ["reproduce", "sparsity-global", "--scale", "smoke", "--out", str(tmp_path)])
    assert {
        path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()
    } == made  # nothing is trained twice


def test_data_that_cannot_be_had_is_said_once(tmp_path, monkeypatch):
    def missing(_):
        raise DataUnavailableError("the data set 'cifar10' could not be had. Tried: nothing")

    monkeypatch.setattr(training, "data", missing)
    command = ["reproduce", "sparsity-global", "--scale", "smoke", "--out", str(tmp_path)]
    outcome = CliRunner().invoke(app, command)
    assert outcome.exit_code == 1
    assert outcome.output.count("could not be had. Tried: nothing") == 1
    assert "Traceback" not in outcome.output


@pytest.mark.nightly
@pytest.mark.usefixtures("cifar_data")
def test_real_images_in_real_processes(tmp_path):
    """Its parts are tested apart too: targets on noise above, real images and real processes in their folders."""
    outcome = CliRunner().invoke(
        app, ["reproduce", "sparsity-global", "--scale", "smoke", "--out", str(tmp_path)]
    )
    assert "failed" not in outcome.output, outcome.output
    results = pd.read_csv(tmp_path / "sparsity-global" / "results.csv")
    assert len(results) == 7
    assert results["train_accuracy"].between(0, 100).all()


@pytest.mark.usefixtures("noise")
def test_a_dry_run_counts_what_a_step_takes(monkeypatch, tmp_path):
    """Against the arithmetic of the convolutions and the linear layer, counted by hand."""
    tiny = Experiment(
        images=64, side=8, width=4, batch=16, epochs=2, warm_up=0, rate=0.1, clamp=None, place="before"
    )
    monkeypatch.setitem(EXPERIMENTS, "paper", tiny)
    run = TargetRun("sparsity-global", "paper", tmp_path)
    assert dry_run.dry_run(run, count=3)
    assert run.dry
    rows = dict(run.tables[0]["rows"])

    def conv(incoming, outgoing, kernel, side):
        return 2 * incoming * outgoing * kernel**2 * side**2

    forward = conv(3, 4, 3, 8)
    for incoming, outgoing, side in ((4, 4, 8), (4, 8, 4), (8, 16, 2), (16, 32, 1)):
        forward += conv(incoming, outgoing, 3, side) + 3 * conv(outgoing, outgoing, 3, side)
        forward += conv(incoming, outgoing, 1, side) * (incoming != outgoing)
    forward += 2 * 32 * 10
    step = 16 * (3 * forward - conv(3, 4, 3, 8))  # the images need no gradient
    assert rows["arithmetic of a step"] == f"{step / 1e9:,.0f} GFLOP"
    assert dry_run._first_step(gated(tiny), tiny, Dual(kp=1.0))[1] == step
    assert "8 steps" in rows["a run"]
    assert rows["this target"].startswith("3 runs:")
    assert not dry_run.dry_run(TargetRun("sparsity-global", "laptop", tmp_path), count=3)
    with jobs.submitted({"cluster": "local"}):  # where the jobs go there may be an accelerator
        assert not dry_run.dry_run(TargetRun("sparsity-global", "paper", tmp_path), count=3)


def gated(size):
    from nupi import gates
    from nupi.paper.sparsity.resnet import GATED, ResNet18

    model = ResNet18(size.width)
    gates.attach(model, GATED, place=size.place, droprate_init=size.droprate_init, clamp=size.clamp)
    return model
