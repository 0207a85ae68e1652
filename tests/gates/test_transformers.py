"""Gates on the heads and MLP units of transformers: exact harvests, sizes by a re-count, saving and loading."""

import copy

import pytest
import torch
from gates.transformers_tiny import HEADS, TRANSFORMERS, UNITS, bert, gpt2, lived_in, llama
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from nupi import gates
from nupi.gates.budgets import latency


def gated(build, seed=0):
    torch.manual_seed(seed)
    model, example = build()
    gates.attach_transformer(lived_in(model))
    with torch.no_grad():
        for phi in gates.gate_parameters(model):
            phi.copy_(torch.randn_like(phi) * 2 - 1.6)
    return model.eval(), example


@pytest.mark.parametrize("build", TRANSFORMERS, ids=lambda build: build.__name__)
def test_a_harvest_is_smaller_and_computes_the_same(build):
    model, example = gated(build)
    small = gates.harvest(model, example, repeats=1)
    torch.testing.assert_close(small.model(example).logits, model(example).logits, rtol=1e-5, atol=1e-5)
    assert type(small.model) is type(build()[0])
    assert small.after.parameters < small.before.parameters
    assert not any(isinstance(module, gates.Gated) for module in small.model.modules())
    open_gates = sum(int(layer.gate.is_open().sum()) for layer in gates.gated_layers(model).values())
    assert 0 < open_gates < 2 * (HEADS + UNITS)


@pytest.mark.parametrize("unit", ["parameters", "flops"])
@pytest.mark.parametrize("build", TRANSFORMERS, ids=lambda build: build.__name__)
def test_the_realised_share_is_a_re_count_of_the_harvested_model(build, unit):
    model, example = gated(build)
    plain = build()[0].eval()
    budget = gates.budget(model, example, **{unit: 1.0})
    small = gates.harvest(model, example, repeats=1).model
    share = counted(small, example, unit) / counted(plain, example, unit)
    assert budget.realised().item() == pytest.approx(share, rel=1e-5)


def counted(model, example, unit):
    if unit == "parameters":
        return sum(each.numel() for each in model.parameters())
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(example)
    return counter.get_total_flops()


def test_a_block_whose_gates_are_all_closed_keeps_one_head_and_one_unit():
    model, example = gated(gpt2)
    with torch.no_grad():
        for phi in gates.gate_parameters(model):
            phi.fill_(-9.0)
    budget = gates.budget(model, example, flops=1.0)
    small = gates.harvest(model, example, repeats=1).model
    share = counted(small, example, "flops") / counted(gpt2()[0].eval(), example, "flops")
    assert budget.realised().item() == pytest.approx(share, rel=1e-5)
    assert budget.smallest == pytest.approx(share, rel=1e-5)


@pytest.mark.parametrize("build", TRANSFORMERS, ids=lambda build: build.__name__)
def test_a_harvested_model_is_saved_and_loaded(build, tmp_path):
    model, example = gated(build)
    small = gates.harvest(model, example, repeats=1).model
    small.save_pretrained(tmp_path)
    again = gates.from_pretrained(type(small), tmp_path).eval()
    assert type(again) is type(small)
    torch.testing.assert_close(again(example).logits, small(example).logits)
    assert {n: p.shape for n, p in again.named_parameters()} == {
        n: p.shape for n, p in small.named_parameters()
    }


def test_a_key_value_group_goes_with_its_queries():
    model, example = gated(llama)
    with torch.no_grad():
        for phi in gates.gate_parameters(model):
            phi.fill_(9.0)
        model.model.layers[0].self_attn.o_proj.gate.log_alpha[1] = -9.0
    small = gates.harvest(model, example, repeats=1).model.model.layers[0].self_attn
    before = llama()[0].model.layers[0].self_attn
    assert small.q_proj.out_features == before.q_proj.out_features * 3 // 4
    assert small.k_proj.out_features == small.v_proj.out_features == before.k_proj.out_features * 3 // 4
    assert small.o_proj.in_features == small.q_proj.out_features
    assert small.num_key_value_groups == before.num_key_value_groups


def test_a_harvested_gpt2_generates_with_its_cache():
    model, example = gated(gpt2)
    small = gates.harvest(model, example, repeats=1).model
    tokens = [
        each.generate(example, max_new_tokens=5, do_sample=False, pad_token_id=2) for each in (model, small)
    ]
    assert torch.equal(*tokens)


def test_a_harvested_model_is_harvested_again():
    model, example = gated(bert)
    once = gates.harvest(model, example, repeats=1).model
    gates.attach_transformer(once, heads=None)
    with torch.no_grad():
        for phi in gates.gate_parameters(once):
            phi[0] = -9.0
    twice = gates.harvest(once, example, repeats=1)
    assert twice.after.parameters < twice.before.parameters
    torch.testing.assert_close(twice.model(example).logits, once.eval()(example).logits, rtol=1e-5, atol=1e-5)


def test_gates_get_gradients_and_a_plain_optimizer_keeps_its_parameters():
    model, example = gpt2()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names = dict(model.named_parameters())
    gates.attach_transformer(model)
    assert {n: p for n, p in model.named_parameters() if not n.endswith("log_alpha")}.keys() == names.keys()
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    assert all(id(each) in held for each in gates.weight_parameters(model))
    model.train()
    with torch.no_grad():
        for phi in gates.gate_parameters(model):
            phi.zero_()
    model(example, labels=example).loss.backward()
    assert all(phi.grad.abs().sum() > 0 for phi in gates.gate_parameters(model))


def test_the_density_counts_what_goes_with_a_gate():
    model, example = gated(gpt2)
    with torch.no_grad():
        for phi in gates.gate_parameters(model):
            phi.fill_(9.0)
        first = model.transformer.h[0].mlp.c_proj
        first.gate.log_alpha[:10] = -9.0
    full = sum(each.numel() for each in gpt2()[0].parameters())
    small = sum(each.numel() for each in gates.harvest(model, example, repeats=1).model.parameters())
    assert full - small == 10 * first.parameters_per_gate


def test_patterns_choose_blocks():
    model = llama()[0]
    assert gates.attach_transformer(model, heads=None, mlps="*.layers.1.*") == [
        "model.layers.1.mlp.down_proj"
    ]
    with pytest.raises(ValueError, match="gated already"):
        gates.attach_transformer(model)
    with pytest.raises(ValueError, match="choose nothing"):
        gates.attach_transformer(copy.deepcopy(llama()[0]), heads="decoder*", mlps=None)
    with pytest.raises(ValueError, match="no attention or MLP"):
        gates.attach_transformer(nn.Sequential(nn.Linear(2, 2)))


def test_latency_of_a_transformer(monkeypatch):
    """On a machine that needs a nanosecond for an operation and nothing else; test_budgets.py has a real clock."""

    @torch.no_grad()
    def seconds(module, inputs):
        with FlopCounterMode(display=False) as counter:
            module(*inputs)
        return 1e-9 * (1 + counter.get_total_flops())

    monkeypatch.setattr(latency, "_seconds", seconds)
    model, example = gated(gpt2)
    budget = gates.budget(model, example, latency=1.0)
    budget().backward()
    assert 0 < budget.smallest < budget.realised().item() <= 1


def test_outputs_with_the_weights_of_attention_have_fewer_heads_after_a_harvest():
    """They are no ground to refuse it: what the model computes is compared without them."""
    model, words = bert()
    model.config._attn_implementation = "eager"  # the others do not give them
    model.config.output_attentions = True
    gates.attach_transformer(model, mlps=None)
    with torch.no_grad():
        for phi in gates.gate_parameters(model):
            phi[1:] = -5.0
    small = gates.harvest(model, words, repeats=1).model
    found, expected = small(words), model.eval()(words)
    assert [each.shape[1] for each in found.attentions] == [1, 1]
    assert [each.shape[1] for each in expected.attentions] == [HEADS, HEADS]
    torch.testing.assert_close(found.logits, expected.logits)
