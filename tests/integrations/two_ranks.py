"""Run a script as two processes that find each other over gloo, and read what each has saved."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]


def two_ranks(script, folder, *arguments, **environment):
    """Call `script folder rank arguments...` on two ranks; returns what they wrote to folder/rank0.pt and rank1.pt."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    ranks = []
    for rank in ("0", "1"):
        command = [
            sys.executable,
            str(ROOT / "tests" / "integrations" / script),
            str(folder),
            rank,
            *arguments,
        ]
        env = os.environ | here | {"RANK": rank, "LOCAL_RANK": rank, "NODE_RANK": "0"} | environment
        ranks.append(
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    for rank in ranks:
        output, _ = rank.communicate(timeout=180)
        assert rank.returncode == 0, output
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(2)]
