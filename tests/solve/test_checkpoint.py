import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from ranks import program

import nupi
from nupi.solve import dispatch
from nupi.solve.checkpoint import Checkpoint

SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.8)
DATA = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64).reshape(4, 3)


def run(directory, *, data=DATA, level=1.0, steps=40, ki=(0.05, 0.1, 0.2, 0.3, 0.4), **more):
    return nupi.sweep(
        lambda x: x.square().sum(),
        torch.zeros(3, dtype=torch.float64),
        inequality=lambda x: level - data @ x,
        grid={"ki": list(ki)},
        primal=SGD,
        steps=steps,
        chunk=2,
        checkpoint=directory,
        **more,
    )


def count_runs(monkeypatch):
    """How many chunks are computed, as opposed to loaded."""
    ran = []
    real = dispatch.run_chunk

    def counted(plan, settings, *rest):
        ran.append(len(settings))
        return real(plan, settings, *rest)

    monkeypatch.setattr(dispatch, "run_chunk", counted)
    return ran


def test_a_second_call_repeats_nothing_and_gives_the_same(tmp_path, monkeypatch):
    ran = count_runs(monkeypatch)
    first = run(tmp_path, history=["multipliers"])
    assert ran == [2, 2, 1]
    again = run(tmp_path, history=["multipliers"])
    assert ran == [2, 2, 1]
    assert torch.equal(first.multipliers["inequality"], again.multipliers["inequality"])
    assert torch.equal(first.history["multipliers"]["inequality"], again.history["multipliers"]["inequality"])


def test_a_lost_chunk_alone_is_run_again(tmp_path, monkeypatch):
    whole = run(tmp_path)
    (tmp_path / "chunk-00001.pt").unlink()
    ran = count_runs(monkeypatch)
    again = run(tmp_path)
    assert ran == [2]
    assert torch.equal(whole.multipliers["inequality"], again.multipliers["inequality"])


@pytest.mark.parametrize(
    "change",
    [
        {"data": DATA + 1e-12},
        {"level": 1.5},
        {"steps": 41},
        {"ki": (0.05, 0.1, 0.2, 0.3, 0.5)},
        {"restart": True},
        {"tol": 1e-3},
        {"dual": partial(nupi.NuPI, kp=1.0)},
        {"history": ["objective"]},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_sweep_is_refused(tmp_path, change):
    run(tmp_path)
    before = sorted((path.name, path.stat().st_mtime_ns) for path in tmp_path.iterdir())
    with pytest.raises(ValueError, match="holds another sweep"):
        run(tmp_path, **change)
    assert sorted((path.name, path.stat().st_mtime_ns) for path in tmp_path.iterdir()) == before


def test_chunks_without_a_label_are_known_by_what_they_hold(tmp_path, monkeypatch):
    whole = run(tmp_path)
    (tmp_path / "sweep.json").unlink()
    with pytest.raises(ValueError, match=r"holds another sweep in chunk-00000.pt"):
        run(tmp_path, level=1.5)
    (tmp_path / "sweep.json").write_text("")
    ran = count_runs(monkeypatch)
    again = run(tmp_path)
    assert ran == []
    assert torch.equal(whole.multipliers["inequality"], again.multipliers["inequality"])


def test_a_chunk_of_another_sweep_is_refused(tmp_path):
    run(tmp_path / "one")
    run(tmp_path / "two", level=1.5)
    (tmp_path / "two" / "chunk-00001.pt").replace(tmp_path / "one" / "chunk-00001.pt")
    with pytest.raises(ValueError, match=r"another sweep in chunk-00001.pt"):
        run(tmp_path / "one")


@pytest.mark.parametrize("damage", ["copied", "truncated", "empty"])
def test_a_damaged_chunk_is_run_again_and_said_so(tmp_path, monkeypatch, damage):
    whole = run(tmp_path)
    first, second = (tmp_path / f"chunk-0000{i}.pt" for i in (0, 1))
    data = first.read_bytes()
    second.write_bytes({"copied": data, "truncated": data[: len(data) // 2], "empty": b""}[damage])
    ran = count_runs(monkeypatch)
    with pytest.warns(RuntimeWarning, match=r"chunk-00001.pt .* computed again"):
        again = run(tmp_path)
    assert ran == [2]
    assert torch.equal(whole.multipliers["inequality"], again.multipliers["inequality"])
    run(tmp_path)
    assert ran == [2]


def scaled_gradient(scale):
    class Bent(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(_ctx, gradient):
            return scale * gradient

    return lambda x: Bent.apply(x).square().sum()


def test_a_gradient_of_ones_own_is_part_of_the_sweep(tmp_path):
    def bent(scale):
        return nupi.sweep(
            scaled_gradient(scale),
            torch.zeros(2, dtype=torch.float64),
            inequality=lambda x: 1 - x.sum(),
            grid={"ki": [0.1]},
            steps=5,
            checkpoint=tmp_path,
        )

    first = bent(1.0)
    assert torch.equal(bent(1.0).x, first.x)
    with pytest.raises(ValueError, match="holds another sweep"):
        bent(2.0)


KILLED = """
import torch, nupi
from functools import partial
torch.set_num_threads(1)
data = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64).reshape(4, 3)
nupi.sweep(
    lambda x: x.square().sum(),
    torch.zeros(3, dtype=torch.float64),
    inequality=lambda x: 1.0 - data @ x,
    grid={"ki": [0.01, 0.02, 0.03, 0.04, 0.05]},
    primal=partial(torch.optim.SGD, lr=0.05, momentum=0.8),
    steps=1_000_000,
    chunk=2,
    checkpoint=folder,
)
"""


def test_a_killed_sweep_resumes_in_another_process_where_it_was(tmp_path, monkeypatch):
    child = program(KILLED, folder=str(tmp_path))
    child.start()
    first = tmp_path / "chunk-00000.pt"
    deadline = time.monotonic() + 120
    while not first.exists():
        assert child.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child.kill()
    child.join()
    finished = {path: path.read_bytes() for path in tmp_path.glob("chunk-*.pt")}

    ran = count_runs(monkeypatch)
    calm = {"ki": (0.01, 0.02, 0.03, 0.04, 0.05), "steps": 1_000_000}
    resumed = run(tmp_path, **calm)
    assert len(ran) == 3 - len(finished) > 0
    assert all(path.read_bytes() == data for path, data in finished.items())
    ran.clear()
    torch.testing.assert_close(resumed.multipliers, run(None, **calm).multipliers, rtol=0, atol=0)
    assert len(ran) == 3


def test_no_flipped_bit_of_a_chunk_is_taken_for_a_result(tmp_path, monkeypatch):
    whole = run(tmp_path)
    first = tmp_path / "chunk-00000.pt"
    content = first.read_bytes()
    ran = count_runs(monkeypatch)
    bits = range(3, 8 * len(content), 8 * len(content) // 20)
    for bit in bits:
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        first.write_bytes(changed)
        with pytest.warns(RuntimeWarning, match=r"chunk-00000.pt is .*; it is computed again"):
            again = run(tmp_path)
        assert torch.equal(whole.multipliers["inequality"], again.multipliers["inequality"])
    assert ran == [2] * len(bits)


def test_sweeps_that_start_in_one_directory_at_once_do_not_disturb_each_other(tmp_path):
    """Threads that meet before each start; with a fixed temporary name they lost each other's files."""
    meeting = threading.Barrier(6)

    def start(_):
        for turn in range(40):
            meeting.wait(60)
            kept = Checkpoint(tmp_path / str(turn), "one sweep")
            kept.save(0, {"theta": torch.zeros(2)})
            assert kept.load(0) is not None

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(start, range(6))) == [None] * 6
    for folder in tmp_path.iterdir():
        assert sorted(path.name for path in folder.iterdir()) == ["chunk-00000.pt", "sweep.json"]
