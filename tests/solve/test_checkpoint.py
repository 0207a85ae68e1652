import subprocess
import sys
import time
from functools import partial

import pytest
import torch

import nupi
from nupi.solve import sweep as sweep_module

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
    real = sweep_module.run_chunk

    def counted(plan, settings, tick):
        ran.append(len(settings))
        return real(plan, settings, tick)

    monkeypatch.setattr(sweep_module, "run_chunk", counted)
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


KILLED = """
import sys, torch, nupi
from functools import partial
torch.set_num_threads(1)
data = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64).reshape(4, 3)
print("started", flush=True)
nupi.sweep(
    lambda x: x.square().sum(),
    torch.zeros(3, dtype=torch.float64),
    inequality=lambda x: 1.0 - data @ x,
    grid={"ki": [0.05, 0.1, 0.2, 0.3, 0.4]},
    primal=partial(torch.optim.SGD, lr=0.05, momentum=0.8),
    steps=2000,
    chunk=2,
    checkpoint=sys.argv[1],
)
"""


def test_a_killed_sweep_resumes_in_another_process_where_it_was(tmp_path, monkeypatch):
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.DEVNULL)
    first = tmp_path / "chunk-00000.pt"
    deadline = time.monotonic() + 120
    while not first.exists():
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child.kill()
    child.wait()
    finished = {path: path.read_bytes() for path in tmp_path.glob("chunk-*.pt")}

    ran = count_runs(monkeypatch)
    resumed = run(tmp_path, steps=2000)
    assert len(ran) == 3 - len(finished) > 0
    assert all(path.read_bytes() == data for path, data in finished.items())
    ran.clear()
    torch.testing.assert_close(resumed.multipliers, run(None, steps=2000).multipliers, rtol=0, atol=0)
    assert len(ran) == 3
