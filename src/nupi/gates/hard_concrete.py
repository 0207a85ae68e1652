"""The hard-concrete distribution (Louizos, Welling and Kingma, 2018): gates that can be exactly 0 and exactly 1.

With temperature t, stretch (l, r) around [0, 1], location phi (`log_alpha`) and u uniform on (0, 1):

    s = sigmoid((log u - log(1 - u) + phi) / t)          a concrete variable
    z = min(1, max(0, s (r - l) + l))                    stretched, then cut: mass on 0 and on 1
    P(z > 0)  = sigmoid(phi - t log(-l / r))             the probability of being active
    E |z|_0   = sum of P(z > 0)                          the expected number of active gates

z rises with u, so `quantile` describes the whole distribution: a sample is the quantile at a uniform u, the median is
the quantile at 1/2. The median gate is open exactly if P(z > 0) > 1/2.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

from nupi.optim.checks import number

if TYPE_CHECKING:
    from collections.abc import Callable

TEMPERATURE = 2 / 3
STRETCH = (-0.1, 1.1)
INITIAL_SPREAD = 0.01
JUST = 0.01  # distance in log_alpha from the point where a gate switches, after `open_` or `close_`


def quantile(
    log_alpha: torch.Tensor,
    u: torch.Tensor | float,
    temperature: float = TEMPERATURE,
    stretch: tuple[float, float] = STRETCH,
) -> torch.Tensor:
    """The gate z at level u of its distribution: differentiable in `log_alpha` where 0 < z < 1.

    With temperature t and stretch (l, r):

        z = min(1, max(0, sigmoid((log u - log(1 - u) + log_alpha) / t) (r - l) + l))

    Example:
        >>> quantile(torch.tensor([-9.0, 0.0, 9.0]), 0.5)
        tensor([0.0000, 0.5000, 1.0000])
    """
    u = torch.as_tensor(u, dtype=log_alpha.dtype, device=log_alpha.device)
    low, high = stretch
    # A random generator may give u = 0 or 1. The logit is then infinite: the gate is 0 or 1, its gradient 0.
    return (torch.sigmoid((u.logit() + log_alpha) / temperature) * (high - low) + low).clamp(0, 1)


def probability_active(
    log_alpha: torch.Tensor, temperature: float = TEMPERATURE, stretch: tuple[float, float] = STRETCH
) -> torch.Tensor:
    """P(z > 0) = sigmoid(log_alpha - temperature log(-low / high)).

    Example:
        >>> probability_active(torch.tensor([-4.6, 0.0, 4.6]))
        tensor([0.0474, 0.8318, 0.9980])
    """
    return torch.sigmoid(log_alpha - closing_location(temperature, stretch))


def closing_location(temperature: float = TEMPERATURE, stretch: tuple[float, float] = STRETCH) -> float:
    """The `log_alpha` at and below which the median gate is closed: temperature log(-low / high).

    >>> closing_location()
    -1.5986
    """
    low, high = stretch
    return temperature * math.log(-low / high)


class HardConcrete(nn.Module):
    """A tensor of independent hard-concrete gates: `gate()` is a sample in training, the median in evaluation.

    With temperature t, stretch (l, r) and u uniform on (0, 1), or 1/2 for the median:

        s = sigmoid((log u - log(1 - u) + log_alpha) / t)
        z = min(1, max(0, s (r - l) + l))

    `log_alpha` and all arithmetic stay in float32 or wider, whatever dtype the model is moved to, and under autocast.
    In bfloat16 a step of 1e-3 at 4.6 would be lost. A layer casts the gate that it uses.

    Args:
        shape: the shape of the gates: a number, or the sizes of the dimensions.
        droprate_init: the start p of the gates. `log_alpha` is drawn around log((1 - p) / p), so p is the probability
            that the concrete variable s starts below 1/2. The probability that z is 0 is smaller.
        temperature: t.
        stretch: (l, r), with l < 0 and r > 1.
        clamp: keep `log_alpha` within [-clamp, clamp], so that a closed gate can still open again. It is applied to
            the parameter itself whenever the gates are read in training mode (a projection after the step). Compiled
            code only uses the clamped value. The parameter itself is then clamped at the next reading in eager code,
            for example by a budget or a density.

    Example:
        >>> gate = HardConcrete(3, droprate_init=0.05, clamp=4.6).eval()
        >>> gate(), gate.is_open()
        (tensor([1., 1., 1.], grad_fn=...), tensor([True, True, True]))
    """

    def __init__(
        self,
        shape: int | Sequence[int],
        *,
        droprate_init: float = 0.01,
        temperature: float = TEMPERATURE,
        stretch: tuple[float, float] = STRETCH,
        clamp: float | None = None,
    ) -> None:
        super().__init__()
        droprate_init = number("droprate_init", droprate_init)
        if not 0 < droprate_init < 1:
            raise ValueError(
                f"droprate_init={droprate_init!r} is a probability: it must be between 0 and 1, both excluded"
            )
        temperature = number("temperature", temperature)
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature={temperature!r} must be positive and finite; the usual one is 2/3")
        ends = tuple(stretch) if isinstance(stretch, Sequence) else ()
        low, high = map(partial(number, "each end of stretch"), ends if len(ends) == 2 else (0.0, 0.0))
        if not (-math.inf < low < 0 and 1 < high < math.inf):
            raise ValueError(
                f"stretch={stretch!r} must be finite and reach beyond [0, 1] on both sides, as (-0.1, 1.1) does; "
                "else a gate is never exactly 0 or 1"
            )
        start = math.log((1 - droprate_init) / droprate_init)
        if clamp is not None and not clamp > 0:
            raise ValueError(f"clamp={clamp!r} must be positive: log_alpha is kept within [-clamp, clamp]")
        closing = -closing_location(temperature, stretch)
        if clamp is not None and clamp <= closing:
            raise ValueError(
                f"clamp={clamp!r} would never let a gate close: it closes below log_alpha = {-closing:.3g}; "
                "give a larger clamp, usually 4.6"
            )
        if clamp is not None and abs(start) > clamp:
            raise ValueError(
                f"droprate_init={droprate_init!r} starts log_alpha at {start:.3g}, outside clamp={clamp!r}; "
                "raise the clamp or bring droprate_init closer to 1/2"
            )
        self.droprate_init = droprate_init
        self.temperature = temperature
        self.stretch = (low, high)
        self.clamp = clamp
        size = tuple(shape) if isinstance(shape, Sequence) else (operator.index(shape),)
        wide = torch.promote_types(torch.get_default_dtype(), torch.float32)
        self.log_alpha = nn.Parameter(torch.empty(size, dtype=wide))
        self.reset_parameters()

    @property
    def shape(self) -> torch.Size:
        """The shape of the gates."""
        return self.log_alpha.shape

    def reset_parameters(self) -> None:
        """Draw `log_alpha` anew around its start, at random so that gates differ."""
        p = self.droprate_init
        with torch.no_grad():
            self.log_alpha.normal_(math.log((1 - p) / p), INITIAL_SPREAD)
        self.clamp_()

    def forward(self) -> torch.Tensor:
        """The gates to use now: a fresh sample in training mode, the median in evaluation mode."""
        return self.sample() if self.training else self.median()

    def sample(self) -> torch.Tensor:
        """One draw of every gate, differentiable in `log_alpha`."""
        phi = self._location()
        return quantile(phi, torch.rand_like(phi), self.temperature, self.stretch)

    def median(self) -> torch.Tensor:
        """The median of every gate, which is used at test time."""
        return quantile(self._location(), 0.5, self.temperature, self.stretch)

    def probability(self) -> torch.Tensor:
        """The probability that each gate is active."""
        return probability_active(self._location(), self.temperature, self.stretch)

    def expected_l0(self) -> torch.Tensor:
        """The expected number of active gates."""
        return self.probability().sum()

    def is_open(self) -> torch.Tensor:
        """Which gates are open at test time."""
        return self.median().detach() > 0

    def margin(self) -> torch.Tensor:
        """The distance of each gate's `log_alpha` above the point where it closes: positive for open gates."""
        above = self._location().detach() - closing_location(self.temperature, self.stretch)
        tiny = torch.finfo(above.dtype).tiny  # rounding must not give another sign than `is_open`
        return torch.where(self.is_open(), above.clamp(min=tiny), above.clamp(max=0))

    def close_(self, which: torch.Tensor) -> None:
        """Close the open ones of these gates, in place; only just, so that they can open again."""
        closed = closing_location(self.temperature, self.stretch) - JUST
        with torch.no_grad():
            self.log_alpha.masked_fill_(which & self.is_open(), closed)

    def open_(self, which: torch.Tensor) -> None:
        """Open the closed ones of these gates, in place; only just."""
        opened = closing_location(self.temperature, self.stretch) + JUST
        with torch.no_grad():
            self.log_alpha.masked_fill_(which & ~self.is_open(), opened)

    def clamp_(self) -> None:
        """Clamp `log_alpha` to its range, in place."""
        if self.clamp is not None:
            # By `data`, so that autograd does not see the write: a compiled model may have saved `log_alpha` for its
            # backward pass. A density that is read before that pass finds it in its range and does not change it.
            self.log_alpha.data.clamp_(-self.clamp, self.clamp)

    def extra_repr(self) -> str:
        """The shape, `droprate_init` and the clamp."""
        clamp = "" if self.clamp is None else f", clamp={self.clamp:g}"
        return f"{tuple(self.shape)}, droprate_init={self.droprate_init:g}{clamp}"

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> HardConcrete:  # noqa: FBT001, FBT002 - torch's signature
        """`to`, `cuda`, `half` and so on as for any module, but `log_alpha` stays in float32 or wider."""
        before, gradient = self.log_alpha.data, self.log_alpha.grad
        gradient = None if gradient is None else gradient.detach()  # torch narrows the old one in place
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.log_alpha.dtype.itemsize < torch.float32.itemsize:
            device = self.log_alpha.device
            self.log_alpha.grad = None  # torch compares its dtype with the new data's
            self.log_alpha.data = before.to(device)
            self.log_alpha.grad = None if gradient is None else gradient.to(device, before.dtype)
        return self

    def _location(self) -> torch.Tensor:
        """`log_alpha` within its range, in float32 or wider."""
        if self.clamp is None:
            phi: torch.Tensor = self.log_alpha
        elif self.training and torch.compiler.is_compiling():
            # The value is clamped, the gradient is not. A write to a parameter in a compiled forward pass would break
            # the backward pass of an earlier one, so the next eager reading of the gates writes.
            bounded = self.log_alpha.detach().clamp(-self.clamp, self.clamp)
            phi = bounded + (self.log_alpha - self.log_alpha.detach())
        elif self.training:
            self.clamp_()  # not torch.clamp in the graph: it would stop the gradients at the bounds
            phi = self.log_alpha
        else:
            phi = self.log_alpha.clamp(-self.clamp, self.clamp)
        return phi.to(torch.promote_types(phi.dtype, torch.float32))
