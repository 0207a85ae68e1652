"""A scikit-learn classifier that is trained under constraints on its decisions."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from nupi.integrations.sklearn import names
from nupi.integrations.sklearn.network import logits_of, network
from nupi.integrations.sklearn.rows import Rows, as_rows, split
from nupi.integrations.sklearn.scorer import violations
from nupi.integrations.sklearn.sensitive import Attributes
from nupi.integrations.sklearn.training import CHUNK, Trainer, largest_violations

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

FULL_BATCH, BATCH = 2_000, 512  # batch_size="auto": all rows up to the first number, else the second


class ConstrainedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A linear classifier, an MLP or your own module, whose decisions meet bounds on their rates.

    It minimizes the cross-entropy subject to the constraints. The result is one deterministic model. Of all models
    during training whose decisions met all bounds (on the training rows, or on the held-out rows with
    `early_stopping`), it is the one with the fewest errors. If none met them, it is the closest one, `feasible_` is
    False, and a `ConvergenceWarning` says by how much it misses.

    Args:
        constraints: bounds by name, such as {"equalized_odds": 0.02, "false_positive_rate": 0.05}; see
            `nupi.integrations.sklearn.names`. None trains without constraints.
        module: a torch module, which is copied, or a function (inputs, outputs) that makes one. For two classes it has
            one output, for more classes one output each.
        hidden_layer_sizes: widths of the hidden layers, or of the only one, if no module is given; () is logistic
            regression.
        intersections: whether the groups are the combinations of the sensitive attributes, not those of each.
        pos_label: the positive class, if there are two; by default the last in sorted order.
        max_steps: gradient steps of `fit`.
        batch_size: rows of a batch; "auto" is all rows up to 2,000, else 512.
        learning_rate: of Adam; in `fit` it falls to 0 along a cosine.
        weight_decay: of Adam.
        standardize: whether columns are brought to mean 0 and deviation 1 first.
        early_stopping: hold rows out. The multipliers and the choice of the model then use these rows, and training
            ends after `n_iter_no_change` evaluations (there are 200 in `max_steps`) without a better model.
        validation_fraction: the share of the rows that is held out.
        n_iter_no_change: the number of evaluations without a better model after which training ends.
        confidence: such as 0.95: the bounds must hold on new rows with this confidence. Needs `early_stopping`.
        dual: what moves the multipliers: "self_tuned" is `nupi.SelfTuned`, "fixed" is `nupi.NuPI` with fixed gains, and
            a function makes an optimizer from a list of multipliers.
        random_state: for the initial weights, the order of rows, and the choice of held-out rows.
        device: where to train.

    Attributes:
        classes_: the labels.
        feasible_: whether the decisions meet all bounds, on the rows that were used for the choice.
        violations_: the largest violation of each constraint on these rows; at most 0 if it is met.
        multipliers_: the multipliers of each constraint, at the end of training.
        module_: the trained torch module.
        n_steps_: gradient steps taken.

    Example:
        >>> from sklearn.datasets import make_classification
        >>> X, y = make_classification(200, random_state=0)
        >>> model = ConstrainedClassifier({"false_positive_rate": 0.05}, max_steps=100, random_state=0).fit(X, y)
        >>> bool((model.predict(X)[y == 0] == 1).mean() <= 0.05)
        True
    """

    def __init__(
        self,
        constraints: Mapping[str, Any] | None = None,
        *,
        module: Any = None,
        hidden_layer_sizes: int | Sequence[int] = (),
        intersections: bool = False,
        pos_label: Any = None,
        max_steps: int = 3_000,
        batch_size: int | str = "auto",
        learning_rate: float = 0.01,
        weight_decay: float = 0.0,
        standardize: bool = True,
        early_stopping: bool = False,
        validation_fraction: float = 0.2,
        n_iter_no_change: int = 40,
        confidence: float | None = None,
        dual: Any = "self_tuned",
        random_state: Any = None,
        device: Any = "cpu",
    ) -> None:
        self.constraints = constraints
        self.module = module
        self.hidden_layer_sizes = hidden_layer_sizes
        self.intersections = intersections
        self.pos_label = pos_label
        self.max_steps = max_steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.standardize = standardize
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.confidence = confidence
        self.dual = dual
        self.random_state = random_state
        self.device = device

    def fit(self, X: Any, y: Any, *, sensitive_features: Any = None, sample_weight: Any = None) -> Any:
        """Train from scratch.

        Args:
            X: the features, (rows, columns): an array or a frame of numbers.
            y: the label of each row.
            sensitive_features: the groups of each row: a column, a frame or a mapping of several, an array.
            sample_weight: the weight of each row, in the loss and in the rates.
        """
        if self.confidence is not None and not self.early_stopping:
            raise ValueError(
                f"confidence={self.confidence} is about new rows, and needs rows that the model does not train on: "
                "set early_stopping=True"
            )
        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32])
        check_classification_targets(y)
        self._learn_classes(y)
        rows = self._rows(X, y, sensitive_features, sample_weight, first=True)
        fitted, shown = rows, rows
        if self.early_stopping:
            fitted, shown = split(rows, self.validation_fraction, check_random_state(self.random_state))
        with self._seeded():
            trainer = self._trainer(fitted, shown)
            patience = self.n_iter_no_change if self.early_stopping else None
            best, self.n_steps_ = trainer.fit(fitted, shown, self._batch_rows(fitted), patience)
        self._trained(trainer)
        self.feasible_ = best.is_feasible
        self.violations_ = largest_violations(trainer, shown)
        if not self.feasible_:
            missed = {name: round(value, 4) for name, value in self.violations_.items() if value > 0}
            warnings.warn(
                f"no model met all constraints; the closest one violates {missed}. Loosen the bounds, or "
                f"give it more than max_steps={self.max_steps}",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def partial_fit(
        self,
        X: Any,
        y: Any,
        classes: Any = None,
        *,
        sensitive_features: Any = None,
        sample_weight: Any = None,
    ) -> Any:
        """Continue training, in one pass over these rows. The multipliers use the last 50 batches.

        Args:
            X: the features.
            y: the labels.
            classes: all labels of all calls; needed in the first call.
            sensitive_features: the groups of each row. All groups must be in the first call, or be the categories
                of pandas Categoricals.
            sample_weight: the weight of each row.
        """
        first = not hasattr(self, "_state")
        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32], reset=first)
        if first:
            check_classification_targets(y)
            self._learn_classes(y if classes is None else np.asarray(classes))
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(f"classes={classes!r} differs from the first call: {self.classes_!r}")
        rows = self._rows(X, y, sensitive_features, sample_weight, first=first)
        with self._seeded(again=not first):
            trainer: Trainer = self._trainer(rows, None) if first else self._state
            taken = trainer.stream(rows, self._batch_rows(rows))
        self._trained(trainer)
        self.n_steps_ = getattr(self, "n_steps_", 0) + taken
        self.violations_ = largest_violations(trainer, rows)
        self.feasible_ = all(value <= 0 for value in self.violations_.values())
        return self

    def decision_function(self, X: Any) -> Any:
        """The logit of `classes_[1]`, (rows,); or of each class, (rows, classes)."""
        scores = self._scores(X)
        return -scores if self._flipped else scores

    def predict(self, X: Any) -> Any:
        """The class of each row."""
        scores = self._scores(X)
        chosen = (scores > 0) ^ self._flipped if scores.ndim == 1 else scores.argmax(1)
        return self.classes_[chosen.astype(np.int64)]

    def predict_proba(self, X: Any) -> Any:
        """The probability of each class. The predicted class has the largest."""
        scores = torch.from_numpy(np.asarray(self.decision_function(X), dtype=np.float64))
        if scores.dim() == 1:
            positive = torch.sigmoid(scores)
            return torch.stack([1 - positive, positive], dim=1).numpy()
        return torch.softmax(scores, dim=1).numpy()

    def violations(
        self, X: Any, y: Any, *, sensitive_features: Any = None, sample_weight: Any = None
    ) -> dict[str, float]:
        """The largest violation of each constraint by the decisions on any rows; at most 0 if it is met.

        A constraint that these rows cannot measure (a gap between two groups, if only one is present) is left out.
        """
        return violations(
            self.constraints or {},
            y,
            self.predict(X),
            sensitive_features=sensitive_features,
            sample_weight=sample_weight,
            pos_label=self.pos_label,
            intersections=self.intersections,
            classes=self.classes_,
            known=self._attributes,
        )

    def _learn_classes(self, labels: Any) -> None:
        self.classes_ = np.unique(labels)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y has 1 class, {self.classes_.tolist()!r}; a classifier needs at least 2 classes"
            )
        if self.pos_label is not None and self.pos_label not in self.classes_:
            raise ValueError(
                f"pos_label={self.pos_label!r} is none of the classes {self.classes_.tolist()!r}"
            )
        two = len(self.classes_) == 2 and self.pos_label is not None
        self._flipped = bool(two and self.pos_label == self.classes_[0])

    def _rows(self, X: Any, y: Any, sensitive: Any, sample_weight: Any, *, first: bool) -> Rows:
        """The arguments as tensors on the device. The first rows define the groups."""
        weight = _check_sample_weight(sample_weight, X, dtype=X.dtype, ensure_non_negative=True)
        if first:
            self._attributes = None
            if sensitive is not None:
                self._attributes = Attributes.learn(sensitive, len(y), intersections=self.intersections)
        return as_rows(
            X,
            y,
            sensitive,
            weight,
            self._attributes,
            self.classes_,
            flipped=self._flipped,
            device=self.device,
        )

    def _trainer(self, rows: Rows, shown: Rows | None) -> Trainer:
        classes = len(self.classes_)
        outputs = 1 if classes == 2 else classes
        sizes = None if self._attributes is None else self._attributes.sizes
        constraints = names.prepared(
            self.constraints or {}, sizes, list(self.classes_), shown, self.confidence
        )
        module = network(
            self.module, self.hidden_layer_sizes, rows.x, rows.weights, outputs, standardize=self.standardize
        )
        return Trainer(
            module,
            classes,
            constraints,
            steps=_at_least_one("max_steps", self.max_steps),
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            dual=self.dual,
            stream=shown is None,
        )

    def _batch_rows(self, rows: Rows) -> int:
        if self.batch_size == "auto":
            return len(rows) if len(rows) <= FULL_BATCH else BATCH
        return _at_least_one("batch_size", self.batch_size)

    @contextmanager
    def _seeded(self, *, again: bool = False) -> Iterator[None]:
        """Use this classifier's own random state, and restore torch's afterwards."""
        kind = torch.device(self.device)
        cuda = [kind.index or 0] if kind.type == "cuda" else []
        with torch.random.fork_rng(devices=cuda), warnings.catch_warnings():
            # The user gave max_steps, not the dual's steps; `feasible_` says if they were enough.
            warnings.filterwarnings("ignore", "steps=.* is shorter than", UserWarning)
            if again:
                torch.set_rng_state(self._random)
            else:
                torch.manual_seed(check_random_state(self.random_state).randint(2**31 - 1))
            yield
            self._random: torch.Tensor = torch.get_rng_state()

    def _trained(self, trainer: Trainer) -> None:
        self._state, self.module_ = trainer, trainer.module
        multipliers = {} if trainer.lagrangian is None else trainer.lagrangian.multipliers
        self.multipliers_ = {name: each.detach().cpu().numpy().copy() for name, each in multipliers.items()}

    def _scores(self, X: Any) -> Any:
        """Logits of the positive class, or of all classes."""
        check_is_fitted(self)
        like = next(self.module_.parameters())
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        self.module_.eval()
        with torch.no_grad():
            rows = torch.tensor(X, device=like.device, dtype=like.dtype)
            parts = [logits_of(self.module_, part, len(self.classes_)) for part in rows.split(CHUNK)]
        return torch.cat(parts).cpu().numpy()


def _at_least_one(name: str, given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, Integral) or given < 1:
        raise ValueError(f"{name}={given!r} must be a whole number of at least 1")
    return int(given)
