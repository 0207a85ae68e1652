"""Killed with SIGKILL in the middle and started again, a run ends where it would have: bit for bit."""

import signal

import pytest
import torch
from ranks import processes
from training.loop import train


def start(folder, world=1, meeting="point", die=None):
    """Every rank in a new process; rank 0 is the one to die."""
    init = f"file://{folder / meeting}"
    started = []
    for rank in range(world):
        arguments = (folder, die if rank == 0 else None, rank, world, init)
        started.append(processes().Process(target=train, args=arguments))
        started[-1].start()
    return started


def finish(started):
    for process in started:
        process.join(120)
        assert process.exitcode == 0


def killed(started):
    """Wait for rank 0 to die of SIGKILL, and kill the others as a launcher would."""
    first, *others = started
    first.join(120)
    assert first.exitcode == -signal.SIGKILL
    for other in others:
        other.kill()
        other.join(30)


def assert_equal(left, right, path=""):
    assert type(left) is type(right), path
    if isinstance(left, torch.Tensor):
        assert torch.equal(left, right), path
    elif isinstance(left, dict):
        assert left.keys() == right.keys(), path
        for key in left:
            assert_equal(left[key], right[key], f"{path}/{key}")
    elif isinstance(left, list):
        assert len(left) == len(right), path
        for i, pair in enumerate(zip(left, right, strict=True)):
            assert_equal(*pair, f"{path}/{i}")
    else:
        assert left == right, path


def last(folder):
    return torch.load(folder / "checkpoint.pt", weights_only=True)


@pytest.mark.parametrize(
    ("world", "deaths"),
    [
        (1, [(2, "after ascend"), (7, "half a checkpoint"), (13, "after backward"), (23, "before rename")]),
        (2, [(6, "before ascend"), (11, "half a checkpoint")]),
    ],
    ids=["1 rank", "2 ranks"],
)
def test_a_run_killed_at_several_points_ends_bit_for_bit_as_if_it_never_was(tmp_path, world, deaths):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    finish(start(whole, world))
    for number, death in enumerate(deaths):
        killed(start(broken, world, f"point{number}", death))
        if (broken / "checkpoint.pt").exists():
            assert last(broken)["step"] <= death[0]
    finish(start(broken, world, "last"))
    assert_equal(last(whole), last(broken))
    assert last(whole)["lagrangian"]["rows"].any()
    if world > 1:
        multipliers = [
            torch.load(broken / f"multipliers{rank}.pt", weights_only=True) for rank in range(world)
        ]
        assert_equal(multipliers[0], multipliers[1])
        assert_equal(multipliers[0], last(whole)["lagrangian"])
