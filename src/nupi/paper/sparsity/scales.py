"""The size of the experiment at each scale, and how its rates follow from the paper's.

The paper takes T = 78,200 steps. A run of fewer is the same run played faster, by the factor f = 78,200 / steps:

    ki      = 8e-4 f          it acts on the sum of the errors, which has fewer terms
    kp      as it is          it acts on the error itself
    gate lr = 1e-3 f          an Adam step has the size of its lr, whatever the gradient
    beta2   = 0.999^f         of both Adams: their averages reach back over the same share of the run

Shorter memories cannot be kept: beta1 = 0.9 reaches back over 10 of the paper's steps, a fifth of one step at laptop
scale. They stay as they are unless `rescale` is "all"; target `sparsity-time` shows what that changes. The weights' own
rate and momentum are those of an ordinary training: the weights are not played faster.

Where the paper's text and its authors' scripts disagree (docs/errata.md, 10) the scripts made the numbers, and count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from nupi.paper.data import cifar10

if TYPE_CHECKING:
    from nupi.gates.layers import Place
    from nupi.paper.runner import Scale, TargetRun
    from nupi.paper.sparsity.authors import Accuracy, Cosine, Decay, Start, Weights

PAPER_STEPS = 78_200
PAPER_KI, PAPER_GATE_RATE, PAPER_BETA2 = 8e-4, 1e-3, 0.999
BETA1 = 0.9


@dataclass(frozen=True)
class Experiment:
    """One size of the experiment.

    Args:
        images: how many of the training images, from the first.
        side: of the images, averaged down from 32.
        width: of the network's first stage.
        batch: images a step.
        epochs: under the constraint.
        warm_up: epochs without gates before that, once for all runs of a seed.
        rate: of the weights, at the start of its cosine.
        weight_decay: of the weights; the gates have none.
        droprate_init: where gates start.
        clamp: of log_alpha.
        place: of the gate, before or after the batch norm.
        max_pool: whether the network has one behind its stem.
        augment: whether training images are shifted by up to 4 pixels and mirrored at random.
        start, divide, decay, cosine, accuracy, trained: see `nupi.paper.sparsity.authors`.
        rescale: whether Adam's beta2 alone follows the time scale, or "all": beta1 and the dual momentum too.
    """

    images: int
    side: int
    width: int
    batch: int
    epochs: int
    warm_up: int
    rate: float
    weight_decay: float = 5e-4
    droprate_init: float = 0.05
    clamp: float | None = 4.6
    place: Place = "after"
    max_pool: bool = False
    augment: bool = False
    start: Start = "torch"
    divide: bool = False
    decay: Decay = "plain"
    cosine: Cosine = "step"
    accuracy: Accuracy = "evaluated"
    trained: Weights = "all"
    rescale: Literal["beta2", "all"] = "beta2"

    def __post_init__(self) -> None:
        if cifar10.SIDE % self.side:
            raise ValueError(
                f"side={self.side}: images of {cifar10.SIDE} are averaged down to a divisor of it"
            )
        if self.trained not in ("all", "gated"):
            raise ValueError(f"trained={self.trained!r}: choose 'all' or 'gated'")

    @property
    def steps(self) -> int:
        """Steps under the constraint; the last batch of an epoch may be smaller."""
        return self.epochs * -(-self.images // self.batch)

    @property
    def speed(self) -> float:
        """How many of the paper's steps one of these stands for."""
        return PAPER_STEPS / self.steps

    @property
    def ki(self) -> float:
        """The dual step size of every method."""
        return PAPER_KI * self.speed

    @property
    def gate_rate(self) -> float:
        """Of the gates' Adam."""
        return PAPER_GATE_RATE * self.speed

    @property
    def beta2(self) -> float:
        """Of the gates' Adam, and of Adam on the multipliers."""
        return float(PAPER_BETA2**self.speed)

    @property
    def beta1(self) -> float:
        """Of the same two."""
        return self.remembered(BETA1)

    def remembered(self, beta: float) -> float:
        """A momentum that forgets as much in one of these steps as `beta` in the paper's steps, if all is rescaled."""
        return math.copysign(abs(beta) ** self.speed, beta) if self.rescale == "all" else beta


EXPERIMENTS: dict[Scale, Experiment] = {
    # Seconds: everything is exercised, nothing is learnt.
    "smoke": Experiment(images=64, side=8, width=2, batch=32, epochs=4, warm_up=1, rate=0.05),
    # Half a minute to a minute of one core a run. More steps on so few images only saturate the training accuracy.
    "laptop": Experiment(images=4_000, side=16, width=8, batch=32, epochs=12, warm_up=6, rate=0.05),
    # All images and six times the steps: about 14 minutes of one core a run.
    "desk": Experiment(images=50_000, side=16, width=16, batch=64, epochs=12, warm_up=2, rate=0.05),
    # The authors' own, for an accelerator: the gate on the convolution, no clamp, no warm-up.
    "paper": Experiment(
        images=50_000,
        side=32,
        width=64,
        batch=128,
        epochs=200,
        warm_up=0,
        rate=0.1,
        droprate_init=0.01,
        clamp=None,
        place="before",
        max_pool=True,
        augment=True,
        start="fan out",
        divide=True,
        decay="active",
        cosine="epoch",
        accuracy="averaged",
    ),
}
SEEDS: dict[Scale, int] = {"smoke": 1, "laptop": 3, "desk": 1, "paper": 5}
OPTIONS = ("trained",)
"""The fields that a user may set, as in `nupi reproduce sparsity-global --scale paper --set trained=gated`."""


def experiment(run: TargetRun) -> Experiment:
    """The experiment at this scale, with what the user has set."""
    return replace(EXPERIMENTS[run.scale], **cast("dict[str, Any]", run.options))
