"""Ranks that agree: the same problem, duals of the same kind and gains, the same numbers in all of them.

| what might differ             | is looked for                                        | by                          |
| ----------------------------- | ---------------------------------------------------- | --------------------------- |
| the constraints, `reduce`     | at the first step                                    | a fingerprint, gathered     |
| the dual's class and options  | at every step                                        | a fingerprint in the header |
| multipliers, the dual's state | after anyone but `ascend` wrote to them on some rank | fingerprints, gathered      |

A rank cannot know that another has loaded a checkpoint, and must not begin to gather on its own: the others would not
answer. So it says that something changed in the header of the message that every rank sends at every step (see
`nupi.distributed.together`). All ranks read the same header, and all gather or none does; what is gathered has a length that the
constraints fix. Then all have the same fingerprints, and all refuse or none does. At no point does a rank wait for what
another will not send.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import torch

from nupi.distributed.fingerprint import of_text, of_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.distributed import ProcessGroup

    from nupi.constraints import Constraint

Multipliers: TypeAlias = "Mapping[str, torch.Tensor]"
Mark: TypeAlias = "tuple[object, int, int]"

_FEW = 4  # differences that an error tells of
ALIKE = "build and load the same on every rank. No rank has moved"


class Vow(NamedTuple):
    """What a rank says of itself in the header of a step."""

    changed: (
        bool  # whether anyone but ascend has written to its multipliers or its dual since they were sealed
    )
    options: int  # a fingerprint of its dual's class and options


class Seals:
    """The multipliers and duals of one Lagrangian as this rank left them when all ranks had the same."""

    def __init__(self) -> None:
        self._multipliers: list[Mark] | None = None
        self._duals: WeakKeyDictionary[torch.optim.Optimizer, tuple[int, list[Mark]]] = WeakKeyDictionary()
        self._count = 0  # of the duals that all ranks have agreed upon so far

    def vow(self, multipliers: Multipliers, dual: torch.optim.Optimizer) -> Vow:
        """What to tell the others before this step."""
        number, sealed = self._duals.get(dual, (self._count, None))
        changed = not (
            _same(self._multipliers, [_mark(m) for m in multipliers.values()])
            and _same(sealed, _marks(multipliers, dual))
        )
        return Vow(changed, _of_options(dual, multipliers, number))

    def settle(
        self,
        vows: Sequence[Vow],
        multipliers: Multipliers,
        dual: torch.optim.Optimizer,
        group: ProcessGroup | None,
    ) -> None:
        """Go on if all ranks are alike; else raise on each of them, and say in what they differ."""
        if len({vow.options for vow in vows}) > 1:
            number, _ = self._duals.get(dual, (self._count, None))
            _refuse_options(_described(dual, multipliers, number), group)
        if any(vow.changed for vow in vows):
            _compare(multipliers, dual, group)

    def seal(self, multipliers: Multipliers, dual: torch.optim.Optimizer) -> None:
        """Take what is here now, after a step that all ranks have taken, as what all ranks have."""
        self._multipliers = [_mark(m) for m in multipliers.values()]
        number, _ = self._duals.get(dual, (self._count, None))
        self._count = max(self._count, number + 1)
        self._duals[dual] = (number, _marks(multipliers, dual))

    def __deepcopy__(self, memo: dict[int, object]) -> Seals:
        """A copy has tensors of its own, which nobody has compared yet."""
        return Seals()

    def __reduce__(self) -> tuple[type[Seals], tuple[()]]:
        return Seals, ()


def check_problem(
    constraints: Mapping[str, Constraint],
    multipliers: Multipliers,
    reduce: str,
    group: ProcessGroup | None,
) -> None:
    """Raise on every rank unless all have the same constraints, and so messages of one layout."""
    problem = ", ".join(f"{name!r}: {constraint!r}" for name, constraint in constraints.items())
    exact = f"{problem} {[m.dtype for m in multipliers.values()]} {reduce}"
    if len(set(_gathered([of_text(exact)], multipliers, group))) > 1:
        raise ValueError(
            f"the ranks have different constraints; this one has {{{problem}}} with reduce={reduce!r}. "
            "Build the same Lagrangian on every rank"
        )


def _compare(multipliers: Multipliers, dual: torch.optim.Optimizer, group: ProcessGroup | None) -> None:
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
        f"the ranks have {' and '.join(what)} (on rank {', '.join(apart)}, beside rank 0), and would never agree; "
        f"was a checkpoint loaded on some of them only? If so, {ALIKE}"
    )


def _gathered(
    numbers: Sequence[int], multipliers: Multipliers, group: ProcessGroup | None
) -> list[tuple[int, ...]]:
    """The numbers of each rank, by rank."""
    here = torch.tensor(numbers, dtype=torch.int64, device=next(iter(multipliers.values())).device)
    everyone = [torch.empty_like(here) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(everyone, here, group=group)
    return [tuple(each.tolist()) for each in everyone]


def _options(dual: torch.optim.Optimizer, multipliers: Multipliers) -> list[tuple[list[str], dict[str, str]]]:
    """By param group, the constraints it is for and its options; of those that are tensors, no numbers."""
    names = {id(multiplier): name for name, multiplier in multipliers.items()}
    return [
        (
            [names.get(id(param), "another parameter") for param in group["params"]],
            {
                option: f"a tensor of {value.dtype} and shape {tuple(value.shape)}"
                if isinstance(value, torch.Tensor)
                else of_value(value)
                for option, value in group.items()
                if option != "params"
            },
        )
        for group in dual.param_groups
    ]


def _of_options(dual: torch.optim.Optimizer, multipliers: Multipliers, number: int) -> int:
    groups = [(names, sorted(options.items())) for names, options in _options(dual, multipliers)]
    return of_text(f"{type(dual).__qualname__} {number} {groups}")


def _tensor_options(dual: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [
        value
        for group in dual.param_groups
        for _, value in sorted(group.items())
        if isinstance(value, torch.Tensor)
    ]


def _described(dual: torch.optim.Optimizer, multipliers: Multipliers, number: int) -> dict[str, str]:
    """The same options in words, one by one."""
    words = {"the dual": f"{type(dual).__qualname__}, number {number + 1} of those that ascend was given"}
    for position, (names, options) in enumerate(_options(dual, multipliers)):
        words[f"param group {position}"] = f"for {', '.join(names)}"
        words.update({f"{option!r} of group {position}": value for option, value in options.items()})
    return words


def _refuse_options(here: dict[str, str], group: ProcessGroup | None) -> None:
    """Raise on every rank, saying what the dual of each has that others have not. All ranks know that they differ."""
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
    raise ValueError(f"the ranks have different duals: {_listed(found, '; ')}; {ALIKE}")


def _listed(found: Sequence[str], between: str) -> str:
    more = [f"and {len(found) - _FEW} more"] if len(found) > _FEW else []
    return between.join([*found[:_FEW], *more])


def _marks(multipliers: Multipliers, dual: torch.optim.Optimizer) -> list[Mark]:
    """Every object that a dual keeps for these multipliers, and how it was left."""
    kept = [value for m in multipliers.values() for value in dual.state.get(m, {}).values()]
    return [_mark(value) for value in (*kept, *_tensor_options(dual))]


def _mark(value: object) -> Mark:
    """An object, where its numbers are and how often they were written to; torch counts all but writes to `.data`."""
    if not isinstance(value, torch.Tensor):
        return value, 0, 0
    # A sparse momentum has no one place where its numbers are.
    place = value.data_ptr() if value.layout == torch.strided else 0
    return value, place, 0 if value.is_inference() else value._version


def _same(sealed: list[Mark] | None, now: list[Mark]) -> bool:
    """Whether these are the same objects, none of them written to."""
    if sealed is None or len(sealed) != len(now):
        return False
    return all(old[0] is new[0] and old[1:] == new[1:] for old, new in zip(sealed, now, strict=True))
