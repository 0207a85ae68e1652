"""Harvested transformers, saved, and loaded by nupi, as other classes, and by transformers alone."""

import copy
import io

import pytest
import torch
import transformers
from gates.transformers_tiny import SAYS_HEADS, TRANSFORMERS, VERSION, bert, gpt2, lived_in
from safetensors.torch import load_file, save_file

from nupi import gates

OTHER_HEADS = {
    "bert": transformers.BertForTokenClassification,
    "distilbert": transformers.DistilBertForTokenClassification,
    "gpt2": transformers.GPT2ForSequenceClassification,
    "llama": transformers.LlamaForSequenceClassification,
    "vit": transformers.ViTForImageClassification,
}


AUTO_OTHER_HEADS = {
    "bert": transformers.AutoModelForTokenClassification,
    "distilbert": transformers.AutoModelForTokenClassification,
    "gpt2": transformers.AutoModelForSequenceClassification,
    "llama": transformers.AutoModelForSequenceClassification,
    "vit": transformers.AutoModelForImageClassification,
}
AUTO_CLASSES = {
    "bert": transformers.AutoModelForSequenceClassification,
    "distilbert": transformers.AutoModelForSequenceClassification,
    "gpt2": transformers.AutoModelForCausalLM,
    "llama": transformers.AutoModelForCausalLM,
    "vit": transformers.AutoModelForImageClassification,
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


def with_widths(build, heads=None, units=None):
    """Harvested with so many heads and units in all blocks."""
    torch.manual_seed(0)
    model, example = build()
    return gates.harvest(with_gates(lived_in(model), heads, units), example, repeats=1).model, example


def with_gates(model, heads=None, units=None):
    """With so many open in all blocks, each block its own."""
    gates.attach_transformer(model, heads=heads and "*", mlps=units and "*")
    for layer in gates.gated_layers(model).values():
        phi = layer.gate.log_alpha.data.fill_(2.0)
        phi[torch.randperm(len(phi))[heads if layer.size > 1 else units :]] = -5.0
    return model


@pytest.mark.parametrize(
    ("build", "heads"),
    [
        (each, count)
        for each in TRANSFORMERS
        for count in (None, 2)
        if not count or each.__name__ in SAYS_HEADS
    ],
)
def test_equal_widths_are_said_by_the_config_and_the_class_itself_loads_them(build, heads, tmp_path):
    small, example = with_widths(build, heads, units=20)
    assert not hasattr(small.config, "harvested")
    small.save_pretrained(tmp_path)
    for model_class in (type(small), AUTO_CLASSES[build.__name__]):
        again = model_class.from_pretrained(tmp_path).eval()
        assert type(again) is type(small)
        torch.testing.assert_close(again(example).logits, small(example).logits, rtol=0, atol=0)
    again = gates.from_pretrained(type(small), tmp_path).eval()
    torch.testing.assert_close(again(example).logits, small(example).logits, rtol=0, atol=0)


@pytest.mark.parametrize("build", TRANSFORMERS, ids=lambda build: build.__name__)
def test_a_number_of_heads_that_the_config_cannot_say_is_noted_by_block(build):
    """Three of Llama's four groups are six heads. Since transformers 5, its width must be a multiple of these."""
    small, _ = with_widths(build, heads=3)
    assert hasattr(small.config, "harvested") == (
        build.__name__ not in SAYS_HEADS or (build.__name__ == "llama" and VERSION >= 5)
    )


@pytest.fixture(scope="module")
def _code_folder(tmp_path_factory):
    """Where transformers copies code to that comes with a model: not into the user's home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path_factory.mktemp("code"))
        )
        yield


@pytest.mark.usefixtures("_code_folder")
@pytest.mark.parametrize("build", TRANSFORMERS, ids=lambda build: build.__name__)
def test_transformers_alone_loads_what_comes_with_its_code(build, tmp_path):
    small, example = harvested(build)
    gates.save_pretrained(small, tmp_path)
    assert "nupi" not in "".join(
        line for line in (tmp_path / "modeling_harvested.py").read_text().splitlines() if "import" in line
    )
    again = AUTO_CLASSES[build.__name__].from_pretrained(tmp_path, trust_remote_code=True).eval()
    torch.testing.assert_close(again(example).logits, small(example).logits, rtol=0, atol=0)
    base = transformers.AutoModel.from_pretrained(tmp_path, trust_remote_code=True).eval()
    torch.testing.assert_close(base(example)[0], small.base_model(example)[0], rtol=0, atol=0)
    base.save_pretrained(tmp_path / "again")
    base = transformers.AutoModel.from_pretrained(tmp_path / "again", trust_remote_code=True).eval()
    torch.testing.assert_close(base(example)[0], small.base_model(example)[0], rtol=0, atol=0)
    other = AUTO_OTHER_HEADS[build.__name__].from_pretrained(tmp_path, trust_remote_code=True).eval()
    torch.testing.assert_close(other.base_model(example)[0], small.base_model(example)[0], rtol=0, atol=0)
    ours = gates.from_pretrained(type(small), tmp_path).eval()
    assert type(ours) is type(small)
    torch.testing.assert_close(ours(example).logits, small(example).logits, rtol=0, atol=0)


def from_disk(model, folder):
    model.save_pretrained(folder)
    return gates.from_pretrained(type(model), folder)


@pytest.mark.usefixtures("_code_folder")
@pytest.mark.parametrize(
    "passed_on",
    [lambda model, _: model, lambda model, _: copy.deepcopy(model), from_disk],
    ids=["as it is", "copied", "loaded"],
)
@pytest.mark.parametrize("build", [bert, gpt2], ids=lambda build: build.__name__)
def test_the_own_method_of_a_harvested_model_saves_what_loads_it(build, passed_on, tmp_path):
    """Of what is saved, the weights are those of the model that saves: a copy that was changed saves itself."""
    small, example = harvested(build)
    model = passed_on(small, tmp_path / "before").eval()
    with torch.no_grad():
        model.base_model.get_input_embeddings().weight.add_(0.1)
    model.save_pretrained(tmp_path / "after")
    again = AUTO_CLASSES[build.__name__].from_pretrained(tmp_path / "after", trust_remote_code=True).eval()
    torch.testing.assert_close(again(example).logits, model(example).logits, rtol=0, atol=0)


def test_a_pickle_of_a_harvested_model_does_not_name_nupi(tmp_path):
    small, example = harvested(gpt2)
    stream = io.BytesIO()
    torch.save(small, stream)
    assert b"nupi" not in stream.getvalue()
    stream.seek(0)
    again = torch.load(stream, weights_only=False)
    torch.testing.assert_close(again(example).logits, small(example).logits, rtol=0, atol=0)
    gates.save_pretrained(again, tmp_path)
    assert (tmp_path / "modeling_harvested.py").exists()


@pytest.mark.usefixtures("_code_folder")
def test_a_plain_model_is_loaded_after_one_with_code(tmp_path):
    """Before version 5, the auto class of transformers takes the class of the first for the second too."""
    small, example = harvested(bert)
    small.save_pretrained(tmp_path / "small")
    AUTO_CLASSES["bert"].from_pretrained(tmp_path / "small", trust_remote_code=True)
    plain = bert()[0].eval()
    plain.save_pretrained(tmp_path / "plain")
    again = AUTO_CLASSES["bert"].from_pretrained(tmp_path / "plain").eval()
    torch.testing.assert_close(again(example).logits, plain(example).logits, rtol=0, atol=0)


@pytest.mark.usefixtures("_code_folder")
def test_what_was_loaded_with_its_code_is_harvested_again(tmp_path):
    small, example = harvested(bert)
    small.save_pretrained(tmp_path / "once")
    model = AUTO_CLASSES["bert"].from_pretrained(tmp_path / "once", trust_remote_code=True)
    gates.attach_transformer(model)
    with torch.no_grad():
        for phi in gates.gate_parameters(model):
            phi[-1] = -5.0
    twice = gates.harvest(model, example, repeats=1).model
    assert twice.num_parameters() < small.num_parameters()
    twice.save_pretrained(tmp_path / "twice")
    again = AUTO_CLASSES["bert"].from_pretrained(tmp_path / "twice", trust_remote_code=True).eval()
    torch.testing.assert_close(again(example).logits, twice(example).logits, rtol=0, atol=0)


def test_one_process_of_many_writes_the_code_and_a_push_is_refused_in_words(tmp_path):
    small, _ = harvested(gpt2)
    small.save_pretrained(tmp_path, is_main_process=False)
    assert not (tmp_path / "modeling_harvested.py").exists()
    with pytest.raises(ValueError, match=r"push_to_hub=True would .* call model\.push_to_hub"):
        small.save_pretrained(tmp_path, push_to_hub=True)


@pytest.mark.parametrize("widths", [{"units": 20}, {"heads": 2}], ids=["MLPs alone", "heads"])
def test_a_harvest_says_how_to_load_what_its_config_cannot_describe(widths):
    torch.manual_seed(0)
    model, example = gpt2()
    made = gates.harvest(with_gates(model, **widths), example, repeats=1)
    assert ("trust_remote_code=True, or with nupi.gates.from_pretrained" in str(made)) == ("heads" in widths)


def test_no_code_is_saved_where_none_is_needed(tmp_path):
    small, _ = with_widths(gpt2, units=20)
    gates.save_pretrained(small, tmp_path)
    assert not (tmp_path / "modeling_harvested.py").exists()
    with pytest.raises(TypeError, match=r"not one of transformers; use torch\.save"):
        gates.save_pretrained(torch.nn.Linear(2, 2), tmp_path)
