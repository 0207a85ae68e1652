"""A record on disk: whole, cut off, of another version, on a full disk."""

import gc
import json
import re
import resource
import signal
import warnings

import pytest
import torch

import nupi
from nupi.monitor import disk, read


def train(path, steps=150, start=0, monitor=None, lagrangian=None, dual=None, **options):
    lagrangian = lagrangian or nupi.Lagrangian({"a": nupi.Equality(), "b": nupi.Inequality(40)})
    dual = dual or nupi.NuPI(lagrangian.parameters(), ki=0.1, kp=0.5)
    monitor = monitor or nupi.Monitor(lagrangian, path=path, **options)
    g = torch.Generator().manual_seed(start)
    for _ in range(steps):
        lagrangian.ascend(dual, {"a": torch.randn(1, generator=g), "b": torch.randn(40, generator=g)})
    return lagrangian, dual, monitor


def same(one, other):
    assert len(one) == len(other)
    for a, b in zip((*one.recent(), *one.overview()), (*other.recent(), *other.overview()), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    assert [(g.names, g.kind, g.changes) for g in one.gains] == [
        (g.names, g.kind, g.changes) for g in other.gains
    ]


def test_what_is_read_is_what_was_recorded(tmp_path):
    _, dual, monitor = train(tmp_path)
    dual.param_groups[0]["ki"] = 0.2
    train(None, 10, 1, monitor, monitor._lagrangian, dual)
    monitor.close()
    same(read(tmp_path), monitor.record)
    same(read(tmp_path / disk.FILE), monitor.record)


def test_a_run_of_a_function_is_on_disk_as_a_whole_when_the_function_has_ended(tmp_path):
    def job():
        lagrangian = nupi.Lagrangian({"c": nupi.Equality()})
        x = torch.zeros(1, requires_grad=True)
        primal = torch.optim.SGD([x], lr=0.1)
        dual = nupi.SelfTuned(lagrangian.parameters(), steps=20, primal=primal)
        nupi.Monitor(lagrangian, path=tmp_path)
        for _ in range(60):
            lagrangian.ascend(dual, {"c": x - 1})
            lagrangian(x.square().sum(), {"c": x - 1}).backward()
            primal.step()
            primal.zero_grad()

    job()
    gc.collect()
    found = read(tmp_path)
    assert len(found) == 60
    assert found.gains_of("c").latest["ki"] > 0  # as they are at the end, and not at the first step


@pytest.mark.parametrize("cut", [1, 7, 8, 100, 1000, 5000])
def test_a_record_that_was_cut_off_is_read_up_to_its_last_whole_step(tmp_path, cut):
    _, _, monitor = train(tmp_path)
    monitor.close()
    file = tmp_path / disk.FILE
    content = file.read_bytes()
    file.write_bytes(content[:-cut])
    record = read(tmp_path)
    width = 8 * (record.columns.count + 1)
    assert 150 - cut // width - 2 <= len(record) < 150
    steps, columns = record.recent()
    whole = monitor.record.recent()
    assert torch.equal(steps, whole[0][: len(record)])
    torch.testing.assert_close(columns, whole[1][: len(record)], rtol=0, atol=0, equal_nan=True)


def test_zeros_after_a_power_cut_are_no_steps(tmp_path):
    _, _, monitor = train(tmp_path, 64)
    monitor.close()
    file = tmp_path / disk.FILE
    width = 8 * (monitor.record.columns.count + 1)
    content = bytearray(file.read_bytes())
    content[-5 * width :] = bytes(5 * width)
    file.write_bytes(bytes(content))
    assert len(read(tmp_path)) == 59


def test_a_record_of_another_version_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "VERSION", 99)
    train(tmp_path)[2].close()
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"version 99.*reads version 2"):
        read(tmp_path)
    (tmp_path / disk.FILE).write_bytes(b'nupi record\nHEAD\x10\0\0\0\0\0\0\0{"version": 1}')
    with pytest.raises(ValueError, match=r"version 1, .*reads version 2"):
        read(tmp_path)


def test_a_bit_that_is_flipped_is_noticed_or_is_of_steps_that_are_left_out(tmp_path):
    """No flip gives other numbers, or an error that does not name the file."""
    _, dual, monitor = train(tmp_path, 70)
    dual.param_groups[0]["ki"] = 0.2
    train(None, 5, 1, monitor, monitor._lagrangian, dual)
    monitor.close()
    file, (_, columns) = tmp_path / disk.FILE, monitor.record.recent()
    whole, errors = file.read_bytes(), []
    for bit in range(3, 8 * len(whole), 8 * len(whole) // 400 | 1):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        try:
            found = read(tmp_path).recent()[1]
        except ValueError as error:
            errors.append(str(error))
        else:
            torch.testing.assert_close(found, columns[: len(found)], rtol=0, atol=0, equal_nan=True)
    known = "is damaged: byte|is not a record of nupi|has no step yet"
    assert all(re.search(known, error) for error in errors)
    assert len(errors) > 380


def test_what_is_no_record_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match="no record here"):
        read(tmp_path)
    (tmp_path / disk.FILE).write_text("hello")
    with pytest.raises(ValueError, match="not a record of nupi"):
        read(tmp_path)


def test_a_long_record_is_rewritten_and_stays_small(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "_REWRITE", 20_000)
    _, _, monitor = train(tmp_path, 3_000, keep=100)
    monitor.close()
    same(read(tmp_path), monitor.record)
    snapshot = (
        sum(t.numel() for t in monitor.record.state_dict()["thinned"].values() if torch.is_tensor(t)) * 8
    )
    written = (tmp_path / disk.FILE).stat().st_size
    assert written < 6 * snapshot + 100_000


def test_another_run_keeps_the_record_of_the_first(tmp_path):
    train(tmp_path, 70)[2].close()
    train(tmp_path, 80)[2].close()
    assert len(read(tmp_path)) == 80
    assert len(read(tmp_path / "record.1.nupi")) == 70


def test_a_resumed_run_goes_on_in_one_file(tmp_path):
    lagrangian, dual, monitor = train(tmp_path, 70)
    state = monitor.state_dict()
    monitor.close()
    again = nupi.Monitor(lagrangian, path=tmp_path)
    again.load_state_dict(state)
    train(tmp_path, 30, 5, again, lagrangian, dual)
    again.close()
    assert len(read(tmp_path)) == 100
    same(read(tmp_path), again.record)


def test_a_full_disk_ends_the_file_with_one_warning_and_not_the_training(tmp_path):
    """The system itself refuses to let the file grow past a limit."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, before[1]))
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            _, _, monitor = train(tmp_path, 2_000)
            monitor.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert [str(w.message).partition(" to ")[0] for w in seen] == ["nupi.Monitor cannot write"]
    assert len(monitor.record) == 2_000
    assert 0 < len(read(tmp_path)) < 2_000


def test_a_folder_that_cannot_be_made_is_one_warning(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(RuntimeWarning, match="cannot write") as seen:
        _, _, monitor = train(tmp_path / "file" / "folder")
    assert len(seen) == 1
    assert len(monitor.record) == 150


def test_the_head_says_what_runs(tmp_path):
    train(tmp_path)[2].close()
    info = read(tmp_path).info
    assert info["torch"] == str(torch.__version__)
    assert info["multipliers"] == 41
    json.dumps(info)
