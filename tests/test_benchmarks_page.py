"""docs/benchmarks.md says what results/benchmarks says, no less and no more."""

import csv
import re

import pytest
from benchmarks import page
from benchmarks.__main__ import NAMES
from benchmarks.growth import TABLE
from benchmarks.timing import Row, at_least, at_most

TEXT = page.PAGE.read_text(encoding="utf-8")
ROWS, REPEATS = page.read(page.RESULTS), page.read(page.REPEATS)


def section(heading):
    return TEXT.split(f"## {heading}\n")[1].split("\n## ")[0]


def items(heading):
    """The items of a section's list, by the benchmark that they begin with."""
    found = {}
    for item in f"\n{section(heading)}".split("\n- `")[1:]:
        name, _, text = item.partition("`")
        found[name] = " ".join(text.split())
    return found


def test_the_table_of_the_page_is_the_one_of_the_results():
    assert page.written(TEXT, ROWS, REPEATS) == TEXT, "run: python -m benchmarks --save NAME"


def test_every_benchmark_is_in_the_table_and_has_words():
    assert list(dict.fromkeys(row["benchmark"] for row in ROWS)) == list(NAMES)
    assert sorted(items("What is measured")) == sorted(NAMES)


def test_the_page_names_everything_that_is_missed_and_nothing_else():
    missed = [row for row in ROWS if row["met"] == "no"]
    said = items("Missed")
    assert set(said) == {row["benchmark"] for row in missed}
    for row in missed:
        assert row["what"] in said[row["benchmark"]], f"{row['benchmark']}: {row['what']}"


def test_the_page_names_what_only_some_runs_met():
    met = {(row["benchmark"], row["what"]) for row in ROWS if row["met"] == "yes"}
    lost = {
        row["benchmark"] for row in REPEATS if row["met"] == "no" and (row["benchmark"], row["what"]) in met
    }
    line = next(line for line in TEXT.splitlines() if line.startswith("Met in the saved run, but missed"))
    assert set(re.findall(r"`(\w+)`", line)) == lost


def test_a_row_says_whether_its_wish_is_met():
    for row in ROWS:
        if not row["wanted"]:
            assert row["met"] == ""
            continue
        sign, bound = row["wanted"].split()
        ratio = float(row["ratio"])
        met = ratio <= float(bound) if sign == "<=" else ratio >= float(bound)
        assert row["met"] == ("yes" if met else "no"), row


def test_what_the_page_says_of_growth_is_in_the_numbers():
    with TABLE.open(newline="", encoding="utf-8") as file:
        rows = {
            (row["against"], row["quantity"], row["curve"], int(row["count"])): float(row["value"])
            for row in csv.DictReader(file)
        }

    def ratio(against, curve, limit, count):
        return rows[against, "seconds", curve, count] / rows[against, "seconds", limit, count]

    for count in (10**6, 10**7):
        assert 2 < ratio("constraints", "ascend, all violations", "copy of as many bytes", count) < 4.5
        assert rows["constraints", "bytes", "held: multipliers and state", count] == 12 * count
        assert rows["constraints", "bytes", "more during an ascend", count] == pytest.approx(
            16 * count, rel=1e-3
        )
        assert rows["constraints", "bytes", "more, Indexed", count] < 8_000
    flat = [rows["constraints", "seconds", "ascend, all violations", 10**i] for i in range(5)]
    assert max(flat) < 1.5 * min(flat)
    indexed = [rows["constraints", "seconds", "ascend, Indexed (at most 256 rows)", 10**i] for i in range(8)]
    assert 4.5 < max(indexed) / min(indexed) < 5.5
    for count in (10, 100, 1_000):
        assert ratio("groups", "ascend", "SGD(foreach=True).step", count) == pytest.approx(1.6, rel=0.05)
    assert ratio("groups", "ascend", "SGD(foreach=True).step", 10_000) == pytest.approx(2, rel=0.05)
    assert ratio("ranks", "ascend", "all-reduce", 2) == pytest.approx(3, rel=0.1)
    assert ratio("ranks", "ascend", "all-reduce", 4) == pytest.approx(1.1, rel=0.1)
    rest = {
        n: rows["ranks", "seconds", "ascend", n] - rows["ranks", "seconds", "all-reduce", n] for n in (2, 4)
    }
    assert all(0.4e-3 < more < 0.7e-3 for more in rest.values())


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """A page and a folder without results."""
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(page, "REPEATS", tmp_path / "results" / "repeats.csv")
    monkeypatch.setattr(page, "RESULTS", tmp_path / "results" / "results.csv")
    page.PAGE.write_text(f"before\n{page.START}{page.END}\nafter\n", encoding="utf-8")
    return page.PAGE


def kept():
    return [(row["benchmark"], row["what"], row["ratio"], row["met"]) for row in page.read(page.RESULTS)]


def test_a_run_takes_the_place_of_its_own_benchmark_alone(empty):
    order = ("first", "second")
    page.save(page.entries("second", [at_most("a | b", 1.25, 1.0, "a 1 us")]), order)
    page.save(page.entries("first", [at_least("c / d", 3.0, 2.0), Row("e", 1234.5, "", None)]), order)
    assert kept() == [
        ("first", "c / d", "3", "yes"),
        ("first", "e", "1234", ""),
        ("second", "a | b", "1.25", "no"),
    ]
    page.save(page.entries("first", [at_least("c / d", 1.0, 2.0)]), order)
    assert kept() == [("first", "c / d", "1", "no"), ("second", "a | b", "1.25", "no")]
    text = empty.read_text(encoding="utf-8")
    assert "| `first` | c / d | 1.00 | >= 2 | **no** |  |  |\n" in text
    assert "| `second` | a \\| b | 1.25 | <= 1 | **no** |  | a 1 us |\n" in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")


def test_repeats_stand_beside_the_run_that_was_saved_and_end_with_it(empty):
    for ratio in (1.5, 1.1, 1.2):
        rows = page.entries("first", [at_most("a", ratio, 1.3)])
        if ratio == 1.5:
            page.save(rows, ("first",))
        else:
            page.repeat(rows)
    assert "| `first` | a | 1.50 | <= 1.3 | **no** | 1.10 to 1.20 (2) |  |\n" in empty.read_text()
    page.save(page.entries("first", [at_most("a", 1.0, 1.3)]), ("first",))
    assert "| `first` | a | 1.00 | <= 1.3 | yes |  |  |\n" in empty.read_text()


def test_a_page_without_a_place_for_the_table_is_refused():
    with pytest.raises(ValueError, match="0 places for the table"):
        page.written("no marks", ROWS)
