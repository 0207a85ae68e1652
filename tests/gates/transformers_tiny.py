"""Transformers with random weights, tiny, each with an input."""

import torch
import transformers
from torch import nn

HIDDEN, HEADS, UNITS = 32, 4, 48
WORDS = torch.randint(0, 50, (2, 7), generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
ENDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}


def bert():
    config = transformers.BertConfig(
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        intermediate_size=UNITS,
        vocab_size=50,
    )
    return transformers.BertForSequenceClassification(config), WORDS


def distilbert():
    config = transformers.DistilBertConfig(
        dim=HIDDEN, n_layers=2, n_heads=HEADS, hidden_dim=UNITS, vocab_size=50
    )
    return transformers.DistilBertForSequenceClassification(config), WORDS


def gpt2():
    config = transformers.GPT2Config(
        n_embd=HIDDEN, n_layer=2, n_head=HEADS, n_inner=UNITS, vocab_size=50, n_positions=32, **ENDS
    )
    return transformers.GPT2LMHeadModel(config), WORDS


def llama():
    config = transformers.LlamaConfig(
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=HEADS,
        intermediate_size=UNITS,
        vocab_size=50,
        **ENDS,
    )
    return transformers.LlamaForCausalLM(config), WORDS


def vit():
    config = transformers.ViTConfig(
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        intermediate_size=UNITS,
        image_size=16,
        patch_size=4,
    )
    return transformers.ViTForImageClassification(config), IMAGES


TRANSFORMERS = [bert, distilbert, gpt2, llama, vit]
# The configs that have a size of heads; that of ViT since transformers 5.
VERSION = int(transformers.__version__.split(".")[0])
SAYS_HEADS = ("llama", "vit") if VERSION >= 5 else ("llama",)


def lived_in(model):
    """Biases and norms as after a training: a leak would show."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() == 1:
                nn.init.normal_(
                    parameter,
                    1.0 if "norm" in type(module).__name__.lower() and name == "weight" else 0.0,
                    0.3,
                )
    return model
