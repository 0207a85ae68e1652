"""The tables of docs/gates.md are those of results/pruning."""

import csv
from pathlib import Path

from benchmarks import gates_fit, gates_latency, gates_report
from benchmarks.gates_report import markdown, table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "pruning"


def test_the_guide_has_the_numbers_of_the_results():
    guide = (ROOT / "docs" / "gates.md").read_text(encoding="utf-8")
    lines = markdown(table())
    assert len(lines) > 2
    assert all(line in guide for line in lines)


def test_every_method_kept_to_the_flops_it_was_given():
    assert all(line["flops"] <= line["asked"] + 0.005 for line in table())
    assert all(line["seeds"] == 3 for line in table())


def test_every_method_had_the_same_time():
    """In steps of the dense network, as each run measured them; the seconds are those of a busy machine."""
    assert all(abs(float(row["dense_steps"]) - 1_000) < 1 for row in gates_report.read())
    for task in ("cifar", "text"):
        seconds = [line["seconds"] for line in table() if line["task"] == task]
        assert max(seconds) <= 1.15 * min(seconds)


def test_the_older_run_with_equal_steps_is_quoted_as_it_was():
    with (RESULTS / "equal_steps.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["task"], row["asked"]) == ("cifar", "0.25")]
    mean = {
        method: sum(float(row["accuracy"]) for row in rows if row["method"] == method) / 3
        for method in ("gates", "l1", "magnitude")
    }
    guide = (ROOT / "docs" / "gates.md").read_text(encoding="utf-8")
    assert (
        f"{mean['gates']:.1f}%, where L1 has {mean['l1']:.1f}% and magnitude pruning {mean['magnitude']:.1f}%"
        in guide
    )


def test_what_the_guide_says_of_the_methods_is_in_the_table():
    found = {(line["task"], line["method"], line["asked"]): line for line in table()}

    def above(task, other, asked):
        return round(found[task, "gates", asked]["accuracy"] - found[task, other, asked]["accuracy"], 1)

    assert [above(task, "magnitude", 0.25) for task in ("cifar", "text")] == [0.1, 0.6]
    assert [above(task, "l1", 0.25) for task in ("cifar", "text")] == [-0.7, -1.3]
    assert [above("cifar", other, 0.5) for other in ("magnitude", "l1")] == [-1.4, -2.3]
    assert [above("text", other, 0.5) for other in ("magnitude", "l1")] == [-0.9, -1.1]
    left = [round(found["cifar", method, 0.25]["parameters"], 2) for method in ("gates", "magnitude", "l1")]
    assert left == [0.24, 0.29, 0.35]


def test_the_guide_says_where_trainings_ended_before_the_fit():
    guide = (ROOT / "docs" / "gates.md").read_text(encoding="utf-8")
    for task, title in (("cifar", "the ResNet-18 below"), ("text", "the GPT-2 below")):
        for asked in ("0.5", "0.25"):
            runs = [row for row in gates_report.read() if (row["task"], row["asked"]) == (task, asked)]
            ended = [f"{100 * float(row['ended']):.1f}" for row in runs if row["ended"]]
            assert len(ended) == 3
            line = f"{float(asked):.0%} of the FLOPs | {ended[0]}, {ended[1]} and {ended[2]}% |"
            assert any(title in each and line in each for each in guide.splitlines()), (title, line)


def test_the_guide_has_what_a_budget_on_latency_predicted():
    guide = (ROOT / "docs" / "gates.md").read_text(encoding="utf-8")
    rows = gates_latency.read()
    assert all(line in guide for line in gates_latency.table(rows))
    for network, words in (
        ("convolutions", "four convolutions the measured time"),
        ("gpt2", "a tiny GPT-2 it"),
    ):
        off = [float(row["measured"]) - float(row["predicted"]) for row in rows if row["network"] == network]
        assert f"{words} was {100 * min(off):.0f} to {100 * max(off):.0f} points above" in guide
    for limit in ("0.8", "0.65", "0.5"):
        runs = [row for row in rows if (row["network"], row["limit"]) == ("gpt2", limit)]
        mean = {name: sum(float(row[name]) for row in runs) / len(runs) for name in ("measured", "flops")}
        assert abs(mean["measured"] - mean["flops"]) < 0.07


def test_the_reasons_for_our_own_surgery_are_those_that_were_measured():
    with (RESULTS / "surgery.csv").open(newline="") as file:
        found = {(row["network"], row["what"]): row["outcome"] for row in csv.DictReader(file)}
    assert sum(what == "channels" for _, what in found) == 11
    refused = {("gpt2", "units"), ("gpt2", "heads"), ("llama", "heads")}
    assert {each for each, outcome in found.items() if outcome != "equal"} == refused
    assert all("Conv1D" in found["gpt2", what] for what in ("units", "heads"))
    assert found["llama", "heads"] == "not back after 45 s"
    guide = (ROOT / "docs" / "gates.md").read_text(encoding="utf-8")
    for line in (
        "| eleven small CNNs and MLPs | equal to rounding |",
        "| BERT, DistilBERT, ViT | equal to rounding | equal to rounding |",
        "| GPT-2 | `ValueError`: its `Conv1D` is not in the graph | the same |",
        "| Llama | equal to rounding | no result after 45 s for key-value groups |",
    ):
        assert line in guide


def test_the_guide_has_what_a_fit_costs():
    guide = (ROOT / "docs" / "gates.md").read_text(encoding="utf-8")
    rows = gates_fit.read()
    assert all(line in guide for line in gates_fit.table(rows))

    def lost(task, stop, order, column):
        """Beside the same network without a fit, as a mean over the seeds."""
        runs = [row for row in rows if (row["task"], row["stop"]) == (task, stop)]
        plain, fitted = (
            [float(row[column]) for row in runs if row["order"] == each] for each in ("no fit", order)
        )
        assert len(plain) == len(fitted) == 3
        return (sum(plain) - sum(fitted)) / 3

    for stop in ("0.6", "0.35"):
        assert 3 < lost("cifar", stop, "distance", "accuracy") < 4.5
        assert 0.5 < lost("cifar", stop, "distance", "with_norms") < 1.05
    for stop in ("0.6", "0.3"):
        assert lost("text", stop, "distance", "accuracy") < 0.2
    cases = [("text", "0.6"), ("text", "0.3"), ("cifar", "0.6"), ("cifar", "0.35")]
    for order, worse, better in (("distance per size", 3, 0), ("distance times size", 1, 1)):
        more = [lost(*case, order, "accuracy") - lost(*case, "distance", "accuracy") for case in cases]
        assert (sum(each > 0.5 for each in more), sum(each < -0.5 for each in more)) == (worse, better)
