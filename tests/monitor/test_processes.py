"""Two real processes: rank 0 alone logs and writes, and it does so on what both have seen."""

import pytest
import torch

import nupi
from nupi.monitor import read


def scenario(folder):
    rank = torch.distributed.get_rank()
    lagrangian = nupi.Lagrangian({"c": nupi.Inequality(2)}, reduce="mean")
    dual = nupi.NuPI(lagrangian.parameters(), ki=0.1)
    logged = []
    monitor = nupi.Monitor(
        lagrangian, log=lambda n, s: logged.append((s, n["nupi/c/violation_max"])), path=folder
    )
    for step in range(1, 6):
        lagrangian.ascend(dual, {"c": torch.tensor([float(step), 10.0 * rank])})
    monitor.close()
    return logged, monitor.record.recent()[1], monitor.latest()["nupi/c/multiplier_max"]


def test_rank_0_logs_what_all_ranks_saw(ranks, tmp_path):
    (logged, rows, most), (nothing, same_rows, same_most) = ranks.run(scenario, str(tmp_path), world=2)
    assert logged == [(step, max(5.0, float(step))) for step in range(1, 6)]  # the mean of 0 and 10 is 5
    assert nothing == []
    torch.testing.assert_close(rows, same_rows, rtol=0, atol=0, equal_nan=True)
    assert most == same_most == pytest.approx(2.5)
    assert len(read(tmp_path)) == 5
    assert [file.name for file in tmp_path.iterdir()] == ["record.nupi"]
