"""Real processes that talk over gloo, kept alive between tests: a scenario is a function run on every rank."""

import multiprocessing
import tempfile
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

TIMEOUT = 60  # seconds: a rank that hangs fails the test instead


def processes():
    """New processes that do not each pay for importing torch: a server that did no more than that is forked."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["nupi", "torch._dynamo", "torch.nn.parallel", "torch.distributed.fsdp"])
    return context


class Ranks:
    """`world` processes; `run` calls a function on all of them inside a fresh process group."""

    def __init__(self, world):
        context = processes()
        self.folder = tempfile.TemporaryDirectory()
        self.workers = []
        for rank in range(world):
            ours, theirs = context.Pipe()
            worker = context.Process(
                target=_serve, args=(theirs, rank, Path(self.folder.name) / f"answer{rank}"), daemon=True
            )
            worker.start()
            theirs.close()
            self.workers.append((worker, ours))

    def run(self, scenario, *args, world):
        """What `scenario(*args)` returned on each of the first `world` ranks, or its exception."""
        with tempfile.TemporaryDirectory(dir=self.folder.name) as meeting:
            for _, pipe in self.workers[:world]:
                pipe.send((scenario, args, world, f"file://{meeting}/point"))
            failures = []
            for rank, (_, pipe) in enumerate(self.workers[:world]):
                assert pipe.poll(TIMEOUT), f"rank {rank} of {world} hangs in {scenario.__name__}"
                try:
                    failures.append(pipe.recv())
                except EOFError:
                    raise AssertionError(f"rank {rank} of {world} died in {scenario.__name__}") from None
        assert not any(failures), "\n".join(failures)
        return [torch.load(f"{self.folder.name}/answer{rank}", weights_only=False) for rank in range(world)]

    def close(self):
        for worker, _ in self.workers:
            worker.kill()  # nothing is left to be done, and a polite end takes seconds
            worker.join()
        self.folder.cleanup()


def _serve(pipe, rank, answer):
    torch.set_num_threads(1)
    while True:
        scenario, args, world, init = pipe.recv()
        dist.init_process_group(
            "gloo", init_method=init, rank=rank, world_size=world, timeout=timedelta(seconds=TIMEOUT / 2)
        )
        try:
            torch.save(scenario(*args), answer)
            pipe.send("")
        except Exception:  # noqa: BLE001 - it is the test's to judge
            pipe.send(f"rank {rank}:\n{traceback.format_exc()}")
        finally:
            dist.destroy_process_group()
