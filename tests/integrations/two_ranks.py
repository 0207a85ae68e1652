"""Run a function as two processes that find each other over gloo, and read what each has saved."""

import importlib
import multiprocessing
import os
import socket
import sys

import torch
from ranks import processes


def two_ranks(function, folder, *arguments, imports=(), **environment):
    """Call `function(folder, rank, *arguments)` on two ranks; returns what they wrote to folder/rank0.pt and rank1.pt.

    Both are forks of one process, so that the packages in `imports` are imported once.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    both = processes().Process(target=_both, args=(function, folder, arguments, imports, environment))
    both.start()
    both.join(180)
    hangs = both.is_alive()
    if hangs:
        os.killpg(both.pid, 9)
    output = (folder / "output").read_text() if (folder / "output").exists() else ""
    assert not hangs, f"the ranks hang: {output}"
    assert both.exitcode == 0, output
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(2)]


def _both(function, folder, arguments, imports, environment):
    os.setpgrp()  # whoever ends this process can end its ranks too
    with (folder / "output").open("w") as output:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(output.fileno(), stream.fileno())
    os.environ.update(environment)
    torch.set_num_threads(1)
    for package in imports:
        importlib.import_module(package)
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=_one, args=(function, folder, rank, arguments)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    sys.exit(any(rank.exitcode for rank in ranks))


def _one(function, folder, rank, arguments):
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "NODE_RANK": "0"})
    function(folder, rank, *arguments)
