"""Real processes that talk over gloo, kept alive between tests: a scenario is a function run on every rank."""

import multiprocessing
import socket
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


def program(code, **names):
    """A new process, not started yet, that runs this code with these names."""
    return processes().Process(target=exec, args=(code, names))


class Ranks:
    """`world` processes; `run` calls a function on all of them inside a fresh process group."""

    def __init__(self, world):
        self.world, self.folder = world, tempfile.TemporaryDirectory()
        self.workers = []

    def run(self, scenario, *args, world):
        """What `scenario(*args)` returned on each of the first `world` ranks."""
        if not self.workers:
            self._start()
        try:
            return self._run(scenario, args, world)
        except BaseException:
            self._kill()  # who knows what they are in the middle of: the next scenario gets new ones
            raise

    def close(self):
        self._kill()
        self.folder.cleanup()

    def _start(self):
        context = processes()
        for rank in range(self.world):
            ours, theirs = context.Pipe()
            worker = context.Process(target=_serve, args=(theirs, rank, self._answer(rank)), daemon=True)
            worker.start()
            theirs.close()
            self.workers.append((worker, ours))

    def _run(self, scenario, args, world):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        for _, pipe in self.workers[:world]:
            pipe.send((scenario, args, world, f"tcp://127.0.0.1:{port}"))
        failures = []
        for rank, (_, pipe) in enumerate(self.workers[:world]):
            assert pipe.poll(TIMEOUT), f"rank {rank} of {world} hangs in {scenario.__name__}"
            try:
                failures.append(pipe.recv())
            except EOFError:
                raise AssertionError(f"rank {rank} of {world} died in {scenario.__name__}") from None
        assert not any(failures), "\n".join(failures)
        return [torch.load(self._answer(rank), weights_only=False) for rank in range(world)]

    def _answer(self, rank):
        return Path(self.folder.name) / f"answer{rank}"

    def _kill(self):
        for worker, _ in self.workers:
            worker.kill()  # a polite end takes seconds
            worker.join()
        self.workers = []


def _serve(pipe, rank, answer):
    torch.set_num_threads(1)
    finished = None
    while True:
        scenario, args, world, init = pipe.recv()
        dist.init_process_group(
            "gloo", init_method=init, rank=rank, world_size=world, timeout=timedelta(seconds=TIMEOUT / 2)
        )
        failure = ""
        try:
            torch.save(scenario(*args), answer)
        except Exception:  # noqa: BLE001 - it is the test's to judge
            failure = f"rank {rank}:\n{traceback.format_exc()}"
        # Its last reference goes a round later: torch 2.6 waits for the group's threads under the interpreter's lock,
        # for ever if one of them still has a tensor to let go of.
        finished = dist.group.WORLD  # noqa: F841
        dist.destroy_process_group()
        pipe.send(failure)
