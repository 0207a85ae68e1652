"""Chunks of a sweep on executors: real process pools, a real dask cluster, and submitit's own processes."""

import os
import pickle
import signal
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing.forkserver import ensure_running
from threading import Lock

import pytest
import torch
from ranks import processes

import nupi
from nupi.solve import dispatch

X0 = torch.zeros(3, dtype=torch.float64)
GRID = {"ki": torch.logspace(-2, -1, 6), "kp": [0.0, 1.0]}


def objective(x):
    return (x - 1).square().sum()


def inequality(x):
    return x.cumsum(0) - 1  # which torch runs: it has no native form


def run(objective=objective, **arguments):
    given = {
        "inequality": inequality,
        "grid": GRID,
        "steps": 30,
        "chunk": 3,
        "history": ["multipliers"],
        "every": 10,
    }
    return nupi.sweep(objective, X0, **(given | arguments))


@pytest.fixture(scope="module")
def here():
    return run()


def new_pool():
    # No forks of this process: it has threads, which they would not bring along.
    return ProcessPoolExecutor(2, mp_context=processes())


@pytest.fixture(scope="module")
def pool():
    """Workers for all tests that leave them alive: starting them costs more than the tests."""
    with new_pool() as made:
        yield made


@pytest.fixture
def mortal_pool():
    with new_pool() as made:
        yield made


def assert_same(found, here):
    assert torch.equal(found.x, here.x)
    assert torch.equal(found.multipliers["inequality"], here.multipliers["inequality"])
    assert torch.equal(found.history["multipliers"]["inequality"], here.history["multipliers"]["inequality"])
    assert torch.equal(found.status, here.status)


def test_a_process_pool_gives_the_same(pool, here):
    seen = []
    found = run(executor=pool, progress=lambda done, total: seen.append((done, total)))
    assert_same(found, here)
    assert [total for _, total in seen] == [12 * 30] * 4
    assert [done for done, _ in seen] == [90, 180, 270, 360]
    native = {"inequality": lambda x: x - 0.5}
    assert_same(run(executor=pool, **native), run(**native))


def test_threads_give_the_same(here):
    with ThreadPoolExecutor(3) as threads:
        assert_same(run(executor=threads), here)


def die_once(x, path):
    """Kill the process that is the first to get here, unless it is the one that runs the tests."""
    if os.getpid() != int((path / "parent").read_text()):
        try:
            (path / "died").mkdir()
        except FileExistsError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    return objective(x)


def die_always(x, path):
    if os.getpid() != int((path / "parent").read_text()):
        with (path / "deaths").open("a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)
    return objective(x)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "parent").write_text(str(os.getpid()))
    return tmp_path


def test_a_worker_that_is_killed_costs_its_chunk_and_no_more(mortal_pool, here, folder):
    found = run(partial(die_once, path=folder), executor=mortal_pool)
    assert (folder / "died").exists()
    assert_same(found, here)


@pytest.mark.nightly
def test_a_chunk_that_kills_every_worker_is_given_up(mortal_pool, folder):
    with pytest.raises(dispatch.LostWorkerError, match=r"lost with its worker 4 times.*checkpoint="):
        run(partial(die_always, path=folder), executor=mortal_pool, chunk=12)
    assert len((folder / "deaths").read_text()) == 4


def fail(x, parent):
    if os.getpid() != parent:
        raise ZeroDivisionError("only elsewhere")
    return objective(x)


def test_an_error_of_the_problem_is_raised_at_once(pool):
    with pytest.raises(ZeroDivisionError, match="only elsewhere"):
        run(partial(fail, parent=os.getpid()), executor=pool)


def test_finished_chunks_are_kept_and_not_sent_again(pool, here, tmp_path, monkeypatch):
    first = run(executor=pool, checkpoint=tmp_path)
    assert_same(first, here)
    (tmp_path / "chunk-00002.pt").unlink()
    sent = []
    real = pool.submit
    monkeypatch.setattr(pool, "submit", lambda *given: (sent.append(given), real(*given))[1])
    again = run(executor=pool, checkpoint=tmp_path)
    assert len(sent) == 1
    assert_same(again, here)
    assert run(executor=pool, checkpoint=tmp_path).engine == "checkpoint"


def test_what_cannot_be_sent_is_refused_with_a_remedy(pool, monkeypatch):
    lock = Lock()

    def guarded(x):
        with lock:
            return x.square().sum()

    with pytest.raises(TypeError, match=r"executor: .* cannot be pickled"):
        run(guarded, executor=pool)
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(TypeError, match="install cloudpickle"):
        run(lambda x: x.square().sum(), executor=pool)


def test_an_executor_is_something_that_submits():
    with pytest.raises(TypeError, match="executor must have a method submit"):
        run(executor=4)


def test_settings_survive_a_journey():
    from nupi.solve.methods import read_dual
    from nupi.solve.program import Setting

    setting = Setting(*read_dual(nupi.NuPI, {"ki": 0.1, "form": "velocity"}, "dual"), restart=True)
    again = pickle.loads(pickle.dumps(setting))
    assert again == setting
    assert again.key == setting.key


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_a_dask_cluster_gives_the_same_even_if_a_worker_is_killed(here, folder):
    distributed = pytest.importorskip("distributed")
    processes()
    ensure_running()  # else dask would start the server with other packages, for all tests
    with (
        pytest.importorskip("dask").config.set({"distributed.worker.multiprocessing-method": "forkserver"}),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        executor = client.get_executor()
        assert_same(run(executor=executor), here)
        assert_same(run(partial(die_once, path=folder), executor=executor), here)
        assert (folder / "died").exists()


def test_submitit_gives_the_same_even_if_a_job_is_killed(here, folder, monkeypatch):
    submitit = pytest.importorskip("submitit")
    cloudpickle = pytest.importorskip("cloudpickle")
    # It waits so many seconds for the result of a killed job, which a slow file system could still bring.
    monkeypatch.setattr(submitit.LocalJob, "_results_timeout_s", 1)
    # Its jobs know nothing of the path that pytest has found this module on.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        executor = submitit.LocalExecutor(folder=folder / "jobs")
        executor.update_parameters(timeout_min=5)
        found = run(partial(die_once, path=folder), executor=executor, chunk=6)
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert (folder / "died").exists()
    assert_same(found, here)
