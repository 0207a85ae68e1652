"""Extragradient and optimistic steps for the model's optimizer and the dual optimizer, in your own loop.

If the Lagrangian is nearly linear in x, simultaneous steps circle around the solution and away from it. Both methods
here use a prediction of the next gradient:

    extragradient   z' = z - lr F(z),  then  z <- z - lr F(z')
    optimistic      z <- z - lr (2 F(z) - F(z of the step before))

with z = (x, theta) and F the gradient of the Lagrangian in x and minus that in theta.
"""

from __future__ import annotations

from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.optim import Optimizer

from nupi.optim.base import DualOptimizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from nupi.lagrangian import Lagrangian, Violations

Optimizers: TypeAlias = "Optimizer | Iterable[Optimizer]"


@contextmanager
def extrapolated(
    lagrangian: Lagrangian,
    dual: Optimizer,
    primal: Optimizers,
    violations: Violations,
    *,
    keep_state: bool = False,
) -> Iterator[None]:
    """Take a trial step of both optimizers, for the extragradient method. It is undone at the end of the block.

    For plain gradient steps, with F the gradient of the game in z = (x, theta):

        ahead   = z_t - lr F(z_t)          inside the block
        z_{t+1} = z_t - lr F(ahead)        the two lines after it

    At the end of the block everything is as before, except for the gradients that were computed in the block. The usual
    two lines after it, `ascend` and `primal.step`, then take the extragradient step. If anything raises, in the steps
    or in the block, then the model, multipliers, gradients and optimizers are as before the block.

    Args:
        lagrangian: the problem.
        dual: the optimizer of the multipliers.
        primal: the optimizer of the model, or several. Call `backward` before the block, so that the parameters have
            the gradients of the Lagrangian at the present point. The block clears them when it begins.
        violations: the violations at the present point, which move the multipliers.
        keep_state: whether the optimizers' state (moments, the controller's state) after the trial step is kept, as in
            ExtraAdam (Gidel et al., 2019). By default the state is restored too.

    Example:
        >>> import nupi
        >>> lagrangian = nupi.Lagrangian({"h": nupi.Equality()})
        >>> dual = nupi.NuPI(lagrangian.parameters(), ki=0.5)
        >>> x = torch.ones(1, requires_grad=True)
        >>> primal = torch.optim.SGD([x], lr=0.5)
        >>> for _ in range(100):  # min 0 subject to x = 0: a game that simultaneous steps lose
        ...     violations = {"h": x}
        ...     lagrangian(0 * x.sum(), violations).backward()
        ...     with nupi.extrapolated(lagrangian, dual, primal, violations):
        ...         violations = {"h": x.clone()}
        ...         lagrangian(0 * x.sum(), violations).backward()
        ...     lagrangian.ascend(dual, violations)
        ...     primal.step()
        ...     primal.zero_grad()
        >>> bool(x.abs() < 1e-4)
        True
    """
    primals = (primal,) if isinstance(primal, Optimizer) else tuple(primal)
    _check_gradients(primals, "before")
    kept = [_Kept(optimizer) for optimizer in (dual, *primals)]
    try:
        # Listeners record the steps of a run, and the trial step is not one.
        listeners, lagrangian._listeners = lagrangian._listeners, []
        try:
            lagrangian.ascend(dual, violations)
        finally:
            lagrangian._listeners = listeners
        for optimizer in primals:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        yield
        _check_gradients(primals, "in")
    except BaseException:
        for each in kept:
            each.restore(state=True, gradients=True)
        raise
    for each in kept:
        each.restore(state=not keep_state, gradients=False)


def _check_gradients(primals: Iterable[Optimizer], where: str) -> None:
    """Without gradients a step would do nothing, and nobody would see it."""
    params = (param for primal in primals for group in primal.param_groups for param in group["params"])
    if all(param.grad is None for param in params):
        raise RuntimeError(
            f"no parameter of primal has a gradient; call lagrangian(loss, violations).backward() {where} the block of "
            "nupi.extrapolated"
        )


class _Kept:
    """A copy of all that a step of an optimizer changes, to restore it."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        params = [param for group in optimizer.param_groups for param in group["params"]]
        self._params = [(param, param.detach().clone(), param.grad) for param in params]
        self._state = {param: (dict(state), _copied(state)) for param, state in optimizer.state.items()}
        self._groups = [dict(group) for group in optimizer.param_groups]

    @torch.no_grad()
    def restore(self, *, state: bool, gradients: bool) -> None:
        """Restore the parameters; with `state`, also their state; with `gradients`, also their gradients."""
        for param, value, gradient in self._params:
            param.copy_(value)
            if gradients:
                param.grad = gradient
        if not state:
            return
        for param in [param for param in self._optimizer.state if param not in self._state]:
            del self._optimizer.state[param]
        for param, (held, values) in self._state.items():
            for name, value in values.items():
                if isinstance(value, torch.Tensor) and value.layout == torch.strided:
                    held[name].copy_(value)  # into the tensor that was there
                else:
                    held[name] = value
            now = self._optimizer.state[param]
            now.clear()
            now.update(held)
        for group, before in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.clear()
            group.update(before)
        if isinstance(self._optimizer, DualOptimizer):
            self._optimizer._large_state = True  # until it is checked again


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else deepcopy(value)
        for name, value in state.items()
    }


_PREVIOUS = "previous_gradient"


class Optimism:
    """A handle on an optimizer that `optimistic` has changed; `remove` ends it."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._seen: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self._hooks = [
            optimizer.register_step_pre_hook(self._look_ahead),
            optimizer.register_step_post_hook(self._remember),
        ]

    def remove(self) -> None:
        """Let the optimizer take plain steps again from now on."""
        for hook in self._hooks:
            hook.remove()

    @torch.no_grad()
    def _look_ahead(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if kwargs.get("closure") is not None or any(each is not None for each in args[1:]):
            raise TypeError(
                "an optimistic step cannot use the gradients of a closure; call backward yourself, then step()"
            )
        self._put_back()
        for param in (param for group in optimizer.param_groups for param in group["params"]):
            gradient = param.grad
            if gradient is None:
                continue
            if gradient.layout != torch.strided:
                self._put_back()
                raise TypeError("an optimistic step takes dense gradients only, but a sparse one came")
            # In the optimizer's own state, so that its state_dict has it.
            before = optimizer.state[param].get(_PREVIOUS, gradient) if param in optimizer.state else gradient
            param.grad = gradient + (gradient - before)
            self._seen.append((param, gradient, param.grad))

    @torch.no_grad()
    def _remember(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG002 - torch's signature
        for param, gradient, _ in self._seen:
            optimizer.state[param][_PREVIOUS] = gradient.detach().clone()
        self._put_back()

    def _put_back(self) -> None:
        """Restore the parameters' own gradients; if a step has raised, some still have the optimistic ones."""
        for param, gradient, ours in self._seen:
            if param.grad is ours:
                param.grad = gradient
        self._seen = []


def optimistic(optimizer: Optimizer) -> Optimism:
    """Make an optimizer step along 2 g_t - g_{t-1} in place of its gradient g_t. The first step is a plain one.

    For SGD, x_{t+1} = x_t - lr (2 g_t - g_{t-1}).

    The optimizer object stays the same, so schedulers, scalers and trainers still work. The last gradient is part of
    its state and so of its checkpoints. After loading a checkpoint, call `optimistic` again. A step that raises changes
    nothing.

    For multipliers no call is needed: `NuPI(ki=lr, kp=lr)` is optimistic gradient ascent with step size lr.

    Args:
        optimizer: any torch optimizer that takes dense gradients and no closure.

    Example:
        >>> x = torch.ones(1, requires_grad=True)
        >>> primal = torch.optim.SGD([x], lr=0.1)
        >>> handle = optimistic(primal)
        >>> for gradient in (1.0, 3.0):
        ...     x.grad = torch.tensor([gradient])
        ...     primal.step()
        ...     print(f"{x.item():.1f}")  # 1 - 0.1, then 0.9 - 0.1 (2 * 3 - 1)
        0.9
        0.4
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be a torch optimizer, but a {type(optimizer).__name__} came")
    if isinstance(optimizer, DualOptimizer):
        raise TypeError(
            f"{type(optimizer).__name__} moves multipliers, and optimistic cannot change it; for optimistic ascent "
            "with step size lr take NuPI(params, ki=lr, kp=lr)"
        )
    return Optimism(optimizer)
