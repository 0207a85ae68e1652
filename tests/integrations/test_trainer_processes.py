"""Two processes under accelerate train as one does on the joined batch."""

import pytest
import torch
from integrations import trainer_run
from integrations.two_ranks import two_ranks

pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")


def test_two_processes_are_one(tmp_path):
    one = trainer_run.one_batch(tmp_path / "one")
    one.train()
    expected = trainer_run.result(one)
    (tmp_path / "two").mkdir()
    launched = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "ACCELERATE_USE_CPU": "true"}
    first, second = two_ranks(
        trainer_run.one_rank, tmp_path / "two", imports=["examples.huggingface_trainer"], **launched
    )
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
