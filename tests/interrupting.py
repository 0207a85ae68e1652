"""An error at the n-th operation of torch that something takes: all points at which a step could fail."""

from torch.utils._python_dispatch import TorchDispatchMode


class Injected(Exception):  # noqa: N818 - a made-up failure
    pass


class FailAt(TorchDispatchMode):
    """Raises `Injected` in place of the operation with this number, from 1 on, and lets the others through."""

    def __init__(self, number):
        super().__init__()
        self._left, self.raised = number, False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self._left -= 1
        if self._left == 0:
            self.raised = True
            raise Injected
        return func(*args, **(kwargs or {}))
