"""What is read off the curves, the judges, and the two targets from end to end."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import linprog
from typer.testing import CliRunner

from nupi.paper.command import app
from nupi.paper.data import adult
from nupi.paper.fairness import fairness, ki, rivals, training
from nupi.paper.fairness import nu as fairness_nu
from nupi.paper.fairness.curves import Curves
from nupi.paper.self_tuned import adult as self_tuned_adult


def as_gaps(violation):
    """Gaps of ten groups whose largest is the violation."""
    return violation.unsqueeze(2) * torch.linspace(-1, 0.8, 10)


def curves(accuracy=0.9, violation=0.02, multipliers=None, seeds=5, epochs=100):
    """Flat curves, or the ones given."""
    steady = torch.ones(seeds, epochs + 1)
    if multipliers is None:
        multipliers = torch.linspace(0, 1, epochs + 1)
    return Curves(
        accuracy=steady * accuracy,
        gaps=as_gaps(steady * violation),
        hard_gaps=as_gaps(steady * violation),
        multipliers=multipliers.reshape(1, -1, 1).expand(seeds, epochs + 1, 10),
        test_epoch=torch.tensor([0, epochs]),
        test_accuracy=torch.full((seeds, 2), accuracy),
        train_positive=torch.zeros(seeds, 4, dtype=torch.bool),
        test_positive=torch.zeros(seeds, 4, dtype=torch.bool),
        seconds=torch.ones(seeds),
    )


def test_final_is_the_mean_of_the_last_twentieth():
    ramp = torch.arange(101.0).repeat(2, 1)
    assert curves(seeds=2).final(ramp).tolist() == [98.0, 98.0]  # epochs 96 to 100
    assert curves(seeds=2, epochs=3).final(ramp[:, :4]).tolist() == [3.0, 3.0]


def test_noise_is_the_root_mean_square_step_of_the_second_half():
    saw = torch.tensor([0.0, 3.0] * 51)[:101]
    still = saw.clone()
    still[50:] = 1.0
    assert curves(multipliers=saw).noise().tolist() == [3.0] * 5
    assert curves(multipliers=still).noise().tolist() == [0.0] * 5


def test_settled_is_the_epoch_after_the_last_excursion():
    path = torch.ones(101)
    path[:30] = 0.5
    path[60] = 1.3
    path[80] = 1.1  # within 20%
    assert curves(multipliers=path).settled(2).tolist() == [61] * 5
    assert curves(multipliers=torch.ones(101)).settled(2).tolist() == [0] * 5


def test_first_below_does_not_count_the_untrained_model():
    falling = torch.linspace(0.2, 0.0, 101)
    falling[0] = 0.0
    found = dataclasses.replace(curves(), gaps=as_gaps(falling.repeat(5, 1)))
    expected = next(epoch for epoch in range(1, 101) if falling[epoch] < 0.05)
    assert found.first_below(0.05).tolist() == [expected] * 5
    assert curves(violation=0.1).first_below(0.05).tolist() == [101] * 5


def verdicts(**changed):
    """Whether each claim holds when everything is as the paper says, but for what is changed."""
    saw = torch.tensor([0.0, 3.0] * 51)[:101]
    quick, slow = torch.ones(101), torch.ones(101)
    quick[:10], slow[:50] = 0.0, 0.0
    quick += saw / 300
    every = {
        "unconstrained": curves(0.95, 0.2),
        "gradient ascent": dataclasses.replace(curves(0.89, multipliers=slow), gaps=falling(50, 0.16)),
        "nuPI, nu = 0": curves(0.8, 0.017, multipliers=saw),
        "nuPI, nu = 0.99": dataclasses.replace(curves(0.924, multipliers=quick), gaps=falling(10)),
    } | {name.replace("_", " ").replace("nuPI", "nuPI, nu ="): each for name, each in changed.items()}
    table = pd.DataFrame()
    table.attrs["disagreement"] = changed.pop("disagreement", 0.0)
    found = fairness.claims(every, table, at_paper_scale=True)
    return {claim.claim: claim.holds for claim in found}


def falling(until, start=0.15):
    path = torch.full((101,), 0.017)
    path[:until] = start
    return as_gaps(path.repeat(5, 1))


def test_claims_hold_where_the_curves_are_the_papers_and_fail_where_they_are_not():
    assert all(verdicts().values())
    slower = dataclasses.replace(curves(0.924), gaps=falling(60))
    failing = [claim for claim, holds in verdicts(**{"nuPI_0.99": slower}).items() if not holds]
    assert any("lower violation than gradient ascent" in claim for claim in failing)
    failing = [claim for claim, holds in verdicts(unconstrained=curves(0.95, 0.1)).items() if not holds]
    assert failing == ["without constraints the maximum violation is near 20%"]
    failing = [claim for claim, holds in verdicts(nuPI_0=curves(0.8, 0.05)).items() if not holds]
    assert failing == ["nuPI(0) has unstable multipliers", "nuPI(0) ends near 1.7% maximum violation"]


def test_the_ceiling_of_parity_is_the_linear_programs():
    rng = torch.Generator().manual_seed(0)
    groups = torch.randint(4, (300,), generator=rng)
    labels = (torch.rand(300, generator=rng) < torch.tensor([0.1, 0.3, 0.35, 0.8])[groups]).float()
    rows = adult.Split(torch.zeros(300, 1), labels, groups)
    # Choose each row's prediction q in [0, 1]: most agreement, with the mean over each group equal to p.
    counts = groups.bincount().numpy()
    equal = np.zeros((4, 301))
    equal[groups, np.arange(300)] = 1 / counts[groups]
    equal[:, 300] = -1
    gain = np.append(1 - 2 * labels.numpy(), 0)
    best = linprog(gain, A_eq=equal, b_eq=np.zeros(4), bounds=(0, 1))
    accuracy = (-best.fun + (1 - labels).sum().item()) / 300
    assert rivals.parity_ceiling(rows) == pytest.approx(accuracy, abs=1e-9)


def test_judge_by_hand():
    rows = adult.Split(
        torch.zeros(8, 1), torch.tensor([1.0, 0, 1, 0, 1, 1, 0, 0]), torch.tensor([0, 0, 0, 0, 0, 0, 1, 1])
    )
    positive = torch.tensor([1, 1, 1, 0, 0, 0, 1, 1]).bool()  # rates 1/2 and 1, together 5/8
    found = rivals.judge(positive, rows)
    assert found["accuracy"] == 3 / 8
    assert found["gap"] == pytest.approx(3 / 8)
    assert found["mean_gap"] == pytest.approx((6 * 1 / 8 + 2 * 3 / 8) / 8)
    assert found["disagreement"] < 1e-9
    assert 0 < found["chance"] < found["gap"] + 0.1


def test_chance_is_the_spread_of_equal_rates():
    rng = np.random.default_rng(1)
    groups = np.repeat([0, 1], 10_000)
    predicted = rng.random(20_000) < 0.25
    # The largest of two opposite gaps is one half-normal variable.
    deviation = np.sqrt(0.25 * 0.75 / 20_000)
    assert rivals.chance_gap(predicted, groups) == pytest.approx(deviation * np.sqrt(2 / np.pi), rel=0.2)


def test_an_unknown_estimator_is_refused():
    with pytest.raises(ValueError, match="estimator='forest'"):
        rivals.exponentiated_gradient(estimator="forest", bound=0.01, rounds=1)


def test_the_rule_for_the_step_size_looks_at_accuracy_among_the_fair():
    every = {0.01: curves(0.95, 0.1), 0.03: curves(0.93), 0.1: curves(0.92)}
    (claim,) = ki.claims(every)
    assert claim.holds
    assert "0.01: 95.00% (not fair)" in claim.here
    (claim,) = ki.claims(every | {0.1: curves(0.94)})
    assert not claim.holds
    (claim,) = ki.claims({0.03: curves(0.93, 0.1)})
    assert not claim.holds  # none is fair


def test_kp_5_has_to_be_lowest_by_more_than_the_spread():
    def holds(at_ten):
        every = {name: curves(violation=0.05) for name in fairness_nu.players()}
        every[fairness_nu.key(0.99, 5.0)] = curves(violation=0.03)
        every[fairness_nu.key(0.99, 10.0)] = curves(violation=at_ten)
        return next(claim.holds for claim in fairness_nu.claims(every) if claim.claim.startswith("kp = 5"))

    assert holds(0.04)
    assert not holds(0.02)
    assert not holds(0.03 + torch.tensor([0.01, -0.01, 0.02, -0.01, 0.0]).unsqueeze(1))


def test_self_tuned_has_to_be_lower_than_every_fixed_setting_at_no_large_cost():
    def judged(violation, accuracy):
        fixed = {"gradient ascent 1": curves(0.85, 0.03), "nuPI": curves(0.9, 0.1)}
        return [
            claim.holds
            for claim in self_tuned_adult.claims({"SelfTuned": curves(accuracy, violation), **fixed})
        ]

    assert judged(0.02, 0.845) == [True, True]
    assert judged(0.04, 0.845) == [False, True]
    assert judged(0.02, 0.83) == [True, False]


@pytest.fixture
def small(monkeypatch, adult_data):
    """The targets at two epochs of every sixth row: these tests are about the path, not the numbers."""

    def thinned(rows):
        return adult.Split(rows.features[::6], rows.labels[::6], rows.groups[::6])

    thin = dataclasses.replace(adult_data, train=thinned(adult_data.train), test=thinned(adult_data.test))
    monkeypatch.setattr(adult, "load", lambda: thin)
    monkeypatch.setattr(training, "_data", lambda: thin)
    monkeypatch.setitem(fairness.EPOCHS, "smoke", 2)
    for module in (fairness_nu, ki, self_tuned_adult):
        monkeypatch.setitem(module.SIZES, "smoke", (2, 1))
    monkeypatch.setattr(fairness_nu, "NUS", (0.0, 0.99))
    monkeypatch.setattr(fairness_nu, "KPS", (1.0, 5.0))
    monkeypatch.setattr("nupi.paper.jobs.running.available_cores", lambda: 1)


@pytest.mark.filterwarnings("ignore:steps=1 is too short")  # SelfTuned, of two epochs
@pytest.mark.usefixtures("small", "adult_data")
def test_the_targets_from_end_to_end(tmp_path):
    names = ("fairness", "fairness-nu", "fairness-ki", "self-tuned-adult")
    ran = CliRunner().invoke(app, ["reproduce", *names, "--scale", "smoke", "--out", str(tmp_path)])
    assert "failed" not in ran.output, ran.output
    for name in names:
        out = tmp_path / name
        summary = json.loads((out / "summary.json").read_text())
        assert summary["target"] == name
        assert summary["claims"]
        assert (out / "figure.png").stat().st_size > 10_000
        assert (out / "report.html").exists() == (name == "fairness")
    numbers = pd.read_csv(tmp_path / "fairness" / "results.csv")
    assert len(numbers) == 7 * 3  # methods by epochs
    assert numbers["train_accuracy"].between(0.1, 1).all()
    # What several targets need was trained once: gradient ascent, and nuPI at nu = 0 and 0.99.
    trained = list((tmp_path / "runs").glob("train-*.pt"))
    assert len(trained) == 7 + 2 + 4 + 5
    shipped = json.loads((tmp_path / "fairness" / "summary.json").read_text())["tables"][2]
    assert [row[0].split(" (")[0] for row in shipped["rows"]][-2] == "fairlearn EG, logistic"


@pytest.mark.usefixtures("adult_data")
def test_the_command_gets_the_data():
    ran = CliRunner().invoke(app, ["data", "adult"])
    assert ran.exit_code == 0
    assert ran.output.startswith("adult: 30,162 training and 15,060 test rows, 50 features, 10 groups.")


def test_the_command_says_what_is_wrong(tmp_path):
    unknown = CliRunner().invoke(app, ["data", "adullt"])
    assert unknown.exit_code == 2
    assert "did you mean adult" in " ".join(unknown.output.replace("│", " ").split())
    empty = CliRunner().invoke(app, ["data", "adult", "--path", str(tmp_path)])
    assert empty.exit_code == 1
    assert "holds neither" in empty.output
