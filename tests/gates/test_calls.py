"""Examples that are more than one tensor: arguments by name, as batches of `transformers` come."""

import pytest
import torch
from gates.transformers_tiny import bert, distilbert, gpt2, lived_in, llama
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode
from transformers import BatchEncoding

from nupi import gates
from nupi.gates.call import Call


class Masked(nn.Module):
    """Its mask must be named, and without it there is another layer in the way."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.scale = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 16)

    def forward(self, x, *, mask=None):
        y = functional.relu(self.a(input=x))
        return self.b(self.scale(y) if mask is None else y * mask)


def closed(model):
    with torch.no_grad():
        for phi in gates.gate_parameters(model):
            phi.copy_(torch.randn_like(phi) * 2 - 1.6)
    return model.eval()


@pytest.mark.parametrize("build", [bert, distilbert, gpt2, llama], ids=lambda build: build.__name__)
def test_a_batch_of_named_tensors_is_an_example(build):
    torch.manual_seed(0)
    model, words = build()
    gates.attach_transformer(lived_in(model))
    mask = torch.ones_like(words)
    mask[:, 5:] = 0
    batch = BatchEncoding({"input_ids": words, "attention_mask": mask})
    dense = build()[0].eval()
    with FlopCounterMode(display=False) as whole, torch.no_grad():
        dense(**batch)
    budget = gates.budget(closed(model), batch, flops=0.8)
    budget.fit()
    small = gates.harvest(model, batch, repeats=1)
    with FlopCounterMode(display=False) as left, torch.no_grad():
        output = small.model(**batch).logits
    assert left.get_total_flops() / whole.get_total_flops() == pytest.approx(
        budget.realised().item(), rel=1e-5
    )
    torch.testing.assert_close(output, model(**batch).logits, rtol=1e-5, atol=1e-5)


def test_the_graph_is_that_of_the_named_call():
    torch.manual_seed(0)
    model, x = Masked(), torch.randn(3, 8)
    gates.attach(model, "a")
    closed(model)
    batch = {"x": x, "mask": torch.ones(3, 1)}
    small = gates.harvest(model, batch, repeats=1)
    left = int(model.a.gate.is_open().sum())
    assert small.channels["b"] == (4, 4)
    assert small.model.b.in_features == small.model.a.out_features == left
    torch.testing.assert_close(small.model(**batch), model(**batch))
    share = gates.budget(model, batch, flops=1.0).realised().item()
    assert share == pytest.approx(left / 16)


def test_latency_of_a_named_call():
    model = Masked()
    gates.attach(model, "a")
    batch = {"x": torch.randn(3, 8), "mask": torch.ones(3, 1)}
    assert gates.budget(model, batch, latency=1.0).realised().item() == pytest.approx(1.0, abs=1e-5)


class Open(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x, **others):
        return self.b(functional.relu(self.a(x)) * others["scale"])


def test_what_the_signature_does_not_name():
    model, x = Open(), torch.randn(3, 8)
    gates.attach(model, "a", norms={"a": None})
    closed(model)
    small = gates.harvest(model, {"x": x, "scale": 2.0}, repeats=1).model
    torch.testing.assert_close(small(x, scale=2.0), model(x, scale=2.0))
    with pytest.raises(gates.HarvestError, match=r"the tensor 'scale' goes into \*\*"):
        gates.harvest(model, {"x": x, "scale": torch.ones(3, 1)})


@pytest.mark.parametrize("example", [{"y": torch.ones(3, 8)}, (torch.ones(3, 8), 1.0), torch.ones(3, 9)])
@pytest.mark.parametrize("build", ["graph", "structure"])
def test_a_call_that_fails_is_refused_in_words_by_budget_and_harvest(example, build):
    if build == "graph":
        model = Masked()
        gates.attach(model, "a")
    else:
        model = gpt2()[0]
        gates.attach_transformer(model)
    for what in (lambda: gates.budget(model, example, flops=0.5), lambda: gates.harvest(model, example)):
        with pytest.raises(gates.HarvestError, match=r"fails on the example .* which is .*a tensor"):
            what()


def test_a_call_says_what_it_is_of():
    assert str(Call.of((torch.ones(2), "a"))) == "a tensor (2,) of torch.float32; a str"
