"""Measure one constraint's run: its oscillation, its growth, its response to the multiplier, and its noise."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch


class Swing(NamedTuple):
    """A regular oscillation about zero."""

    period: float
    """The number of steps of one cycle."""
    damping: float
    """The damping ratio: 0 for a swing that neither grows nor decays, negative for one that grows."""
    first: int
    """The index at which the part of the run with the oscillation begins."""

    @property
    def frequency(self) -> float:
        """The natural frequency, in radians a step."""
        return 2.0 * math.pi / self.period / math.sqrt(max(1e-6, 1.0 - self.damping**2))

    @property
    def growth(self) -> float:
        """The factor by which the swing grows in one cycle."""
        return math.exp(-2.0 * math.pi * self.damping / math.sqrt(max(1e-6, 1.0 - self.damping**2)))


# The autocorrelation must fall to the first after half a period, and rise to the second after a whole one.
_LOBE, _PEAK = -0.35, 0.4
_CYCLES = 3.0
_CHANCE = 4.0  # standard errors of a correlation
# The size of a crossing of zero, as a share of the first violations, and the number of crossings needed.
_TINY, _CROSSINGS = 0.01, 5
_REGULAR, _VERY_REGULAR = 0.65, 0.85  # the share of distances between crossings that agree
_SHORT = 8  # steps; noise too crosses zero as often as this
_SMALL = 0.02  # a swing smaller than this share of the first violations does not count


def swing(e: torch.Tensor, size: float) -> Swing | None:
    """Find an oscillation of `e` about zero, in the whole run or in a later part of it, and not just noise.

    Without noise, the period is the time between crossings of zero, if these times are equal. This works for swings of
    any form, also if a projection cuts them off or if they decay fast. Under noise, the autocorrelation is used. That
    of a decaying oscillation is an oscillation of the same period, which falls by exp(-2 pi zeta / sqrt(1 - zeta^2)) in
    a period. That of noise falls at once and stays small.
    """
    n = len(e)
    best = regular_crossings(e, size)
    if best is not None:
        return best
    for first in sorted({0, n // 2, 3 * n // 4}):
        part = e[first:]
        if len(part) < 16 or float(part.square().mean().sqrt()) <= _SMALL * size * (first > 0):
            continue
        found = _swing(part, first)
        if found is not None and (best is None or found.damping < best.damping):
            best = found
    return best


def _swing(e: torch.Tensor, first: int) -> Swing | None:
    n = len(e)
    scale = float(e.abs().max())
    if scale == 0.0:
        return None
    correlation = autocorrelation(e / scale)
    half = int(correlation[1 : n // 2].argmin()) + 1
    low, high = max(half + 1, math.ceil(1.5 * half)), math.floor(2.6 * half) + 1
    # In a shorter run, larger correlations arise by chance.
    chance = _CHANCE / math.sqrt(n)
    if float(correlation[half]) > min(_LOBE, -chance) or high >= n or n < _CYCLES * 2 * half:
        return None
    period = int(correlation[low:high].argmax()) + low
    # At longer lags the sum has fewer pairs, which makes a steady swing look damped. The end of the run shows if it is.
    quarter = max(period, n // 4)
    steady = float(e[-quarter:].square().mean()) > 0.5 * float(e[:quarter].square().mean())
    height = float(correlation[period]) / (1.0 - period / n if steady else 1.0)
    if height < max(_PEAK, chance):
        return None
    fall = -math.log(min(height, 1.0))
    if steady and float(e[-quarter:].abs().max()) > float(e[:quarter].abs().max()):
        # A growing swing: measure its growth by the envelope.
        cycles = (n - quarter) / period
        fall = -math.log(float(e[-quarter:].abs().max()) / float(e[:quarter].abs().max())) / max(1.0, cycles)
    return Swing(float(period), fall / math.hypot(2.0 * math.pi, fall), first)


def regular_crossings(e: torch.Tensor, size: float) -> Swing | None:
    """A swing that crosses zero upwards at least five times, at equal distances, and is not tiny."""
    large = (e.abs() > _TINY * size).nonzero().squeeze(1)
    if len(large) < 10:
        return None
    signs = e[large] > 0
    ups = large[1:][signs[1:] & ~signs[:-1]]
    # A swing is outside of the band about zero most of the time; noise leaves it only now and then.
    if len(ups) < _CROSSINGS or len(large) < 0.25 * (float(ups[-1] - ups[0])):
        return None
    lengths = ups.diff().double()
    period = float(lengths.median())
    if period <= _SHORT:
        # Noise crosses zero as often, but does not have the same sign again a period later.
        sign = e[int(ups[0]) : int(ups[-1])].sign()
        again = float((sign[int(period) :] * sign[: -int(period)]).mean())
        if again < max(_PEAK, _CHANCE / math.sqrt(len(sign))):
            return None
    # Noise crosses often and at any distance, so for a short period more of the distances must agree.
    agreeing = float(((lengths - period).abs() <= 0.3 * period).double().mean())
    if agreeing < (_REGULAR if period > _SHORT else _VERY_REGULAR):
        return None
    cycle = torch.bucketize(torch.arange(int(ups[0]), int(ups[-1])), ups, right=True) - 1
    heights = torch.zeros(len(lengths), dtype=e.dtype)
    heights.scatter_reduce_(0, cycle, e[int(ups[0]) : int(ups[-1])].abs(), "amax")
    fall = -float(heights.log().diff().median()) if len(heights) > 2 else 0.0
    return Swing(period, fall / math.hypot(2.0 * math.pi, fall), int(ups[0]))


def autocorrelation(e: torch.Tensor) -> torch.Tensor:
    """Autocorrelation for every lag k: sum of e_t e_{t+k} / sum of e_t^2. The mean is not subtracted."""
    n = len(e)
    spectrum = torch.fft.rfft(e, 2 * n)
    products: torch.Tensor = torch.fft.irfft(spectrum.abs().square(), 2 * n)[:n]
    return products / products[0]


def blocks(values: torch.Tensor, count: int) -> torch.Tensor:
    """The largest absolute value in each of `count` blocks of equal length."""
    length = len(values) // count
    return values[len(values) - count * length :].abs().reshape(count, length).amax(1)


def growth(e: torch.Tensor) -> float:
    """The factor by which `e` grows in the second half of the run, if it grows beyond all earlier values; else 1."""
    n = len(e)
    count = min(16, n // 2)
    if count < 4:
        return 1.0
    sizes = blocks(e, count)
    late = sizes[count // 2 :]
    first = float(sizes[: max(1, count // 4)].max())
    ranks = late.argsort().argsort().double()
    order = torch.arange(len(late), dtype=torch.float64)
    agree = float(
        ((ranks - ranks.mean()) * (order - order.mean())).sum() / (order - order.mean()).square().sum()
    )
    last, before = float(late[-1]), float(late[0])
    if agree < 0.8 or last < 2.0 * first or before == 0.0 or last < float(sizes.max()):
        return 1.0
    return last / before


class Answers(NamedTuple):
    """How violations have responded to growing multipliers: by how much each falls if its multiplier grows by 1.

    One number for each constraint.
    """

    stays: torch.Tensor
    """Whether the violation stays while the multiplier keeps growing. If not, the other fields have no meaning."""
    violation: torch.Tensor
    """The violation now, as a positive number."""
    multiplier: torch.Tensor
    """The size of the multiplier now."""
    whole: torch.Tensor
    """The response over the whole growth of the multiplier."""
    best: torch.Tensor
    """The largest response over a quarter of the growth."""
    last: torch.Tensor
    """The response over the last quarter of the growth."""
    error: torch.Tensor
    """The standard error of a response over a quarter of the growth."""

    @property
    def saturates(self) -> torch.Tensor:
        """Whether the response becomes smaller. If a constraint can be met, it is the same throughout."""
        return (
            (self.last < 0.4 * self.best)
            & (self.best - self.last > 4.0 * self.error)
            & (self.last * self.multiplier < 1.1 * self.violation)
        )

    @property
    def out_of_reach(self) -> torch.Tensor:
        """Whether the violation does not respond, or less and less, to a multiplier large enough to tell."""
        floor = 0.005 * self.violation / self.multiplier  # a smaller response would not matter
        most, whole = torch.maximum(4.0 * self.error, floor), torch.maximum(self.error, floor)
        silent = (self.best <= most) & (self.whole <= whole)
        hardly_pushed = silent & (self.multiplier < _HARDLY)
        return self.stays & (silent | self.saturates) & ~hardly_pushed


_LEVELS = 8
_HELD_BACK = (
    1.02  # in the second half of a run, growth by this factor is enough if the responses become smaller
)
_HARDLY = 0.05  # a smaller multiplier has hardly any effect, if the loss is of the order of 1


def answers(e: torch.Tensor, theta: torch.Tensor) -> Answers:
    """Measure the responses of violations `e` to growing multipliers `theta`; both are (steps, constraints)."""
    n = len(e)
    width = max(1, n // 10)
    sign = torch.where(e[-width:].mean(0) > 0, 1.0, -1.0).to(e)
    e, theta = sign * e, sign * theta
    middle = theta[n // 2 - width // 2 : n // 2 + width // 2 + 1].mean(0).clamp(min=0.0)
    end = theta[-1]
    late = e[n // 2 :]
    now = e[-max(1, width // 2) :].mean(0)
    error = _white_noise(late) / math.sqrt(max(1.0, width / 2))
    stays = (end > 0.0) & (now > 3.0 * error) & ((_smooth(late, width) > 0).to(e).mean(0) >= 0.95)
    total = _running(e)

    def at(level: torch.Tensor) -> torch.Tensor:
        place = (theta > level).to(e).argmax(0)
        low, high = (place - width // 4).clamp(min=0), (place + width // 4 + 1).clamp(max=n)
        return (total.gather(0, high[None]) - total.gather(0, low[None]))[0] / (high - low)

    levels = [at(end * k / _LEVELS) for k in range(_LEVELS)] + [now]
    window = _LEVELS // 4
    length = end / 4
    falls = torch.stack([(levels[k] - levels[k + window]) / length for k in range(_LEVELS + 1 - window)])
    whole = (levels[0] - now) / end
    found = Answers(stays, now, end, whole, falls.amax(0), falls[-1], error * math.sqrt(2.0) / length)
    # SelfTuned limits how fast a multiplier grows beyond its usual size, so that growth is small.
    grows = (end >= 1.2 * middle) | ((end >= _HELD_BACK * middle) & found.saturates)
    return found._replace(stays=stays & grows)


def white_noise(e: torch.Tensor) -> float:
    """The standard deviation of the noise, from third differences, which are near 0 for a smooth run."""
    return float(_white_noise(e[:, None]))


def _white_noise(e: torch.Tensor) -> torch.Tensor:
    if len(e) < 8:
        return e.new_zeros(e.shape[1:])
    return e.diff(n=3, dim=0).abs().median(0).values * (1.4826 / math.sqrt(20.0))


def _running(e: torch.Tensor) -> torch.Tensor:
    """The sums of the first 0, 1, 2, ... values."""
    return torch.cat([torch.zeros_like(e[:1]), e.cumsum(0)])


def _smooth(e: torch.Tensor, width: int) -> torch.Tensor:
    total = _running(e)
    return (total[width:] - total[:-width]) / width


def past_zero(e: torch.Tensor) -> tuple[float, int]:
    """How far `e`, smoothed a little, goes past zero after its first crossing, and at which index."""
    width = max(1, len(e) // 100)
    smooth = _smooth(e, width)
    smooth = smooth if float(smooth[0]) > 0 else -smooth
    crossed = (smooth < 0).double()
    if not bool(crossed.any()):
        return 0.0, 0
    start = int(crossed.argmax())
    deepest = int(smooth[start:].argmin()) + start
    return -float(smooth[deepest]), deepest


class Jitter(NamedTuple):
    """The noise of a violation, and its effect on the multiplier."""

    noise: float
    """The standard deviation of the violation's noise."""
    whiteness: float
    """The correlation of the violation with its value one step before: near 0 for noise."""
    level: float
    """The mean size of the multiplier."""
    shake: float
    """The root mean square of the multiplier's steps."""
    active: float
    """The share of steps in which the multiplier is not 0."""


def jitter(e: torch.Tensor, theta: torch.Tensor) -> Jitter:
    """Measure noise and its effect on the multiplier in the second half of a run."""
    e, theta = e[len(e) // 2 :], theta[len(theta) // 2 :]
    centred = e - e.mean()
    power = float(centred.square().mean())
    whiteness = float((centred[1:] * centred[:-1]).mean()) / power if power > 0 else 1.0
    return Jitter(
        math.sqrt(power),
        whiteness,
        float(theta.abs().mean()),
        float(theta.diff().square().mean().sqrt()),
        float((theta != 0).double().mean()),
    )
