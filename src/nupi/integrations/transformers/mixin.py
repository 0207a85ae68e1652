"""The mixin that puts constraints into a Trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from accelerate.utils import send_to_device
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from nupi.files import load_checked, save_checked
from nupi.integrations.accumulation import Accumulator
from nupi.integrations.duals import Dual, as_lagrangian, check_dual, check_order, go_on, make_dual
from nupi.integrations.evaluation import Evaluation, rows_of
from nupi.integrations.numbers import Numbers
from nupi.integrations.transformers.watching import loss_changed, outputs_of

if TYPE_CHECKING:
    from transformers import Trainer as _Base

    from nupi.constraints import Constraint
    from nupi.lagrangian import Lagrangian
else:
    _Base = object

FILE = "multipliers.nupi"  # in each checkpoint: the multipliers, and the state of the dual optimizer

ViolationsFunction: TypeAlias = Callable[[torch.nn.Module, Mapping[str, Any], Any], Mapping[str, Any]]


class ConstrainedMixin(_Base):  # type: ignore[misc]
    """Add constraints to any Trainer: `class MyTrainer(ConstrainedMixin, SFTTrainer)`.

    The model descends on the Lagrangian. The multipliers ascend once per optimizer step, on the violations of all its
    micro-batches and processes. The logged loss, `eval_loss` and all predictions are those of the Trainer without
    constraints. It also logs the Lagrangian, violations, multipliers and gains, and after an evaluation
    `eval_nupi_feasible`, `eval_nupi_violation` and `eval_nupi_score`.

    Args:
        args: passed to the Trainer, and so are all keyword arguments that are not named here.
        constraints: the constraints by name; or a `nupi.Lagrangian`, for a penalty or another `reduce`.
        violations: a function of the model, the batch and the model's outputs that returns the violation of each
            constraint, as for `Lagrangian.ascend`. The outputs are those of the first forward pass for the loss, with
            their graph. It is called in evaluations too, without a graph.
        dual: a dual optimizer, or a function that makes one from the multipliers, as `partial(nupi.NuPI, ki=0.1)`; by
            default `nupi.SelfTuned` with a quarter of the training's steps.
        tolerance: the largest violation that counts as met in evaluations: a number, or one for each constraint name.
        columns: columns of the data set that only `violations` needs. They stay in the batch; the model does not get
            them.

    Example:
        >>> import tempfile
        >>> from functools import partial
        >>> from transformers import Trainer, TrainingArguments
        >>> import nupi
        >>> class Regression(torch.nn.Linear):
        ...     def forward(self, x, labels):
        ...         answers = super().forward(x).squeeze(1)
        ...         return {"loss": (answers - labels).square().mean(), "answers": answers}
        >>> class ConstrainedRegression(ConstrainedMixin, Trainer):  # or trl.SFTTrainer, or one of your own
        ...     pass
        >>> def violations(model, inputs, outputs):  # the mean answer to group 1 is 0.5
        ...     return {"group 1": 0.5 - outputs["answers"][inputs["group"] == 1].mean()}
        >>> data = [{"x": torch.ones(2), "labels": 0.0, "group": i % 2} for i in range(64)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     trainer = ConstrainedRegression(
        ...         Regression(2, 1, bias=False),
        ...         TrainingArguments(folder, max_steps=4, save_strategy="no", report_to=[], use_cpu=True),
        ...         train_dataset=data,
        ...         constraints={"group 1": nupi.Equality()},
        ...         violations=violations,
        ...         dual=partial(nupi.NuPI, ki=0.1),
        ...         columns=["group"],  # for `violations`, not for the model
        ...     )
        ...     _ = trainer.train()  # it prints its progress
        {'train_runtime': ...}
        >>> bool(trainer.lagrangian.multipliers["group 1"] != 0)
        True
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_order(cls, ConstrainedMixin, "Trainer")

    def __init__(
        self,
        *args: Any,
        constraints: Mapping[str, Constraint] | Lagrangian,
        violations: ViolationsFunction,
        dual: Dual = None,
        tolerance: float | Mapping[str, float] = 0.0,
        columns: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        self.lagrangian = as_lagrangian(constraints)
        if not callable(violations):
            raise TypeError(
                f"violations must be a function of (model, inputs, outputs), but {violations!r} came"
            )
        check_dual(dual)
        if isinstance(columns, str):
            raise TypeError(f"columns must be a list of names, but {columns!r} came; use [{columns!r}]")
        self.violations, self.columns = violations, tuple(columns)
        self.dual = dual if isinstance(dual, torch.optim.Optimizer) else None
        self._dual_given: Dual = dual
        # The state from which every run with model_init starts.
        state = {} if self.dual is None else self.dual.state_dict()
        self._start: tuple[dict[str, Any], dict[str, Any]] = deepcopy((self.lagrangian.state_dict(), state))
        self._seen = Accumulator(self.lagrangian.constraints)
        self._evaluation = Evaluation(self.lagrangian, tolerance)
        self._measures = False  # whether an evaluation is running that measures violations
        self._numbers = Numbers(self.lagrangian)
        self._checkpoint: Path | None = None  # the file with the multipliers from which a run resumes
        super().__init__(*args, **kwargs)
        self.lagrangian.to(self.args.device)
        self.add_callback(_AtBegin(self))

    # --- training ---

    def training_step(self, model: torch.nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """One micro-batch; after the last one of an optimizer step the multipliers ascend."""
        batch, inputs = self._split(inputs)
        with (
            outputs_of(model, training=True) as outputs,
            loss_changed(self.accelerator, lambda loss: self._lagrangian_of(loss, batch, outputs)),
        ):
            before = self._seen.batches
            loss: torch.Tensor = super().training_step(model, inputs, *args, **kwargs)
        if self._seen.batches == before:
            raise RuntimeError(
                f"{type(self).__name__}.training_step did not call accelerator.backward, which is where nupi adds the "
                "constraints to the loss; its training_step must go through that of transformers.Trainer"
            )
        if self.accelerator.sync_gradients:
            assert self.dual is not None
            self.lagrangian.ascend(self.dual, self._seen.taken())
        return loss

    def _lagrangian_of(self, loss: torch.Tensor, batch: Any, outputs: list[Any]) -> torch.Tensor:
        """The Lagrangian of a micro-batch, divided as its loss is."""
        if not outputs:
            raise RuntimeError(
                f"{type(self).__name__}.compute_loss did not call the model that training_step gave it, so there are "
                "no outputs for `violations`; call model(**inputs) there"
            )
        violations = self._violations_of(batch, outputs[0])
        # Older versions divide by the same number even at the end of an epoch, where fewer micro-batches are left.
        batches = getattr(self, "current_gradient_accumulation_steps", self.args.gradient_accumulation_steps)
        value: torch.Tensor = self.lagrangian(loss * batches, violations)  # first: it refuses what is wrong
        self._seen.add(violations)
        self._numbers.note("nupi/lagrangian", value)
        return torch.div(value, batches)

    def _violations_of(self, batch: Any, outputs: Any) -> Any:
        """Call the user's function. If it needs a missing column, raise an error that says how to keep it."""
        try:
            return self.violations(self.model, batch, outputs)
        except KeyError as error:
            name = error.args[0] if error.args else None
            if not isinstance(name, str) or name in batch:
                raise
            raise KeyError(
                f"violations asked for {name!r}, but inputs has {', '.join(map(repr, batch))}. The Trainer removes "
                f"columns that the model does not take: to keep this one, give columns=[{name!r}]"
            ) from error

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log the Trainer's numbers, and in training also the Lagrangian, violations, multipliers and gains."""
        if "loss" in logs:
            numbers = self._numbers.taken()
            if "nupi/lagrangian" in numbers and self.args.world_size > 1:
                # All other numbers are the same on every rank. All ranks log, because they have taken the same steps.
                mine = torch.tensor(numbers["nupi/lagrangian"], device=self.args.device)
                numbers["nupi/lagrangian"] = self.accelerator.reduce(mine, "mean").item()
            logs = {**logs, **numbers}
        super().log(logs, *args, **kwargs)

    # --- evaluation ---

    def prediction_step(self, model: torch.nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate one batch and record its violations, or predict one batch."""
        batch, inputs = self._split(inputs)
        if not self._measures:
            return super().prediction_step(model, inputs, *args, **kwargs)
        with outputs_of(model, training=False) as outputs:
            result = super().prediction_step(model, inputs, *args, **kwargs)
        if outputs:
            with torch.no_grad():
                self._evaluation.add(self._violations_of(batch, outputs[0]), rows_of(batch))
        return result

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Return the Trainer's metrics, and whether the constraints are met."""
        before, self._measures = self._measures, True
        try:
            metrics: dict[str, float] = super().evaluate(*args, **kwargs)
        finally:
            self._measures = before
        return metrics

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,  # noqa: FBT001 - the Trainer's signature
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        """The Trainer's loop. Adds to its metrics whether the constraints are met, before they are logged."""
        self._evaluation.clear()
        output = super().evaluation_loop(
            dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
        )
        if self._measures and self._evaluation.batches:
            verdict = self._evaluation.metrics(output.metrics.get(f"{metric_key_prefix}_loss"))
            for name, value in verdict.items():
                separator = "/" if "/" in name else "_"
                output.metrics[f"{metric_key_prefix}_nupi{separator}{name}"] = value
        return output

    # --- saving and going on ---

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:  # noqa: FBT001
        """Train, or continue from a checkpoint with its multipliers and the state of its dual optimizer."""
        folder = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(self.args.output_dir)
        self._checkpoint = Path(folder) / FILE if folder else None
        if self._checkpoint is not None and not self._checkpoint.is_file():
            raise FileNotFoundError(
                f"{self._checkpoint} is missing, so the multipliers cannot continue from {folder}; was it written with "
                "save_only_model=True, or without constraints? Resume from a complete checkpoint, or load the model's "
                "weights in a new run"
            )
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def begin(self, steps: int) -> None:
        """Make the dual optimizer and load the checkpoint. Called when the model's optimizer is ready.

        Args:
            steps: the optimizer steps of the whole training.
        """
        self._seen.taken()  # drop what a run that ended between two micro-batches has left
        multipliers, state = self._start
        if self.model_init is not None and self._checkpoint is None:
            self.lagrangian.load_state_dict(multipliers)
            if isinstance(self._dual_given, torch.optim.Optimizer):
                self._dual_given.load_state_dict(deepcopy(state))
            else:
                self.dual = None
        if self.dual is None:
            # Accelerate wraps the optimizer, and hides its class.
            primal: Any = getattr(self.optimizer, "optimizer", self.optimizer)
            self.dual = make_dual(self._dual_given, self.lagrangian, steps, [primal])
        if self._checkpoint is not None:
            saved = load_checked(self._checkpoint)
            self.lagrangian.load_state_dict(saved["lagrangian"])
            self.dual.load_state_dict(saved["dual"])
            go_on(self.lagrangian, self.dual)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:  # noqa: FBT001, FBT002
        """Save the model. In a checkpoint from which a training can resume, also save the multipliers.

        They are written first, so they are there before the file that completes the checkpoint.
        """
        super().save_model(output_dir, _internal_call)
        checkpoint = _internal_call and output_dir is not None and self.is_in_train
        if checkpoint and self.args.should_save and not self.args.save_only_model and self.dual is not None:
            self.lagrangian.check()
            parts = {"lagrangian": self.lagrangian.state_dict(), "dual": self.dual.state_dict()}
            save_checked(Path(str(output_dir)) / FILE, parts)

    # --- columns ---

    def _set_signature_columns_if_needed(self) -> None:
        """Keep the columns of `violations`. The Trainer has no public way to keep a column that is not a label."""
        super()._set_signature_columns_if_needed()
        kept: list[str] = self._signature_columns
        kept += [name for name in self.columns if name not in kept]

    def _split(self, inputs: Any) -> tuple[Any, Any]:
        """The batch for `violations`, and the batch for the model without its extra columns."""
        batch = send_to_device(inputs, self.args.device)
        if not isinstance(inputs, Mapping):
            return batch, inputs
        if self.columns:
            inputs = {name: value for name, value in inputs.items() if name not in self.columns}
        return dict(batch), inputs  # a copy, because a Trainer may remove the labels from its own


class _AtBegin(TrainerCallback):  # type: ignore[misc]
    """Tells the mixin that the model's optimizer is ready, and how many steps there will be."""

    def __init__(self, trainer: ConstrainedMixin) -> None:
        self._trainer = trainer

    def on_train_begin(self, _: Any, state: Any, __: Any, **___: Any) -> None:
        self._trainer.begin(state.max_steps)
