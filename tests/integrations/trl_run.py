"""Tiny random models, an in-memory tokenizer and data for TRL's trainers, with constraints in front of them."""

import torch
from datasets import Dataset
from integrations import trainer_run
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

import nupi
from nupi.integrations.transformers import ConstrainedMixin

WORDS = [f"w{i}" for i in range(24)]
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]


class ConstrainedSFT(ConstrainedMixin, SFTTrainer):
    pass


class ConstrainedDPO(ConstrainedMixin, DPOTrainer):
    pass


def tokenizer():
    words = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(SPECIAL + WORDS)}, unk_token=SPECIAL[3])
    )
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = ("pad_token", "bos_token", "eos_token", "unk_token")
    return PreTrainedTokenizerFast(tokenizer_object=words, **dict(zip(names, SPECIAL, strict=True)))


def model(seed=0):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(SPECIAL + WORDS),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config)


def sentences(rows, length, seed, low=0):
    numbers = torch.randint(low, 24, (rows, length), generator=torch.Generator().manual_seed(seed))
    return [" ".join(WORDS[i] for i in row) for row in numbers.tolist()]


def token_nll(_, inputs, outputs):
    """The loss of SFT again, from what the model returned: newer versions return the log-probabilities themselves."""
    if getattr(outputs, "log_probs", None) is not None:
        return -outputs.log_probs.sum() / outputs.label_mask.sum()
    labels = inputs["labels"][:, 1:]
    return torch.nn.functional.cross_entropy(outputs.logits[:, :-1].transpose(1, 2), labels)


def at_least(*args):
    return {"memory": 3.4 - token_nll(*args)}


def sure(_, __, outputs):
    """How sure the model is of its next tokens, which DPO alone does not care for."""
    if getattr(outputs, "entropy", None) is not None:
        entropy = outputs.entropy.sum() / outputs.label_mask.sum()
    else:
        entropy = torch.distributions.Categorical(logits=outputs.logits).entropy().mean()
    return {"entropy": entropy - 3.2}


# Since transformers 5.23 it has another name.
CHECKPOINTING = "activation_checkpointing"
if not hasattr(SFTConfig, CHECKPOINTING):
    CHECKPOINTING = "gradient_checkpointing"


def options(folder, steps, k, *, checkpointing=False):
    return {
        "output_dir": str(folder),
        "max_steps": steps,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 8,
        "gradient_accumulation_steps": k,
        CHECKPOINTING: checkpointing,
        f"{CHECKPOINTING}_kwargs": {"use_reentrant": False},
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": 2,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
        "max_length": 16,
    }


def constrained(name, violations, trainer, dual):
    if not issubclass(trainer, ConstrainedMixin):
        return {}
    return {"constraints": {name: nupi.Inequality()}, "violations": violations, "dual": dual}


def sft(folder, steps, k=1, trainer=ConstrainedSFT, violations=at_least, dual=trainer_run.NUPI, **more):
    return trainer(
        model=model(),
        args=SFTConfig(**options(folder, steps, k, **more)),
        train_dataset=Dataset.from_dict({"text": sentences(32, 8, seed=0)}),
        eval_dataset=Dataset.from_dict({"text": sentences(16, 8, seed=1)}),
        processing_class=tokenizer(),
        **constrained("memory", violations, trainer, dual),
    )


def dpo(folder, steps, k=1, trainer=ConstrainedDPO, violations=sure, dual=trainer_run.NUPI):
    data = [
        Dataset.from_dict(
            {
                "prompt": sentences(rows, 3, seed=seed),
                "chosen": [f" {text}" for text in sentences(rows, 4, seed=seed + 1)],
                "rejected": [f" {text}" for text in sentences(rows, 4, seed=seed + 2, low=12)],
            }
        )
        for rows, seed in ((32, 0), (16, 5))
    ]
    return trainer(
        model=model(),
        ref_model=model(seed=1),
        args=DPOConfig(**options(folder, steps, k)),
        train_dataset=data[0],
        eval_dataset=data[1],
        processing_class=tokenizer(),
        **constrained("entropy", violations, trainer, dual),
    )
