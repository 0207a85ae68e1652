"""The benchmarks that other libraries publish: data, model, constraint, and the numbers to compare with."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd
import torch
from torch import nn

from nupi import rates
from nupi.paper.data import adult, compas, crime, fetch
from nupi.paper.data.tables import Rows, Table, split_of, with_levels

if TYPE_CHECKING:
    from collections.abc import Callable

    from nupi.rates import Constraint


@dataclass(frozen=True)
class Published:
    """What others report: error and largest violation of the constraint, on one split."""

    name: str
    split: Literal["train", "test"]
    error: float
    violation: float


@dataclass(frozen=True)
class Training:
    """Constants of a training, with what most benchmarks have. Gains are not among them: `SelfTuned` finds its own.

    Args:
        learning_rate: of Adam, falling to 0 along a cosine.
        weight_decay: of AdamW.
        batch_rows: how many rows the model sees at a step.
        dual_every: primal steps from one move of the multipliers to the next.
        look_every: primal steps from one look of `Best` to the next; after the first third of them, if it is less.
    """

    learning_rate: float = 1e-2
    weight_decay: float = 0.0
    batch_rows: int = 512
    dual_every: int = 10
    look_every: int = 10


@dataclass(frozen=True)
class Benchmark:
    """A classifier to train under a constraint on rates.

    Args:
        name: the target's name.
        load: the data.
        constraint: what must hold, of so many groups; violations are reported of this.
        hidden: the widths of the hidden layers; none for a linear model.
        steps: primal steps.
        published: what others report; the last is the goal: no more error and no more violation.
        trained: if given, another constraint that is trained for instead, with a margin for new rows.
        held_out: whether multipliers and `Best` look at half of the training rows, and the model trains on the other.
        tolerance: the violation that `Best` puts up with.
        training: how to train.
    """

    name: str
    load: Callable[[], Table]
    constraint: Callable[[int], Constraint]
    hidden: tuple[int, ...]
    steps: int
    published: tuple[Published, ...]
    trained: Callable[[int], Constraint] | None = None
    held_out: bool = False
    tolerance: float = 0.001  # TFCO's own, where it makes its mixtures
    training: Training = Training()

    @property
    def goal(self) -> Published:
        """What one deterministic model is to reach."""
        return self.published[-1]


def model(inputs: int, hidden: tuple[int, ...], rng: torch.Generator) -> nn.Sequential:
    """A network of ReLU layers, with torch's own starting weights drawn from `rng`."""
    widths = (inputs, *hidden, 1)
    layers: list[nn.Linear | nn.ReLU] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    network = nn.Sequential(*layers[:-1])
    with torch.no_grad():
        for layer in network:
            if isinstance(layer, nn.Linear):  # what nn.Linear does itself, but without the global generator
                bound = layer.in_features**-0.5
                layer.weight.uniform_(-bound, bound, generator=rng)
                layer.bias.uniform_(-bound, bound, generator=rng)
    return network


ADULT_BINS = {
    "capital-gain": [-1, 1, 4000, 10000, 100000],
    "capital-loss": [-1, 1, 1800, 1950, 4500],
    "hours-per-week": [0, 39, 41, 50, 100],
    "education-num": [0, 8, 9, 11, 16],
}
ADULT_CATEGORIES = [
    "workclass", "education", "marital-status", "occupation", "relationship", "race", "sex", "native-country",
]  # fmt: skip
ADULT_GROUPS = {
    "women": ("sex", "Female"),
    "men": ("sex", "Male"),
    "White": ("race", "White"),
    "Black": ("race", "Black"),
}


@functools.cache
def adult_in_buckets() -> Table:
    """Adult as TFCO's notebook has it: all rows, every number cut into buckets, everything one-hot."""
    adult.load()  # sees to it that the files are there, and right
    train, test = (pd.read_csv(fetch.cache_folder() / "adult" / name) for name in adult.FILES)
    rows = pd.concat([train, test], ignore_index=True)
    bins = {"age": np.quantile(train["age"], [0, 0.25, 0.5, 0.75, 1]), **ADULT_BINS}
    parts = [pd.get_dummies(rows[name], prefix=name) for name in ADULT_CATEGORIES]
    parts += [
        pd.get_dummies(pd.cut(rows[name], edges, labels=False), prefix=name) for name, edges in bins.items()
    ]
    members = pd.DataFrame({name: rows[column] == value for name, (column, value) in ADULT_GROUPS.items()})
    labels = rows["income-per-year"] == ">50K"
    order = np.arange(len(rows))
    return split_of(pd.concat(parts, axis=1), labels, members, order[: len(train)], order[len(train) :])


@functools.cache
def adult_of_ten() -> Table:
    """Adult as the fairness experiment has it, with its ten groups; numbers are cut at levels too, as trees do it."""
    data = adult.load()
    train, test = (
        Rows(part.features, part.labels, nn.functional.one_hot(part.groups, len(data.groups)).bool())
        for part in (data.train, data.test)
    )
    return with_levels(Table(train, test, data.groups))


def tpr_not_above(groups: int) -> Constraint:
    """No group's true positive rate is above everybody's; of groups that make up everybody, none is below either."""
    return rates.true_positive_rate(groups=groups) <= rates.true_positive_rate()


def tpr_not_far_below(groups: int) -> Constraint:
    """No group's true positive rate is more than 0.05 below everybody's."""
    return rates.true_positive_rate(groups=groups) >= rates.true_positive_rate() - 0.05


def fpr_not_above(groups: int) -> Constraint:
    """No group's false positive rate is above everybody's."""
    return rates.false_positive_rate(groups=groups) <= rates.false_positive_rate()


def parity(groups: int) -> Constraint:
    """Every group's positive rate is within 0.01 of everybody's."""
    return rates.positive_rate(groups=groups).gap("overall") <= 0.01


def tpr_not_far_below_on_new_rows(groups: int) -> Constraint:
    """The same with a margin: 0.03 in place of 0.05."""
    return rates.true_positive_rate(groups=groups) >= rates.true_positive_rate() - 0.03


def fpr_surely_small(groups: int) -> Constraint:
    """Every group's false positive rate is at most 0.04 on new rows, with a confidence of 95%."""
    return (rates.false_positive_rate(groups=groups) <= 0.04).confident(0.95)


TFCO = "TFCO, published"
PROBLEMS = {
    problem.name: problem
    for problem in (
        Benchmark(
            "compas-tpr",
            compas.load,
            tpr_not_above,
            hidden=(10,),
            steps=3000,
            published=(
                Published(f"{TFCO}: unconstrained", "train", 0.2942, 0.0967),
                Published(f"{TFCO}: last iterates averaged", "train", 0.3005, 0.0022),
                Published(f"{TFCO}: mixture of models", "train", 0.2937, 0.0),
            ),
            tolerance=5e-5,  # 0 as it is published, with four digits
            training=Training(look_every=2),
        ),
        Benchmark(
            "adult-tpr",
            adult_in_buckets,
            tpr_not_far_below,
            hidden=(),
            steps=800,
            published=(
                Published(f"{TFCO}: unconstrained", "test", 0.1440, 0.0396),
                Published(f"{TFCO}: last model", "test", 0.1437, 0.0266),
                Published(f"{TFCO}: best model", "test", 0.1435, 0.0156),
                Published(f"{TFCO}: mixture of models", "test", 0.1433, 0.0180),
            ),
            trained=tpr_not_far_below_on_new_rows,
        ),
        Benchmark(
            "crime-fpr",
            crime.load,
            fpr_not_above,
            hidden=(10,),
            steps=300,
            published=(
                Published(f"{TFCO}: unconstrained", "test", 0.1353, 0.1787),
                Published(f"{TFCO}: one set, mixture of models", "test", 0.2310, 0.0252),
                Published(f"{TFCO}: two sets, mixture of models", "test", 0.2280, 0.0042),
            ),
            trained=fpr_surely_small,
            held_out=True,
            training=Training(learning_rate=3e-3, weight_decay=3.0, dual_every=2, look_every=2),
        ),
        Benchmark(
            "adult-parity",
            adult_of_ten,
            parity,
            hidden=(100,),
            steps=800,
            published=(Published("fairlearn, boosted trees (docs/fairness.md)", "test", 0.163, 0.057),),
            tolerance=1 / 87,  # one row of the smallest group
            training=Training(learning_rate=3e-3, weight_decay=1.0),
        ),
    )
}
