"""Jobs: every result once, in order of finishing, whatever fails or is killed."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from nupi.paper import jobs
from nupi.paper.jobs import workers

# What other processes import: this file's tests run from anywhere.
MODULE = """
import os, pathlib, time
import torch

def square(x, log=None):
    if log:
        with open(log, "a") as file:
            file.write(f"{x}\\n")
    return {"square": torch.tensor(x * x), "threads": torch.get_num_threads(), "process": os.getpid()}

def temper(x):
    if x == 1:
        raise ArithmeticError("one is too many")
    if x == 2:
        os._exit(7)
    return x

def patient(x, folder):
    pathlib.Path(folder, f"{x}.{os.getpid()}").touch()
    time.sleep(60)

def slow(x, flag):
    if x:
        pathlib.Path(flag).touch()
        time.sleep(60)
    return x
"""


@pytest.fixture
def work(tmp_path, monkeypatch):
    (tmp_path / "jobs_of_a_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    import jobs_of_a_test

    yield jobs_of_a_test
    del sys.modules["jobs_of_a_test"]


@pytest.mark.usefixtures("quick_workers")
@pytest.mark.parametrize("workers", [1, 2])
def test_every_job_is_done_once_and_then_read(work, tmp_path, workers):
    log = tmp_path / "log"
    settings = [{"x": x, "log": str(log)} for x in range(5)]
    first = list(jobs.run(work.square, settings, tmp_path / "kept", workers=workers))
    assert {outcome.settings["x"]: int(outcome.value["square"]) for outcome in first} == {
        x: x * x for x in range(5)
    }
    assert not any(outcome.cached for outcome in first)
    assert {outcome.value["threads"] for outcome in first} == {1}
    assert (os.getpid() in {outcome.value["process"] for outcome in first}) == (workers == 1)

    more = [*settings, {"x": 9, "log": str(log)}]
    again = list(jobs.run(work.square, more, tmp_path / "kept", workers=workers))
    assert [outcome.cached for outcome in again] == [True] * 5 + [False]
    assert sorted(log.read_text().split()) == ["0", "1", "2", "3", "4", "9"]


def test_another_version_or_setting_is_another_result(work, tmp_path):
    paths = {
        jobs.Job(work.square, {"x": 1}, tmp_path, "1").path,
        jobs.Job(work.square, {"x": 1}, tmp_path, "2").path,
        jobs.Job(work.square, {"x": 1.5}, tmp_path, "1").path,
        jobs.Job(work.temper, {"x": 1}, tmp_path, "1").path,
    }
    assert len(paths) == 4
    one, other = ({"x": 1, "log": None}, {"log": None, "x": 1})
    assert jobs.Job(work.square, one, tmp_path, "1").path == jobs.Job(work.square, other, tmp_path, "1").path


@pytest.mark.usefixtures("quick_workers")
def test_a_failure_or_a_dead_process_does_not_sink_the_rest(work, tmp_path):
    outcomes = list(jobs.run(work.temper, [{"x": x} for x in range(6)], tmp_path, workers=2))
    by_x = {outcome.settings["x"]: outcome for outcome in outcomes}
    assert {x: by_x[x].value for x in (0, 3, 4, 5)} == {0: 0, 3: 3, 4: 4, 5: 5}
    assert "ArithmeticError: one is too many" in by_x[1].failure
    assert by_x[2].failure == "its process died with exit code 7"
    with pytest.raises(jobs.JobsFailedError, match=r"(?s)2 of 6 jobs failed.*one is too many"):
        jobs.values(outcomes)


def test_what_was_finished_survives_a_kill(work, tmp_path):
    kept, flag = tmp_path / "kept", tmp_path / "flag"
    settings = [{"x": x, "flag": str(flag)} for x in (0, 1)]
    script = (
        "import sys, pathlib, jobs_of_a_test\n"
        "from nupi.paper import jobs\n"
        "if __name__ == '__main__':\n"
        "    list(jobs.run(jobs_of_a_test.slow, [{'x': x, 'flag': sys.argv[2]} for x in (0, 1)],\n"
        "                  pathlib.Path(sys.argv[1]), workers=1))\n"
    )
    program = tmp_path / "program.py"
    program.write_text(script)
    with subprocess.Popen([sys.executable, str(program), str(kept), str(flag)]) as process:
        limit = time.monotonic() + 60
        while not flag.exists() and time.monotonic() < limit:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    assert flag.exists()
    found = next(jobs.run(work.slow, settings, kept, workers=1))
    assert found.cached
    assert found.settings["x"] == 0
    assert len(list(kept.iterdir())) == 1  # nothing of the one that was under way


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
@pytest.mark.usefixtures("work")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_the_command(tmp_path, how):
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, pathlib, signal, jobs_of_a_test\n"
        "from nupi.paper import jobs\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))\n"
        "    settings = [{'x': x, 'folder': sys.argv[1]} for x in (0, 1)]\n"
        "    list(jobs.run(jobs_of_a_test.patient, settings, pathlib.Path(sys.argv[1], 'kept'), workers=2))\n"
    )
    limit = time.monotonic() + 120
    with subprocess.Popen([sys.executable, str(program), str(tmp_path)]) as process:
        while len(flags := list(tmp_path.glob("?.*"))) < 2 and time.monotonic() < limit:
            time.sleep(0.05)
        process.send_signal(how)
    alive = {int(flag.suffix[1:]) for flag in flags}
    assert len(alive) == 2
    while alive and time.monotonic() < limit:
        alive = {each for each in alive if Path(f"/proc/{each}").exists()}
        time.sleep(0.05)
    assert not alive


@pytest.mark.usefixtures("quick_workers")
def test_a_worker_that_dies_before_its_first_job_costs_that_job_only(work, tmp_path, monkeypatch):
    start, started = workers.start, []

    def start_and_kill_the_first():
        worker = start()
        started.append(worker)
        if len(started) == 1:
            worker.process.kill()
            worker.process.join()
        return worker

    monkeypatch.setattr(workers, "start", start_and_kill_the_first)
    outcomes = list(jobs.run(work.square, [{"x": x} for x in range(4)], tmp_path, workers=2))
    failed = [outcome for outcome in outcomes if outcome.failure]
    assert [outcome.failure for outcome in failed] == ["its process died with exit code -9"]
    assert len(outcomes) == 4


def cut(content):
    return content[:100]


def flipped(content):
    """One bit of the number itself."""
    where = content.index((9).to_bytes(8, "little"))
    return content[:where] + b"\x08" + content[where + 1 :]


def nonsense(_):
    return b"hello\n"


def something_else(_):
    torch.save([1, 2], buffer := io.BytesIO())
    return buffer.getvalue()


@pytest.mark.parametrize("damage", [cut, flipped, nonsense, something_else, lambda _: b""])
def test_a_damaged_result_is_computed_again(work, tmp_path, damage):
    settings = {"x": 3}
    list(jobs.run(work.square, [settings], tmp_path))
    path = jobs.Job(work.square, settings, tmp_path, "1").path
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(RuntimeWarning, match="it is computed again"):
        (again,) = jobs.run(work.square, [settings], tmp_path)
    assert not again.cached
    assert torch.equal(again.value["square"], torch.tensor(9))


def test_a_result_under_another_name_is_not_taken(work, tmp_path):
    list(jobs.run(work.square, [{"x": 3}, {"x": 4}], tmp_path, workers=1))
    three, four = (jobs.Job(work.square, {"x": x}, tmp_path).path for x in (3, 4))
    three.replace(four)
    with pytest.warns(RuntimeWarning, match="is another job's result"):
        (again,) = jobs.run(work.square, [{"x": 4}], tmp_path)
    assert int(again.value["square"]) == 16


def test_no_worker_is_refused(work, tmp_path):
    with pytest.raises(ValueError, match="workers=0"):
        list(jobs.run(work.square, [{"x": 1}], tmp_path, workers=0))


def add(*, one, where):
    return [one, where]


@pytest.mark.usefixtures("quick_workers")
@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_shared_reaches_every_job_and_has_no_part_in_its_name(tmp_path, workers):
    wanted = [{"one": one} for one in range(3)]
    first = jobs.values(jobs.run(add, wanted, tmp_path, workers=workers, shared={"where": "here"}))
    assert sorted(value for _, value in first) == [[0, "here"], [1, "here"], [2, "here"]]
    again = list(jobs.run(add, wanted, tmp_path, workers=workers, shared={"where": "elsewhere"}))
    assert all(outcome.cached and outcome.value[1] == "here" for outcome in again)
