"""How far a rate on new rows may be from the measured rate: binomial limits, for all constraints together.

k of n rows count for a rate p. With tail probability a, the limits are

    exact (Clopper-Pearson)   lower: P(X >= k | n, lower) = a       upper: P(X <= k | n, upper) = a
    wilson                    the p with |k / n - p| = z sqrt(p (1 - p) / n), z the normal quantile of 1 - a

Each is missed with a probability of at most a (exact), or of about a (wilson). A constraint on several rates uses m of
these limits. With a = (1 - confidence) / (m * comparisons) all of them hold together with probability `confidence`
(Bonferroni), even if the rates are correlated. Bounds that interval arithmetic computes from them then hold too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import torch

from nupi.optim.checks import whole
from nupi.rates.expressions import Expression, Interval

if TYPE_CHECKING:
    from nupi.rates.rate import Leaf

Method: TypeAlias = Literal["exact", "wilson"]


@dataclass(frozen=True)
class Confidence:
    """The confidence of a constraint's limits.

    Args:
        level: the probability that all limits hold together.
        comparisons: for how many constraints, or models to choose from, this must hold together.
        method: which limits: "exact" or "wilson".
    """

    level: float = 0.95
    comparisons: int = 1
    method: Method = "exact"

    def __post_init__(self) -> None:
        if not 0.0 < self.level < 1.0:
            raise ValueError(f"confidence={self.level!r} must be between 0 and 1, such as 0.95")
        whole("comparisons", self.comparisons)
        if self.method not in get_args(Method):
            raise ValueError(f"method={self.method!r}: choose one of {', '.join(get_args(Method))}")

    def check(self, expression: Expression, *, equality: bool) -> None:
        """Refuse an expression without such limits."""
        if equality:
            raise ValueError(
                "no sample can show that rates are equal; bound their gap instead: rate.gap() <= 0.02"
            )
        for rate in expression.rates():
            if not rate.binomial:
                raise ValueError(f"the {rate.name} is not a share of rows, and has no binomial limits")

    def tail(self, expression: Expression) -> float:
        """The tail probability of each limit."""
        limits = len(expression.sides(1))
        return (1.0 - self.level) / (limits * self.comparisons)

    def read(self, rate: Leaf, record: torch.Tensor, expression: Expression) -> Interval:
        """The limits of a rate."""
        from nupi.rates.rate import Rate

        assert isinstance(rate, Rate)
        counted, rows = (part[0] for part in rate.shares(record))
        if record.device.type == "cpu" and not bool((rows == rows.round()).all()):
            raise ValueError(
                "with weights the counts are not whole numbers, and have no binomial limits; measure without weights"
            )
        lower, upper = limits(counted, rows, self.tail(expression), self.method)
        return Interval(lower, upper, rows.nan_to_num(nan=1.0))


def limits(
    counted: torch.Tensor, rows: torch.Tensor, tail: float, method: Method = "exact"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Lower and upper limits of the rate that gave `counted` of `rows`, each missed with probability `tail`.

    With k = `counted` of n = `rows`, Clopper-Pearson's lower limit p solves P(X >= k) = tail for X ~ Binomial(n, p),
    and the upper one P(X <= k) = tail. Wilson's are those of the normal approximation.

    Example:
        >>> lower, upper = limits(torch.tensor([5.0]), torch.tensor([100.0]), 0.025)
        >>> lower, upper
        (tensor([0.0164]), tensor([0.1128]))
    """
    if method == "wilson":
        return _wilson(counted, rows, tail)
    try:
        from scipy.special import betaincinv
    except ImportError:
        raise ImportError(
            "exact limits need scipy: pip install 'nupi[rates]'; or take method='wilson', which needs torch alone"
        ) from None
    k, n = (part.detach().cpu().double().numpy() for part in (counted, rows))
    ends = betaincinv(k, n - k + 1, tail), betaincinv(k + 1, n - k, 1 - tail)
    lower, upper = (torch.as_tensor(end, dtype=counted.dtype, device=counted.device) for end in ends)
    return torch.where(counted > 0, lower, 0.0), torch.where(counted < rows, upper, 1.0)


def _wilson(counted: torch.Tensor, rows: torch.Tensor, tail: float) -> tuple[torch.Tensor, torch.Tensor]:
    z = torch.special.ndtri(torch.tensor(1 - tail, dtype=torch.float64)).item()
    n = rows.clamp(min=1)
    share = counted / n
    centre = share + z * z / (2 * n)
    spread = z * (share * (1 - share) / n + (z / (2 * n)) ** 2).sqrt()
    lower, upper = ((centre + sign * spread) / (1 + z * z / n) for sign in (-1, 1))
    return lower.clamp(min=0), upper.clamp(max=1)
