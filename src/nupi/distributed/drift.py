"""Finding ranks that differ: in constraints, in the dual optimizer, or in numbers. All ranks then raise and say what.

| what might differ             | is checked                                           | by                          |
| ----------------------------- | ---------------------------------------------------- | --------------------------- |
| the constraints, `reduce`     | at the first step                                    | a fingerprint, gathered     |
| the dual's class and options  | at every step                                        | a fingerprint in the header |
| multipliers, the dual's state | after code other than `ascend` wrote to them         | fingerprints, gathered      |

A rank does not know that another rank has loaded a checkpoint. It must not start to gather alone, because the others
would not answer. So the header of the message that every rank sends at every step says whether something has changed.
All ranks read the same header, so all of them gather, or none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary

import torch

from nupi.distributed.fingerprint import of_text, of_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch.distributed import ProcessGroup

    from nupi.constraints import Constraint

Multipliers: TypeAlias = "Mapping[str, torch.Tensor]"
Writes: TypeAlias = "list[tuple[object, int, int]]"

_FEW = 4  # differences that an error lists
_REMEDY = "build and load the same on every rank. No rank has moved"


class Drift:
    """Whether anyone but `ascend` has written to the multipliers of a Lagrangian, or to a dual, on this rank."""

    def __init__(self) -> None:
        self._multipliers: Writes | None = None
        self._duals: WeakKeyDictionary[torch.optim.Optimizer, Writes] = WeakKeyDictionary()

    def changed(self, multipliers: Multipliers, dual: torch.optim.Optimizer) -> bool:
        """Whether something was written, or the dual is new, since the last step or comparison of all ranks."""
        return not (
            _same(self._multipliers, _writes(multipliers.values()))
            and _same(self._duals.get(dual), _writes(_kept(multipliers, dual)))
        )

    def remember(self, multipliers: Multipliers, dual: torch.optim.Optimizer) -> None:
        """Note the present state as equal on all ranks, after a step that all have taken."""
        self._multipliers = _writes(multipliers.values())
        self._duals[dual] = _writes(_kept(multipliers, dual))

    def __deepcopy__(self, memo: dict[int, object]) -> Drift:
        """A copy has its own tensors, which have not been compared yet."""
        return Drift()

    def __reduce__(self) -> tuple[type[Drift], tuple[()]]:
        return Drift, ()


def check_problem(
    constraints: Mapping[str, Constraint], multipliers: Multipliers, reduce: str, group: ProcessGroup | None
) -> None:
    """Raise on every rank unless all have the same constraints, and therefore messages of the same layout."""
    problem = ", ".join(f"{name!r}: {constraint!r}" for name, constraint in constraints.items())
    exact = f"{problem} {[m.dtype for m in multipliers.values()]} {reduce}"
    if len(set(_gathered([of_text(exact)], multipliers, group))) > 1:
        raise ValueError(
            f"the ranks have different constraints; this one has {{{problem}}} with reduce={reduce!r}. "
            "Build the same Lagrangian on every rank"
        )


def described(dual: torch.optim.Optimizer, multipliers: Multipliers) -> dict[str, str]:
    """A description of a dual: its class, and by param group its constraints and options (tensors without values)."""
    names = {id(multiplier): name for name, multiplier in multipliers.items()}
    words = {"the dual": type(dual).__qualname__}
    for number, group in enumerate(dual.param_groups):
        held = [names.get(id(param), "another parameter") for param in group["params"]]
        words[f"param group {number}"] = f"for {', '.join(held)}"
        for option, value in group.items():
            if isinstance(value, torch.Tensor):
                words[f"{option!r} of group {number}"] = (
                    f"a tensor of {value.dtype} and shape {tuple(value.shape)}"
                )
            elif option != "params":
                words[f"{option!r} of group {number}"] = of_value(value)
    return words


def refuse_duals(here: dict[str, str], group: ProcessGroup | None) -> None:
    """Raise on every rank with the differences of the duals. All ranks call this, knowing that they differ."""
    everyone: list[dict[str, str]] = [{} for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather_object(everyone, here, group=group)
    found = []
    for what in dict.fromkeys(word for words in everyone for word in words):
        ranks: dict[str, list[str]] = {}
        for rank, words in enumerate(everyone):
            ranks.setdefault(words.get(what, "missing"), []).append(str(rank))
        if len(ranks) > 1:
            sides = [f"{value} on rank {', '.join(those)}" for value, those in ranks.items()]
            found.append(f"{what} is {' and '.join(sides)}")
    raise ValueError(f"the ranks have different duals: {_listed(found, '; ')}; {_REMEDY}")


def compare(multipliers: Multipliers, dual: torch.optim.Optimizer, group: ProcessGroup | None) -> None:
    """Raise on every rank unless all multipliers, state and tensors among the gains are the same to the bit."""
    here = [of_text(of_value(multiplier)) for multiplier in multipliers.values()]
    for multiplier in multipliers.values():
        state = sorted(dual.state.get(multiplier, {}).items())
        here.append(of_text(str([(slot, of_value(value)) for slot, value in state])))
    here.append(of_text(str([of_value(value) for value in _tensor_options(dual)])))
    everyone = _gathered(here, multipliers, group)
    differ = [len(set(column)) > 1 for column in zip(*everyone, strict=True)]
    if not any(differ):
        return
    size = len(multipliers)
    what = [
        f"different {label} of {_listed([repr(name) for name in names], ', ')}"
        for label, part in (("multipliers", differ[:size]), ("state in the dual", differ[size:-1]))
        if (names := [name for name, differs in zip(multipliers, part, strict=True) if differs])
    ]
    if differ[-1]:
        what.append("different tensors among the dual's gains")
    apart = [str(rank) for rank, row in enumerate(everyone) if row != everyone[0]]
    raise ValueError(
        f"the ranks have {' and '.join(what)} (rank {', '.join(apart)} compared with rank 0), and would never agree; "
        f"was a checkpoint loaded on some of them only? If so, {_REMEDY}"
    )


def _gathered(
    numbers: Sequence[int], multipliers: Multipliers, group: ProcessGroup | None
) -> list[tuple[int, ...]]:
    """Gather the numbers of all ranks, in the order of ranks."""
    here = torch.tensor(numbers, dtype=torch.int64, device=next(iter(multipliers.values())).device)
    everyone = [torch.empty_like(here) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(everyone, here, group=group)
    return [tuple(each.tolist()) for each in everyone]


def _kept(multipliers: Multipliers, dual: torch.optim.Optimizer) -> list[object]:
    """The dual's state for these multipliers, and its gains that are tensors."""
    return [
        *(value for m in multipliers.values() for value in dual.state.get(m, {}).values()),
        *_tensor_options(dual),
    ]


def _tensor_options(dual: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [
        value
        for group in dual.param_groups
        for _, value in sorted(group.items())
        if isinstance(value, torch.Tensor)
    ]


def _writes(values: Iterable[object]) -> Writes:
    """Each object, its pointer and its version. Torch counts writes in the version, except those to `.data`."""
    return [
        (
            value,
            value.data_ptr() if value.layout == torch.strided else 0,
            0 if value.is_inference() else value._version,
        )
        if isinstance(value, torch.Tensor)
        else (value, 0, 0)
        for value in values
    ]


def _same(last: Writes | None, now: Writes) -> bool:
    """Whether these are the same objects, and none has been written to."""
    if last is None or len(last) != len(now):
        return False
    return all(old[0] is new[0] and old[1:] == new[1:] for old, new in zip(last, now, strict=True))


def _listed(found: Sequence[str], between: str) -> str:
    more = [f"and {len(found) - _FEW} more"] if len(found) > _FEW else []
    return between.join([*found[:_FEW], *more])
