"""A constraint on rates: soft for the model, hard for its multipliers, in one object.

The model needs a violation with a gradient, so it gets a surrogate of its decisions. The multiplier needs no gradient,
so it gets the decisions themselves. So the bound holds for decisions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from nupi import Averaged, Equality, Inequality, Measured
from nupi.rates.decisions import Soft, Surrogate
from nupi.rates.margins import Confidence, Method
from nupi.rates.records import Join, Record, Rows, gather

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nupi.rates.expressions import Expression, Interval
    from nupi.rates.groups import Numbers
    from nupi.rates.rate import Leaf
    from nupi.rates.window import Window

Records: TypeAlias = "dict[Record, torch.Tensor]"


@dataclass(frozen=True, eq=False)
class Constraint:
    """Expressions of rates that must be <= 0, or = 0; made by `at_most`, `at_least`, `equals`, `<=` and `>=`.

    Args:
        expression: the expression that must be <= 0.
        equality: whether it must be = 0.
        soft_by: the surrogate of decisions for the model, and its temperature.
        confidence: if given, hard violations are upper confidence limits.

    Example:
        >>> from nupi import rates
        >>> constraint = rates.recall().at_least(0.9)
        >>> measured = constraint(torch.tensor([2.0, -1.0]), torch.tensor([1, 1]))
        >>> measured.hard.sums / measured.hard.counts  # half of the positives are found
        tensor([0.4000], dtype=torch.float64)
    """

    expression: Expression
    equality: bool = False
    soft_by: Soft = field(default=Soft("sigmoid", 1.0))
    confidence: Confidence | None = None

    def __post_init__(self) -> None:
        soft = self.soft_by.checked()
        if soft.surrogate == "hinge":
            if self.equality:
                raise ValueError("a hinge bounds one side, and an equality has two; bound the gap instead")
            for rate in self.expression.rates():
                if rate.by_decisions:
                    raise ValueError(
                        f"a hinge does not bound the {rate.name}, whose denominator depends on decisions; take "
                        "surrogate='sigmoid', or bound sums: (true_positive_proportion() - b * positive_rate())"
                    )
        if self.confidence is not None:
            self.confidence.check(self.expression, equality=self.equality)

    @property
    def size(self) -> int:
        """How many constraints there are."""
        return self.expression.size

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each constraint."""
        return self.expression.names

    def __bool__(self) -> bool:
        raise TypeError("a constraint is neither true nor false: write 0.1 <= rate <= 0.2 as two constraints")

    def kind(self, **options: Any) -> Inequality | Equality:
        """The group of multipliers for it: `nupi.Lagrangian({"parity": constraint.kind()})`.

        Args:
            options: further arguments of `nupi.Inequality` or `nupi.Equality`, such as `init`.
        """
        return Equality(self.size, **options) if self.equality else Inequality(self.size, **options)

    def surrogate(self, surrogate: Surrogate = "sigmoid", *, temperature: float = 1.0) -> Constraint:
        """The same constraint with another surrogate for the model."""
        return replace(self, soft_by=Soft(surrogate, temperature))

    def confident(
        self, confidence: float = 0.95, *, comparisons: int = 1, method: Method = "exact"
    ) -> Constraint:
        """The same constraint with a margin, for bounds that must hold on new rows.

        Its hard measure is the upper confidence limit of the violation, from binomial limits of every rate in it.
        If it is <= 0 on rows that had no part in training, the constraint holds for the population of these rows,
        with at least this confidence.

        Args:
            confidence: the smallest probability with which all constraints of this object hold together.
            comparisons: how many such results must hold together: for several objects, or for several models
                of which you choose one.
            method: "exact" (Clopper-Pearson; guaranteed, needs scipy) or "wilson" (narrower, approximate).
        """
        return replace(self, confidence=Confidence(confidence, comparisons, method))

    def __call__(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor | None = None,
        groups: Numbers | None = None,
        *,
        weights: torch.Tensor | None = None,
        window: Window | None = None,
        join: Join | None = None,
    ) -> Measured:
        """Both violations on one batch.

        Args:
            logits: the model's scores, (rows,); positive means the positive class. (rows, classes) for several.
            labels: 0 or 1 for each row, or its class; not needed if no rate uses labels.
            groups: the group number of each row; needed if rates are by group.
            weights: the weight of each row; by default 1.
            window: measures the hard violation over the batches in the window, this one included.
            join: a sum over processes, such as `nupi.distributed.total`, applied to all sums before rates are computed.
        """
        rows = Rows(logits, labels, groups, weights)
        return Measured(self._soft(rows, join), self._hard(rows, window, join))

    def soft(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor | None = None,
        groups: Numbers | None = None,
        *,
        weights: torch.Tensor | None = None,
        join: Join | None = None,
    ) -> Averaged:
        """The violation of the surrogate, which has a gradient: for `lagrangian(loss, ...)`."""
        return self._soft(Rows(logits, labels, groups, weights), join)

    def hard(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor | None = None,
        groups: Numbers | None = None,
        *,
        weights: torch.Tensor | None = None,
        window: Window | None = None,
        join: Join | None = None,
    ) -> Averaged:
        """The violation of the decisions: for `lagrangian.ascend(dual, ...)`."""
        return self._hard(Rows(logits, labels, groups, weights), window, join)

    @torch.no_grad()
    def measure(self, batches: Iterable[Any], *, hard: bool = True) -> Averaged:
        """The exact violation over all rows of `batches`, in one pass. No gradient flows.

        Args:
            batches: tuples of logits, labels, groups and weights (as many as are needed), one for each chunk of rows.
                It may be a generator; its body runs without gradients:
                `constraint.measure((model(x), y, g) for x, y, g in loader)`.
            hard: whether to measure decisions; otherwise the surrogate.

        Raises:
            ValueError: there are no rows for one of the rates, so a constraint has no value.
        """
        soft = None if hard else self.soft_by
        records = gather(self.records(), batches, soft)
        for rate in self.expression.rates():
            rate_rows = rate.read(records[rate.record], soft).rows
            if not rate.by_decisions and bool((rate_rows == 0).any()):
                lacks = [name for name, rows in zip(rate.names, rate_rows.tolist(), strict=True) if rows == 0]
                raise ValueError(
                    f"batches must hold rows for every rate; there are none for: {'; '.join(lacks)}"
                )
        return self.violation(records, soft)

    def records(self) -> tuple[Record, ...]:
        """What its rates are computed from, each once."""
        return tuple(dict.fromkeys(rate.record for rate in self.expression.rates()))

    def violation(self, records: Records, soft: Soft | None) -> Averaged:
        """The violation from records. If no row counts for a constraint, its count is 0."""
        limits = None if soft is not None else self.confidence

        def read(rate: Leaf) -> Interval:
            record = records[rate.record]
            return rate.read(record, soft) if limits is None else limits.read(rate, record, self.expression)

        found = self.expression.interval(read)
        rows = found.rows.expand_as(found.upper)
        return Averaged(torch.where(rows == 0, 0.0, found.upper) * rows, rows)

    def _soft(self, rows: Rows, join: Join | None) -> Averaged:
        return self.violation(self._recorded(rows, self.soft_by, join), self.soft_by)

    @torch.no_grad()
    def _hard(self, rows: Rows, window: Window | None, join: Join | None) -> Averaged:
        records = self._recorded(rows, None, join)
        if window is not None:
            records = window.add(records)
        return self.violation(records, None)

    def _recorded(self, rows: Rows, soft: Soft | None, join: Join | None) -> Records:
        return {kind: kind.joined(kind.of(rows, soft), join) for kind in self.records()}
