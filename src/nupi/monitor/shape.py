"""The shape of one constraint's run: how it swings, grows, answers its multiplier, and how noisy it is."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch


class Swing(NamedTuple):
    """A regular oscillation about zero."""

    period: float
    """Steps of one cycle."""
    damping: float
    """The damping ratio: 0 for a swing that neither grows nor decays, negative for one that grows."""
    first: int
    """Where the part of the run begins in which it was found."""

    @property
    def frequency(self) -> float:
        """The natural frequency, in radians a step."""
        return 2.0 * math.pi / self.period / math.sqrt(max(1e-6, 1.0 - self.damping**2))

    @property
    def growth(self) -> float:
        """What a cycle multiplies the swing by."""
        return math.exp(-2.0 * math.pi * self.damping / math.sqrt(max(1e-6, 1.0 - self.damping**2)))


_LOBE, _PEAK = (
    -0.35,
    0.4,
)  # how deep the autocorrelation must fall in half a period, and rise again in a whole one
_CYCLES = 3.0
_CHANCE = 4.0  # standard errors of a correlation
_TINY, _CROSSINGS = (
    0.01,
    5,
)  # what counts as crossing zero, beside the first violations, and how often it must
_REGULAR, _VERY_REGULAR = 0.65, 0.85  # the share of distances between crossings that agree
_SHORT = 8  # steps: noise crosses zero as often
_SMALL = 0.02  # a swing that is smaller than this beside the first violations is none


def swing(e: torch.Tensor, size: float) -> Swing | None:
    """An oscillation of `e` about zero, in the whole run or in a later part of it, told apart from noise.

    Where zero is crossed again and again after equal times, that is the period: it serves for swings of any form,
    cut off by a projection or decaying fast, but not under noise. There, the autocorrelation tells: that of a
    decaying oscillation is one itself, of the same period, and falls by exp(-2 pi zeta / sqrt(1 - zeta^2)) in a
    period; that of noise falls at once and stays small.
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
    # The shorter the run, the more of a correlation comes about by chance.
    chance = _CHANCE / math.sqrt(n)
    if float(correlation[half]) > min(_LOBE, -chance) or high >= n or n < _CYCLES * 2 * half:
        return None
    period = int(correlation[low:high].argmax()) + low
    # The sum over fewer and fewer pairs makes a steady swing look damped. What is left in the end says if it is.
    quarter = max(period, n // 4)
    steady = float(e[-quarter:].square().mean()) > 0.5 * float(e[:quarter].square().mean())
    height = float(correlation[period]) / (1.0 - period / n if steady else 1.0)
    if height < max(_PEAK, chance):
        return None
    fall = -math.log(min(height, 1.0))
    if steady and float(e[-quarter:].abs().max()) > float(e[:quarter].abs().max()):
        # Grows: by the envelope.
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
    # Noise that leaves the band about zero now and then is no swing: a swing is outside of it most of the time.
    if len(ups) < _CROSSINGS or len(large) < 0.25 * (float(ups[-1] - ups[0])):
        return None
    lengths = ups.diff().double()
    period = float(lengths.median())
    if period <= _SHORT:
        # Noise crosses zero as often, but does not come back to the same sign a period later.
        sign = e[int(ups[0]) : int(ups[-1])].sign()
        again = float((sign[int(period) :] * sign[: -int(period)]).mean())
        if again < max(_PEAK, _CHANCE / math.sqrt(len(sign))):
            return None
    # Noise crosses at any distance, and often: where a period is short, more must agree.
    agreeing = float(((lengths - period).abs() <= 0.3 * period).double().mean())
    if agreeing < (_REGULAR if period > _SHORT else _VERY_REGULAR):
        return None
    cycle = torch.bucketize(torch.arange(int(ups[0]), int(ups[-1])), ups, right=True) - 1
    heights = torch.zeros(len(lengths), dtype=e.dtype)
    heights.scatter_reduce_(0, cycle, e[int(ups[0]) : int(ups[-1])].abs(), "amax")
    fall = -float(heights.log().diff().median()) if len(heights) > 2 else 0.0
    return Swing(period, fall / math.hypot(2.0 * math.pi, fall), int(ups[0]))


def autocorrelation(e: torch.Tensor) -> torch.Tensor:
    """Sum of e_t e_{t+k} over the sum of squares, for every lag k. About zero, not about the mean."""
    n = len(e)
    spectrum = torch.fft.rfft(e, 2 * n)
    products: torch.Tensor = torch.fft.irfft(spectrum.abs().square(), 2 * n)[:n]
    return products / products[0]


def blocks(values: torch.Tensor, count: int) -> torch.Tensor:
    """The largest size in each of `count` blocks of equal length."""
    length = len(values) // count
    return values[len(values) - count * length :].abs().reshape(count, length).amax(1)


def growth(e: torch.Tensor) -> float:
    """By what factor `e` grows in the later half of the run, if it grows throughout and past all it was; else 1."""
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
    """How violations that stay have answered to their multipliers: what a multiplier larger by 1 takes off.

    One number for each constraint.
    """

    stays: torch.Tensor
    """Whether the violation stays while the multiplier grows and grows; if not, the rest means nothing."""
    violation: torch.Tensor
    """What it is now, as a positive number."""
    multiplier: torch.Tensor
    """How large the multiplier is now."""
    whole: torch.Tensor
    """The answer over the whole way of the multiplier,"""
    best: torch.Tensor
    """where it was strongest,"""
    last: torch.Tensor
    """and over the last quarter of the way."""
    error: torch.Tensor
    """The standard error of an answer over a quarter of the way."""

    @property
    def saturates(self) -> torch.Tensor:
        """Whether it answers less and less: a violation that can be met answers alike all the way."""
        return (
            (self.last < 0.4 * self.best)
            & (self.best - self.last > 4.0 * self.error)
            & (self.last * self.multiplier < 1.1 * self.violation)
        )

    @property
    def out_of_reach(self) -> torch.Tensor:
        """Whether it does not answer, or less and less, to a multiplier that has been tried."""
        floor = 0.005 * self.violation / self.multiplier  # an answer that would not matter
        most, whole = torch.maximum(4.0 * self.error, floor), torch.maximum(self.error, floor)
        silent = (self.best <= most) & (self.whole <= whole)
        hardly_pushed = silent & (self.multiplier < _HARDLY)
        return self.stays & (silent | self.saturates) & ~hardly_pushed


_LEVELS = 8
_HELD_BACK = 1.02  # the growth over the second half of a run of a multiplier whose growth is held back
_HARDLY = 0.05  # a multiplier that is smaller has hardly pushed, where the loss is of the order of 1


def answers(e: torch.Tensor, theta: torch.Tensor) -> Answers:
    """The answers to multipliers that grow in the direction of violations that stay; both are (steps, constraints)."""
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
    # A controller that holds back beyond its usual multipliers, as SelfTuned does, grows on by little.
    grows = (end >= 1.2 * middle) | ((end >= _HELD_BACK * middle) & found.saturates)
    return found._replace(stays=stays & grows)


def white_noise(e: torch.Tensor) -> float:
    """The standard deviation of what changes from step to step, from third differences that smooth runs lack."""
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
    """How far `e` goes past zero after it has crossed it for the first time, and where; smoothed a little."""
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
    """Noise of a violation, and what it does to its multiplier."""

    noise: float
    """The standard deviation of the violation's noise."""
    whiteness: float
    """The correlation of the violation with its own last value: near 0 for noise."""
    level: float
    """Where the multiplier is on average."""
    shake: float
    """The root mean square of its steps."""
    active: float
    """The share of steps in which it is not 0."""


def jitter(e: torch.Tensor, theta: torch.Tensor) -> Jitter:
    """How noise shakes a multiplier in the later half of a run."""
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
