"""Two processes under accelerate train as one does on the joined batch."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from integrations import trainer_run

pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
ROOT = Path(__file__).parents[2]


def two_ranks(folder, batches):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    ranks = []
    for rank in range(2):
        env = os.environ | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "ACCELERATE_USE_CPU": "true",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": path,
        }
        command = [sys.executable, str(ROOT / "tests/integrations/trainer_run.py"), str(folder), str(batches)]
        ranks.append(
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    for rank in ranks:
        output, _ = rank.communicate(timeout=180)
        assert rank.returncode == 0, output
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(2)]


def test_two_processes_are_one(tmp_path):
    one = trainer_run.one_batch(tmp_path / "one")
    one.train()
    expected = trainer_run.result(one)
    (tmp_path / "two").mkdir()
    first, second = two_ranks(tmp_path / "two", batches=2)
    assert torch.equal(first["multiplier"], second["multiplier"])
    assert torch.equal(first["xi"], second["xi"])
    assert first["multiplier"].item() == pytest.approx(expected["multiplier"].item(), abs=1e-4)
    assert first["xi"].item() == pytest.approx(expected["xi"].item(), abs=1e-4)
    for ours, theirs in zip(first["logged"], expected["logged"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-3)
    for name in ("eval_loss", "eval_nupi_violation", "eval_nupi_feasible"):
        assert first["metrics"][name] == pytest.approx(expected["metrics"][name], abs=2e-3), name
        assert first["metrics"][name] == pytest.approx(second["metrics"][name]), name
    for name, value in expected["model"].items():
        torch.testing.assert_close(first["model"][name], value, atol=2e-3, rtol=1e-2, msg=name)
