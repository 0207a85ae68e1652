"""Models that are in half precision as a whole: budgets and harvests need no options."""

import pytest
import torch
from gates.networks import IMAGES, chain, gated
from gates.transformers_tiny import TRANSFORMERS, gpt2, lived_in

from nupi import gates


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("build", TRANSFORMERS, ids=lambda build: build.__name__)
def test_a_transformer_is_fitted_and_harvested(build, dtype):
    torch.manual_seed(0)
    model, example = build()
    gates.attach_transformer(lived_in(model))
    with torch.no_grad():
        for phi in gates.gate_parameters(model):
            phi.copy_(torch.randn_like(phi) * 2 - 1.0)
    model = model.to(dtype).eval()
    example = example.to(dtype) if example.is_floating_point() else example
    gates.budget(model, example, flops=0.6).fit()
    small = gates.harvest(model, example, repeats=1)
    assert {each.dtype for each in small.model.parameters()} == {dtype}
    assert small.after.flops / small.before.flops <= 0.6


def test_a_convolutional_network_is_harvested():
    model, images = gated(chain).to(torch.bfloat16).eval(), IMAGES.to(torch.bfloat16)
    assert gates.harvest(model, images, repeats=1).difference < 0.03


def test_a_tolerance_of_ones_own_is_kept_to():
    torch.manual_seed(0)
    model, words = gpt2()
    gates.attach_transformer(lived_in(model))
    with torch.no_grad():
        for phi in gates.gate_parameters(model):
            phi.copy_(torch.randn_like(phi) * 2 - 1.0)
    model = model.to(torch.bfloat16)
    with pytest.raises(gates.HarvestError, match=r"more than tolerance=1e-05.*pass a larger tolerance"):
        gates.harvest(model, words, tolerance=1e-5)
