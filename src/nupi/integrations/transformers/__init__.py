"""Constraints for the Trainer of Hugging Face, and for trainers built on it, such as TRL's.

    trainer = ConstrainedTrainer(model, args, train_dataset=data, constraints={"rate": nupi.Inequality()},
                                 violations=lambda model, inputs, outputs: {"rate": ...})
    trainer.train()

`ConstrainedMixin` does the same in front of any other trainer: `class MyTrainer(ConstrainedMixin, SFTTrainer)`.
"""

try:
    import transformers as _transformers  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"nupi.integrations.transformers needs transformers and accelerate ({error}); "
        "install them with `pip install nupi[transformers]`"
    ) from error

from nupi.integrations.transformers.mixin import ConstrainedMixin
from nupi.integrations.transformers.trainer import ConstrainedTrainer

__all__ = ["ConstrainedMixin", "ConstrainedTrainer"]
