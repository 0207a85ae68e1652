"""Numbers arrive in the real packages."""

import math

import pytest
import torch

import nupi
from nupi.monitor.log import as_log

NAMES = ("violation", "multiplier", "ki", "kp")


def train(steps=5, **options):
    lagrangian = nupi.Lagrangian({"norm": nupi.Inequality(), "rates (β)": nupi.Equality(3)})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.5, kp=0.0)
    monitor = nupi.Monitor(lagrangian, **options)
    for step in range(1, steps + 1):
        lagrangian.ascend(
            dual, {"norm": torch.tensor(float(step)), "rates (β)": torch.full((3,), 2.0 * step)}
        )
    return monitor


def test_a_function_is_told_every_step_at_once():
    told = []
    lagrangian = nupi.Lagrangian({"norm": nupi.Inequality()})
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.5)
    nupi.Monitor(lagrangian, log=lambda numbers, step: told.append((numbers, step)))
    for step in range(1, 4):
        lagrangian.ascend(dual, {"norm": torch.tensor(float(step))})
        assert len(told) == step
    numbers, step = told[-1]
    assert step == 3
    expected = {
        "violation": 3.0,
        "multiplier": 3.0,
        "multiplier_step": 1.5,
        "ki": 0.5,
        "kp": 0,
        "lr": 1,
        "nu": 0,
    }
    assert numbers == {f"nupi/norm/{name}": value for name, value in expected.items()}


def test_a_group_has_its_statistics():
    found = train().latest()
    assert found["nupi/rates (β)/violation"] == 10.0
    assert found["nupi/rates (β)/multiplier_norm"] == pytest.approx(15.0 * math.sqrt(3.0))
    assert found["nupi/rates (β)/active"] == 1.0


def test_tensorboard(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with SummaryWriter(tmp_path) as writer:
        train(log=writer)
    events = accumulators.EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("nupi/norm/violation")] == [(s, s) for s in range(1, 6)]
    assert [e.value for e in events.Scalars("nupi/norm/multiplier")] == [0.5, 1.5, 3.0, 5.0, 7.5]
    assert "nupi/rates (β)/violation_max" in events.Tags()["scalars"]


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    package = pytest.importorskip("mlflow")
    package.set_tracking_uri((tmp_path / "store").as_uri())
    yield package
    while package.active_run():
        package.end_run()


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("kind", ["module", "client of the active run", "client and run"])
def test_mlflow(mlflow, kind):
    client = mlflow.MlflowClient()
    with mlflow.start_run() as run:
        logs = {
            "module": mlflow,
            "client of the active run": client,
            "client and run": (client, run.info.run_id),
        }
        train(log=logs[kind])
    history = client.get_metric_history(run.info.run_id, "nupi/norm/multiplier")
    assert [(metric.step, metric.value) for metric in history] == [
        (1, 0.5),
        (2, 1.5),
        (3, 3.0),
        (4, 5.0),
        (5, 7.5),
    ]
    assert "nupi/rates _β_/violation_max" in client.get_run(run.info.run_id).data.metrics


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_client_without_a_run_says_what_is_missing(mlflow):
    with pytest.raises(ValueError, match="run_id"):
        as_log(mlflow.MlflowClient())


def test_a_run_with_log():
    class Run:  # what a W&B run offers
        def __init__(self):
            self.rows = []

        def log(self, data, step=None):
            self.rows.append((step, data["nupi/norm/violation"]))

    run = Run()
    train(log=run)
    assert run.rows == [(s, float(s)) for s in range(1, 6)]


def test_a_lightning_logger(tmp_path):
    loggers = pytest.importorskip("pytorch_lightning.loggers")
    logger = loggers.CSVLogger(tmp_path)
    train(log=logger)
    logger.save()
    rows = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text().splitlines()
    assert len(rows) == 6
    assert "nupi/norm/violation" in rows[0]


def test_a_log_that_fails_ends_the_log_and_not_the_training():
    def broken(*_):
        raise OSError("no such host")

    with pytest.warns(RuntimeWarning, match="logs no more: OSError: no such host") as seen:
        monitor = train(20, log=broken)
    assert len(seen) == 1
    assert len(monitor.record) == 20
