"""Find the rule and the options of the optimizer that a factory makes, such as `torch.optim.Adam` or its partial."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from nupi.optim.base import DualOptimizer
from nupi.optim.checks import DESCEND
from nupi.optim.momentum import UnifiedMomentum
from nupi.optim.nupi import NuPI
from nupi.optim.pid import PID
from nupi.optim.self_tuned import SelfTuned
from nupi.solve.rules import TORCH_RULES, Rule, TorchRule, rule_of

if TYPE_CHECKING:
    from collections.abc import Mapping

Factory: TypeAlias = Callable[..., torch.optim.Optimizer]

DEFAULT_PRIMAL: Factory = partial(torch.optim.SGD, lr=1e-2, momentum=0.9)


def read_dual(factory: Factory, options: Mapping[str, Any], label: str) -> tuple[type[Rule], dict[str, Any]]:
    """The rule and the options of the dual optimizer that `factory(params, **options)` makes.

    The optimizer is made once, on a multiplier that is thrown away, so that its own checks check the options.

    Args:
        factory: an optimizer class, a `functools.partial` of one, or a function that returns one.
        options: keyword arguments of this setting.
        label: its name in an error.
    """
    group, made = _make(factory, options, label)
    if not group.get("maximize"):
        raise ValueError(
            f"{label} would minimize over the multipliers; make it ascend with "
            f"functools.partial({made.__name__}, maximize=True)"
        )
    return _rule(made, group, rule_of(made), label), group


class DualReader:
    """`read_dual` for the many settings of a grid. For nupi's own optimizers it makes only one.

    Their options are entries of the param group, so the checks of one optimizer can check the options of all settings.
    Other factories are called for every setting.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], tuple[type[Rule], dict[str, Any], DualOptimizer] | None] = {}

    def read(
        self, factory: Factory, options: Mapping[str, Any], label: str
    ) -> tuple[type[Rule], dict[str, Any]]:
        """The same result as `read_dual`."""
        key = (id(factory), *options)
        if key not in self._made:
            rule, group = read_dual(factory, options, label)
            made = factory([torch.zeros(1, requires_grad=True, device="cpu")], **options)
            self._made[key] = None
            if isinstance(made, DualOptimizer) and type(made) in (NuPI, PID, UnifiedMomentum):
                self._made[key] = (rule, group, made)
            return rule, group
        if (known := self._made[key]) is not None:
            rule, template, made = known
            group = {**template, **options, "params": made.param_groups[0]["params"]}
            try:
                made._check_group(group)
            except (TypeError, ValueError):  # `read_dual` below raises the full error
                return read_dual(factory, options, label)
            del group["params"]
            if group["maximize"] is True:
                return rule, group
        return read_dual(factory, options, label)


def read_primal(factory: Factory) -> tuple[TorchRule, dict[str, Any]]:
    """The rule and the options of the primal optimizer: torch's SGD or Adam."""
    group, made = _make(factory, {}, "primal")
    if group.get("maximize"):
        raise ValueError("primal would maximize the Lagrangian over x; leave maximize=True out")
    rule = _rule(made, group, TORCH_RULES.get(made), "primal")([group])
    assert isinstance(rule, TorchRule)
    return rule, group


def known_to_self_tuned(
    factory: Factory, steps: int, primal: torch.optim.Optimizer | None = None
) -> dict[str, Any]:
    """Arguments for a `SelfTuned` that lacks them: `steps`, a quarter of the run, and `primal`, the optimizer of x."""
    kind, given = (factory.func, factory.keywords) if isinstance(factory, partial) else (factory, {})
    if not (isinstance(kind, type) and issubclass(kind, SelfTuned)):
        return {}
    known: dict[str, Any] = {"steps": max(1.0, steps / 4)}
    if primal is not None:
        known["primal"] = primal
    return {name: value for name, value in known.items() if name not in given}


def make_optimizer(
    factory: Factory, params: Iterable[torch.Tensor], options: Mapping[str, Any], label: str
) -> torch.optim.Optimizer:
    """Call `factory(params, **options)`; errors name the optimizer by `label`."""
    if not callable(factory):
        raise TypeError(
            f"{label} must be an optimizer class, or functools.partial of one with its options, "
            f"but {factory!r} came"
        )
    try:
        made = factory(list(params), **options)
    except TypeError as error:
        raise TypeError(f"{label} cannot be made with {dict(options)}: {error}") from error
    except ValueError as error:
        reason = str(error).removesuffix(f"; {DESCEND}")
        raise ValueError(f"{label} cannot be made with {dict(options)}: {reason}") from error
    if not isinstance(made, torch.optim.Optimizer):
        raise TypeError(f"{label} must make a torch optimizer, but it made a {type(made).__name__}")
    closure = inspect.signature(type(made).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TypeError(
            f"{label}: {type(made).__name__} evaluates its objective several times a step, but this loop moves "
            "multipliers and x in turn; use SGD, Adam or another of torch's optimizers"
        )
    return made


def _make(
    factory: Factory, options: Mapping[str, Any], label: str
) -> tuple[dict[str, Any], type[torch.optim.Optimizer]]:
    with torch.device("cpu"):
        made = make_optimizer(factory, [torch.zeros(1, requires_grad=True)], options, label)
    group = {name: value for name, value in made.param_groups[0].items() if name != "params"}
    return group, type(made)


def _rule(
    made: type[torch.optim.Optimizer], group: dict[str, Any], rule: type[Rule] | None, label: str
) -> type[Rule]:
    """The rule for this optimizer; raises if its class has none, or if the rule lacks one of its options."""
    if rule is None:
        known = ", ".join(each.__name__ for each in TORCH_RULES)
        ours = "" if label == "primal" else "the dual optimizers of nupi, and "
        raise TypeError(
            f"{label}: a sweep supports {ours}{known}, but not {made.__name__}; `minimize` takes any optimizer"
        )
    for name, only in rule.refused.items():
        if group[name] != only:
            raise ValueError(
                f"{label}: a sweep takes {made.__name__} with {name}={only} only, "
                f"but {name}={group[name]} came; `minimize` takes any optimizer"
            )
    for name, value in group.items():
        if isinstance(value, torch.Tensor):
            raise TypeError(
                f"{label}: {name} is a tensor, but a sweep has one number per setting; "
                "put the numbers on an axis of the grid"
            )
    return rule
