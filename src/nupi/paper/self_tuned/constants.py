"""The constants of `SelfTuned` by name, and a run with other ones."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nupi.optim import measuring, retuning, self_tuning

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MODULES = {"measuring": measuring, "retuning": retuning}


def constant(name: str) -> float:
    """The value of a constant: one of `nupi.optim.self_tuning`, or of another module as "measuring.LATER"."""
    value: float = getattr(*_place(name))
    return value


@contextmanager
def changed(constants: Mapping[str, float] | None) -> Iterator[None]:
    """Constants by name, to be taken in place of those that are written in the modules."""
    before = {name: constant(name) for name in constants or {}}
    try:
        for name, value in (constants or {}).items():
            setattr(*_place(name), value)
        yield
    finally:
        for name, value in before.items():
            setattr(*_place(name), value)


def _place(name: str) -> tuple[Any, str]:
    module, _, attribute = name.rpartition(".")
    return (MODULES[module] if module else self_tuning), attribute
