"""Constraints for Lightning, as `lightning` or as `pytorch_lightning`: a callback, and a mixin that adds it.

class Classifier(ConstrainedMixin, L.LightningModule):
    def __init__(self):
        super().__init__(constraints={"rate": nupi.Inequality()})
        ...

    def training_step(self, batch, _):
        ...
        return self.lagrangian(loss, {"rate": rate - 0.3})
"""

from __future__ import annotations

import importlib
import warnings
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from nupi.integrations.accumulation import Accumulator
from nupi.integrations.duals import Dual, as_lagrangian, check_dual, check_order, go_on, make_dual
from nupi.integrations.evaluation import Evaluation, rows_of
from nupi.integrations.numbers import Numbers
from nupi.lagrangian import Lagrangian

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.utils.hooks import RemovableHandle

    from nupi.constraints import Constraint

__all__ = ["ConstrainedCallback", "ConstrainedMixin"]

# Each package has its own classes, and its Trainer accepts only these, so the callback inherits from both.
_PACKAGES = [name for name in ("lightning", "pytorch_lightning") if find_spec(name) is not None]
if not _PACKAGES:
    raise ImportError(
        "nupi.integrations.lightning needs lightning or pytorch_lightning; "
        "install it with `pip install nupi[lightning]`"
    )
_CALLBACKS: list[Any] = [
    importlib.import_module("lightning.pytorch" if name == "lightning" else name).Callback
    for name in _PACKAGES
]


class ConstrainedCallback(*_CALLBACKS):  # type: ignore[misc]
    """Move the multipliers of a LightningModule that calls a `nupi.Lagrangian` in its steps.

    It records every call of `self.lagrangian(loss, violations)`. Before each optimizer step the multipliers ascend on
    the average violation of the micro-batches since the last step, with automatic and with manual optimization. The
    checkpoint has the state of the dual optimizer in the callback's state, and the multipliers in the module's. After a
    validation in which the Lagrangian was called, it logs `val_nupi_feasible`, `val_nupi_violation` and
    `val_nupi_score`, for checkpoints and early stopping. After a test it logs `test_nupi_feasible` and so on.

    Args:
        dual: a dual optimizer, or a function that makes one from the multipliers, as `partial(nupi.NuPI, ki=0.1)`; by
            default `nupi.SelfTuned` with a quarter of the training's steps.
        tolerance: the largest violation that counts as met in a validation: a number, or one for each constraint name.
        prog_bar: whether the progress bar shows violations and multipliers.

    Example:
        >>> from functools import partial
        >>> import lightning as L
        >>> import nupi
        >>> class Mean(L.LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.x = torch.nn.Parameter(torch.tensor(2.0))
        ...         self.lagrangian = nupi.Lagrangian({"small": nupi.Inequality()}, reduce="mean")
        ...
        ...     def training_step(self, batch, _):
        ...         return self.lagrangian((self.x - batch).square().mean(), {"small": self.x - 1})  # x <= 1
        ...
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD([self.x], lr=0.1)
        >>> module, callback = Mean(), ConstrainedCallback(partial(nupi.NuPI, ki=0.3, kp=1.0))
        >>> quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        >>> quiet["enable_checkpointing"] = False
        >>> trainer = L.Trainer(callbacks=[callback], max_epochs=100, accelerator="cpu", **quiet)
        >>> trainer.fit(module, torch.full((1, 4), 2.0))  # without the constraint, x would be 2
        >>> round(module.x.item(), 2)
        1.0
    """

    def __init__(
        self, dual: Dual = None, *, tolerance: float | Mapping[str, float] = 0.0, prog_bar: bool = True
    ) -> None:
        super().__init__()
        check_dual(dual)
        self.dual = dual if isinstance(dual, torch.optim.Optimizer) else None
        self.tolerance, self.prog_bar = tolerance, prog_bar
        self._given: Dual = dual
        self._lagrangian: Lagrangian | None = None
        self._handles: list[RemovableHandle] = []
        self._state: dict[str, Any] | None = None  # from the checkpoint, until the dual optimizer exists
        self._rows = 1
        self._waiting: dict[str, Any] | None = (
            None  # violations of a step that evaluates its objective several times
        )
        self._step = -1  # the number of the last step in which the multipliers have ascended
        self._trained = False  # whether a backward pass has gone through the Lagrangian's result
        self._in_vain = 0  # batches whose result no backward pass has gone through
        self._told = False  # that training_step does not call the Lagrangian

    # --- the beginning and the end ---

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Find the Lagrangian and listen to its calls."""
        lagrangian = _the_lagrangian(pl_module)
        if lagrangian is not self._lagrangian:
            self._lagrangian = lagrangian
            self._seen = Accumulator(lagrangian.constraints)
            self._evaluation = Evaluation(lagrangian, self.tolerance)
            self._numbers = Numbers(lagrangian)
        self.teardown(trainer, pl_module, stage)  # a run that ended in an error may have left its hook behind

        def hear(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: torch.Tensor) -> None:
            given = dict(zip(("loss", "violations"), args, strict=False)) | kwargs
            self._hear(trainer, given["loss"], given["violations"], value)

        self._handles.append(lagrangian.register_forward_hook(hear, with_kwargs=True))

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002 - Lightning's signature
        """Stop listening."""
        while self._handles:
            self._handles.pop().remove()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning's signature
        """Make the dual optimizer, and load its state from the checkpoint."""
        assert self._lagrangian is not None
        self._seen.taken()  # drop what a run that ended between two micro-batches has left
        self._waiting, self._step = None, -1
        if self.dual is None:
            self.dual = make_dual(self._given, self._lagrangian, _steps(trainer), list(trainer.optimizers))
        if self._state is not None:
            self.dual.load_state_dict(self._state)
            go_on(self._lagrangian, self.dual)
            self._state = None
        elif trainer.ckpt_path is not None:
            raise RuntimeError(
                f"{trainer.ckpt_path} has no state of a dual optimizer, so multipliers cannot continue from it; was "
                "it written without ConstrainedCallback? Resume from another, or load its weights in a new run"
            )

    # --- training ---

    def _hear(self, trainer: Any, loss: torch.Tensor, violations: Any, value: torch.Tensor) -> None:
        if trainer.training and torch.is_grad_enabled():
            if trainer.global_step == self._step:
                return  # another call of the closure in the same step, as by LBFGS
            if not self._trained and value.requires_grad:
                value.register_hook(self._note_backward)
            self._seen.add(violations)
            self._numbers.note("nupi/loss", loss)
            self._numbers.note("nupi/lagrangian", value)
        elif trainer.validating or trainer.testing:
            self._evaluation.add(violations, self._rows, loss)

    def _note_backward(self, _: torch.Tensor) -> None:
        self._trained = True

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Ascend on the violations since the last step, and log; once per step, however often it calls its closure."""
        if not self._seen.batches:
            return  # an optimizer that has no part in the Lagrangian, or the closure again
        self._ascend_on_the_waiting(pl_module)
        self._step, self._waiting = trainer.global_step, self._seen.taken()
        if not isinstance(optimizer, torch.optim.LBFGS):
            self._ascend_on_the_waiting(pl_module)

    def on_train_batch_end(
        self,
        trainer: Any,  # noqa: ARG002 - Lightning's signature
        pl_module: Any,
        outputs: Any,  # noqa: ARG002
        batch: Any,  # noqa: ARG002
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        """Ascend after a step of LBFGS: within it, all evaluations need the same multipliers."""
        self._ascend_on_the_waiting(pl_module)
        if self._step >= 0 and not self._trained:
            self._in_vain += 1
            if self._in_vain == 2:  # a single step may have been skipped on purpose
                warnings.warn(
                    "training_step has called the Lagrangian, but no backward pass went through its result, so no "
                    "constraint has an effect; return what self.lagrangian(loss, violations) gives, and not the loss",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning's signature
        """Warn if no step has used the Lagrangian, so that the constraints have no effect."""
        if self._step < 0 and not self._seen.batches and not self._told:
            self._told = True
            warnings.warn(
                "training_step has not called the Lagrangian, so no constraint has an effect; "
                "return self.lagrangian(loss, violations) in place of the loss",
                RuntimeWarning,
                stacklevel=2,
            )

    def _ascend_on_the_waiting(self, pl_module: Any) -> None:
        if self._waiting is None:
            return
        assert self._lagrangian is not None
        assert self.dual is not None
        violations, self._waiting = self._waiting, None
        self._lagrangian.ascend(self.dual, violations)
        shown = ("/violation", "/multiplier")
        for name, number in self._numbers.taken().items():
            pl_module.log(name, number, prog_bar=self.prog_bar and name.endswith(shown), on_step=True)

    # --- validation and test ---

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning's signature
        """Start a new evaluation of the constraints."""
        self._evaluation.clear()

    def on_validation_batch_start(
        self,
        trainer: Any,  # noqa: ARG002 - Lightning's signature
        pl_module: Any,  # noqa: ARG002
        batch: Any,
        batch_idx: int,  # noqa: ARG002
        dataloader_idx: int = 0,  # noqa: ARG002
    ) -> None:
        """Note the number of rows of this batch."""
        self._rows = rows_of(batch)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Log whether the constraints are met."""
        self._log_verdict(pl_module, "val")

    on_test_start = on_validation_start
    on_test_batch_start = on_validation_batch_start

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Log whether the constraints are met."""
        self._log_verdict(pl_module, "test")

    def _log_verdict(self, pl_module: Any, prefix: str) -> None:
        if not self._evaluation.batches:
            return
        for name, value in self._evaluation.metrics().items():
            separator = "/" if "/" in name else "_"
            # All ranks already have the same number, and each needs it to choose a checkpoint.
            pl_module.log(f"{prefix}_nupi{separator}{name}", value, batch_size=1)

    # --- saving and going on ---

    def state_dict(self) -> dict[str, Any]:
        """The state of the dual optimizer."""
        if self.dual is None:
            return {} if self._state is None else {"dual": self._state}
        if self._lagrangian is not None:
            self._lagrangian.check()
        return {"dual": self.dual.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state until training starts: Lightning has no optimizers yet."""
        self._state = state_dict.get("dual")


class ConstrainedMixin:
    """A LightningModule with constraints: `class Classifier(ConstrainedMixin, L.LightningModule)`.

    It has `self.lagrangian`. Call it in `training_step`, and in `validation_step` to measure feasibility there. It adds
    a `ConstrainedCallback`, which does the rest. A module with its own callbacks adds them to
    `super().configure_callbacks()`.

    Args:
        args: passed to the LightningModule, and so are all keyword arguments that are not named here.
        constraints: the constraints by name; or a `nupi.Lagrangian`, for a penalty or another `reduce`.
        dual: as for `ConstrainedCallback`.
        tolerance: as for `ConstrainedCallback`.
        prog_bar: as for `ConstrainedCallback`.

    Example:
        >>> from functools import partial
        >>> import lightning as L
        >>> import nupi
        >>> class Mean(ConstrainedMixin, L.LightningModule):
        ...     def __init__(self):
        ...         super().__init__(constraints={"small": nupi.Inequality()}, dual=partial(nupi.NuPI, ki=0.3, kp=1.0))
        ...         self.x = torch.nn.Parameter(torch.tensor(2.0))
        ...
        ...     def training_step(self, batch, _):
        ...         return self.lagrangian((self.x - batch).square().mean(), {"small": self.x - 1})  # x <= 1
        ...
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD([self.x], lr=0.1)
        >>> quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        >>> quiet["enable_checkpointing"] = False
        >>> trainer, module = L.Trainer(max_epochs=100, accelerator="cpu", **quiet), Mean()
        >>> trainer.fit(module, torch.full((1, 4), 2.0))  # without the constraint, x would be 2
        >>> round(module.x.item(), 2), round(module.lagrangian.multipliers["small"].item(), 1)
        (1.0, 2.0)
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_order(cls, ConstrainedMixin, "LightningModule")

    def __init__(
        self,
        *args: Any,
        constraints: Mapping[str, Constraint] | Lagrangian,
        dual: Dual = None,
        tolerance: float | Mapping[str, float] = 0.0,
        prog_bar: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        # The first submodule, so that if it refuses a checkpoint, nothing else has been loaded.
        self.lagrangian = as_lagrangian(constraints)
        self._constrained = ConstrainedCallback(dual, tolerance=tolerance, prog_bar=prog_bar)

    @property
    def dual(self) -> torch.optim.Optimizer | None:
        """The dual optimizer; None before the first training, unless it was given."""
        return self._constrained.dual

    def configure_callbacks(self) -> Any:
        """The module's own callbacks, and the one that moves the multipliers."""
        return [*super().configure_callbacks(), self._constrained]  # type: ignore[misc]


def _the_lagrangian(module: torch.nn.Module) -> Lagrangian:
    found = [name for name, part in module.named_modules() if isinstance(part, Lagrangian)]
    if len(found) != 1:
        names = ", ".join(map(repr, found)) or "none"
        raise ValueError(
            f"{type(module).__name__} must have one nupi.Lagrangian among its parts, but it has {names}; set "
            "self.lagrangian = nupi.Lagrangian(...) in __init__, and put all constraints into one"
        )
    lagrangian = module.get_submodule(found[0])
    assert isinstance(lagrangian, Lagrangian)
    return lagrangian


def _steps(trainer: Any) -> int:
    """The optimizer steps of the whole training."""
    steps = trainer.estimated_stepping_batches
    if steps == float("inf"):
        raise ValueError(
            "the training has no end (max_steps=-1 and max_epochs=-1), so dual has no default; give "
            "dual=lambda multipliers: nupi.SelfTuned(multipliers, steps=...)"
        )
    return int(steps)
