"""Harvested transformers, saved by `save_pretrained` and loaded as other classes than the one that was saved."""

import pytest
import torch
import transformers
from gates.transformers_tiny import TRANSFORMERS, gpt2, lived_in
from safetensors.torch import load_file, save_file

from nupi import gates

OTHER_HEADS = {
    "bert": transformers.BertForTokenClassification,
    "distilbert": transformers.DistilBertForTokenClassification,
    "gpt2": transformers.GPT2ForSequenceClassification,
    "llama": transformers.LlamaForSequenceClassification,
    "vit": transformers.ViTForImageClassification,
}


def harvested(build):
    torch.manual_seed(0)
    model, example = build()
    gates.attach_transformer(lived_in(model))
    return closed(model, example), example


def closed(model, example):
    with torch.no_grad():
        for phi in gates.gate_parameters(model):
            phi.copy_(torch.randn_like(phi) * 2 - 1.6)
    return gates.harvest(model, example, repeats=1).model


@pytest.mark.parametrize("build", TRANSFORMERS, ids=lambda build: build.__name__)
def test_a_harvested_model_is_loaded_by_base_class_auto_class_and_with_another_head(build, tmp_path):
    small, example = harvested(build)
    small.save_pretrained(tmp_path)
    expected = small.base_model(example)[0]
    for model_class in (
        type(small.base_model),
        transformers.AutoModel,
        OTHER_HEADS[build.__name__],
    ):
        loaded = gates.from_pretrained(model_class, tmp_path).eval()
        assert model_class is transformers.AutoModel or type(loaded) is model_class
        torch.testing.assert_close(loaded.base_model(example)[0], expected)


@pytest.mark.parametrize("build", TRANSFORMERS, ids=lambda build: build.__name__)
def test_a_base_model_is_harvested_twice_and_gets_a_head(build, tmp_path):
    """Nothing but names tells a base model's layers from those of a model with a head: one set must be kept."""
    small, example = harvested(build)
    base = small.base_model
    gates.attach_transformer(base)
    twice = closed(base, example)
    twice.save_pretrained(tmp_path)
    loaded = gates.from_pretrained(OTHER_HEADS[build.__name__], tmp_path).eval()
    torch.testing.assert_close(loaded.base_model(example)[0], twice(example)[0])


def test_an_auto_class_gives_the_class_that_the_config_stands_for(tmp_path):
    small, example = harvested(gpt2)
    small.save_pretrained(tmp_path)
    loaded, info = gates.from_pretrained(
        transformers.AutoModelForCausalLM, tmp_path, output_loading_info=True
    )
    assert type(loaded) is type(small)
    assert not info["missing_keys"]
    torch.testing.assert_close(loaded.eval()(example).logits, small(example).logits)


def test_weights_that_were_harvested_and_are_not_there_are_an_error(tmp_path):
    small, _ = harvested(gpt2)
    small.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["transformer.h.1.mlp.c_fc.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"no weights for 'transformer\.h\.1\.mlp\.c_fc\.weight'"):
        gates.from_pretrained(type(small), tmp_path)


def test_a_class_that_lacks_the_layers_is_refused(tmp_path):
    small, _ = harvested(gpt2)
    small.config.harvested = {"decoder.layer.0": 1}
    small.save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=r"'decoder\.layer\.0' was harvested, which a GPT2Model does not have"
    ):
        gates.from_pretrained(transformers.GPT2Model, tmp_path)
    with pytest.raises(TypeError, match="must be the class of a model"):
        gates.from_pretrained(transformers.GPT2Config, tmp_path)
