"""From a model's scores to decisions: the decision itself ("hard"), and surrogates that have a gradient ("soft").

A binary model gives one logit for each row, and decides "positive" if it is > 0. A model of several classes gives
several logits for each row, and decides for the largest. Each class then has its own decision, "this class or not".
With the margin m of a row (the logit; or a class's logit minus the largest of the others) and the temperature t:

    hard      1 where m > 0, else 0
    sigmoid   1 / (1 + exp(-m / t)), or softmax(logits / t) for several classes
    hinge     an upper bound max(0, 1 + m / t) and a lower bound 1 - max(0, 1 - m / t) of the decision

A smaller temperature is closer to the decision, and has a gradient for fewer rows.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias, get_args

import torch

from nupi.rates.groups import as_tensor, may_look

Surrogate: TypeAlias = Literal["sigmoid", "hinge"]


_PROBABILITIES = frozenset({"SigmoidBackward0", "SoftmaxBackward0"})
_SAME_NUMBERS = frozenset(
    f"{name}Backward0"
    for name in ("Squeeze", "View", "UnsafeView", "Select", "Slice", "Index", "ToCopy", "Clone")
) | {"SqueezeBackward1", "ReshapeAliasBackward0"}


class Decisions(NamedTuple):
    """Bounds on the positive decision of each row and class, (rows, classes); they are equal except for a hinge."""

    lower: torch.Tensor
    upper: torch.Tensor


class Soft(NamedTuple):
    """A surrogate with its temperature."""

    surrogate: Surrogate
    temperature: float

    def checked(self) -> Soft:
        """This, or an error."""
        if self.surrogate not in get_args(Surrogate):
            raise ValueError(f"surrogate={self.surrogate!r}: choose one of {', '.join(get_args(Surrogate))}")
        if not 0.0 < self.temperature < float("inf"):
            raise ValueError(f"temperature={self.temperature!r} must be a positive number")
        return self


def decide(scores: torch.Tensor, soft: Soft | None) -> Decisions:
    """The decisions on rows of scores (rows, classes), by a surrogate or, if it is None, the hard ones.

    A NaN stays NaN, so that a model with NaN outputs does not count as fair.
    """
    if soft is None:
        if scores.shape[1] == 1:
            hard = (scores > 0).to(scores.dtype)
        else:
            hard = torch.zeros_like(scores).scatter(1, scores.argmax(1, keepdim=True), 1.0)
        known = torch.where(scores.isnan().any(1, keepdim=True), torch.nan, hard)
        return Decisions(known, known)
    if soft.surrogate == "sigmoid":
        scaled = scores / soft.temperature
        likely = scaled.sigmoid() if scores.shape[1] == 1 else scaled.softmax(1)
        return Decisions(likely, likely)
    margins = margin(scores) / soft.temperature
    return Decisions(1 - (1 - margins).relu(), (1 + margins).relu())


def margin(scores: torch.Tensor) -> torch.Tensor:
    """By how much each class leads the others; for a binary model the logit itself."""
    if scores.shape[1] == 1:
        return scores
    best, second = scores.topk(2, dim=1).values.split(1, dim=1)
    return scores - torch.where(scores == best, second, best)


def as_scores(logits: object, classes: int | None) -> torch.Tensor:
    """The logits as (rows, classes), in float32 or wider; a binary model has one column."""
    given = as_tensor("logits", logits)
    if not given.is_floating_point():
        raise TypeError(f"logits has dtype {given.dtype}; scores are floating-point: use logits.float()")
    if classes is None:
        if given.ndim != 1:
            raise ValueError(f"logits has shape {tuple(given.shape)}, not (rows,); logits.squeeze(1) may do")
        given = given.unsqueeze(1)
    elif given.ndim != 2 or given.shape[1] != classes:
        raise ValueError(f"logits has shape {tuple(given.shape)}, not (rows, classes) = (rows, {classes})")
    return given.to(torch.promote_types(given.dtype, torch.float32))


def check_no_probabilities(logits: object) -> None:
    """Refuse what a sigmoid or a softmax has made: all of it is above 0, so that every row would be decided positive.

    Only the graph tells. Without one, as under `torch.no_grad`, nothing is checked.
    """
    if torch.compiler.is_compiling() or not isinstance(logits, torch.Tensor):
        return
    node = logits.grad_fn
    while node is not None and node.name() in _SAME_NUMBERS:
        node = node.next_functions[0][0]
    if node is not None and node.name() in _PROBABILITIES:
        raise ValueError(
            "logits are probabilities, made by a sigmoid or a softmax, and all of these are above 0: give what went "
            "into it, or torch.logit(probabilities)"
        )


def as_relevant(labels: object, classes: int | None, rows: int) -> torch.Tensor:
    """Which class each row is of, as booleans (rows, classes); for a binary model, whether its label is 1."""
    if labels is None:
        raise ValueError("labels=None: these rates need the label of each row")
    given = as_tensor("labels", labels)
    if given.shape != (rows,):
        raise ValueError(f"labels has shape {tuple(given.shape)}, not one per row, ({rows},)")
    last = 1 if classes is None else classes - 1
    known = (given >= 0) & (given <= last)
    if given.is_floating_point():
        known &= given == given.floor()
    if may_look(given) and not bool(known.all()):
        # A row with another label would count for no rate, and its constraints would be lost without a warning.
        which = (
            "labels are 0 and 1; (labels > 0).long() may do"
            if classes is None
            else f"classes are 0 to {last}"
        )
        raise ValueError(f"labels holds {given[~known][0].item()}, but {which}")
    if classes is None:
        return (given == 1).unsqueeze(1)
    return given.unsqueeze(1) == torch.arange(classes, device=given.device)
