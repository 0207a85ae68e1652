"""Heads of torch's own attention, and the MLPs beside it, in a ViT as torchvision has it."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from nupi import gates

WIDTH, HEADS, UNITS = 16, 4, 40


class EncoderBlock(nn.Module):
    """As torchvision's ViT has it: torch's own attention, and an MLP that is a Sequential."""

    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.self_attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        drop = nn.Dropout(0.1)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, UNITS), nn.GELU(), drop, nn.Linear(UNITS, WIDTH), drop)

    def forward(self, x):
        y = self.ln_1(x)
        x = x + self.self_attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class ViT(nn.Module):
    """Patches of an image, a class token, blocks, a head."""

    def __init__(self):
        super().__init__()
        self.conv_proj = nn.Conv2d(3, WIDTH, 4, 4)
        self.class_token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.blocks = nn.Sequential(EncoderBlock(), EncoderBlock())
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, images):
        x = self.conv_proj(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], 1)
        return self.head(self.blocks(x)[:, 0])


IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def vit():
    torch.manual_seed(0)
    model = ViT().eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, 0.5, 0.3)
    return model


def closed(model):
    with torch.no_grad():
        for phi in gates.gate_parameters(model):
            phi.copy_(torch.randn_like(phi) * 2 - 1.6)
    return model


def counted(model, unit, example=IMAGES):
    """With gradients on: without them torch takes attention as one operation, whose FLOPs its counter leaves out."""
    if unit == "parameters":
        return sum(each.numel() for each in model.parameters())
    with FlopCounterMode(display=False) as counter:
        model(example)
    return counter.get_total_flops()


def test_heads_and_units_are_found_and_the_parameters_stay():
    model = vit()
    parameters, before = {id(each) for each in model.parameters()}, model(IMAGES)
    assert gates.attach_transformer(model) == [
        f"blocks.{i}.{each}" for i in range(2) for each in ("mlp.3", "self_attention.out_proj")
    ]
    assert {id(each) for each in gates.weight_parameters(model)} == parameters
    torch.testing.assert_close(model(IMAGES), before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"heads": None}, {"mlps": None}], ids=str)
@pytest.mark.parametrize("unit", ["parameters", "flops"])
def test_the_share_is_a_re_count_of_a_harvest_that_computes_the_same(unit, options):
    model = vit()
    dense = counted(model, unit)
    gates.attach_transformer(model, **options)
    small = gates.harvest(closed(model), IMAGES, repeats=1)
    torch.testing.assert_close(small.model(IMAGES), model(IMAGES), rtol=1e-5, atol=1e-5)
    share = counted(small.model, unit) / dense
    assert share < 1
    assert gates.budget(model, IMAGES, **{unit: 1.0}).realised().item() == pytest.approx(share, rel=1e-5)
    assert getattr(small.after, unit) / getattr(small.before, unit) == pytest.approx(share, rel=1e-5)


def test_half_the_flops_by_a_re_count_of_the_exported_program():
    model = vit()
    dense = counted(model, "flops")
    gates.attach_transformer(model)
    gates.budget(closed(model), IMAGES, flops=0.5).fit()
    small = gates.harvest(model, IMAGES, repeats=1).model
    batches = {0: torch.export.Dim("batch")}
    program = torch.export.export(small, (IMAGES,), dynamic_shapes=(batches,)).module()
    assert 0.49 < counted(program, "flops") / dense <= 0.5
    others = torch.randn(5, *IMAGES.shape[1:])
    torch.testing.assert_close(program(others), model(others), rtol=1e-4, atol=1e-5)


MASKS = [
    {},
    {"need_weights": False},
    {"average_attn_weights": False},
    {"attn_mask": torch.ones(5, 5).triu(1).bool(), "need_weights": False, "is_causal": True},
    {"attn_mask": torch.randn(5, 5)},
    {"attn_mask": torch.randn(3 * HEADS, 5, 5)},
    {"key_padding_mask": torch.tensor([[False] * 3 + [True] * 2] * 3)},
    {
        "key_padding_mask": torch.tensor([[False] * 4 + [True]] * 3),
        "attn_mask": torch.ones(5, 5).triu(1).bool(),
    },
]


@pytest.mark.parametrize("options", MASKS, ids=lambda options: " ".join(options) or "plain")
@pytest.mark.parametrize("batch_first", [True, False])
def test_our_attention_is_torchs(options, batch_first):
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first)
    nn.init.normal_(theirs.in_proj_bias)
    x = torch.randn((3, 5, WIDTH) if batch_first else (5, 3, WIDTH))
    ours = gates.HeadAttention(theirs)
    torch.testing.assert_close(ours(x, x, x, **options), theirs(x, x, x, **options))


def test_without_a_batch_without_a_bias_and_with_dropout():
    theirs = nn.MultiheadAttention(WIDTH, HEADS, dropout=0.5, bias=False)
    ours, x = gates.HeadAttention(theirs), torch.randn(5, WIDTH)
    assert ours.in_proj.bias is None
    assert not torch.equal(ours(x, x, x)[0], ours(x, x, x)[0])
    for need_weights in (True, False):
        found = ours.eval()(x, x, x, need_weights=need_weights)
        torch.testing.assert_close(found, theirs.eval()(x, x, x, need_weights=need_weights))


def test_a_state_dict_of_torchs_module_is_loaded():
    theirs, other = (nn.MultiheadAttention(WIDTH, HEADS, batch_first=True) for _ in range(2))
    ours, x = gates.HeadAttention(other), torch.randn(3, 5, WIDTH)
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(x, x, x), theirs(x, x, x))


class Pooled(nn.Module):
    """Attention of a learnt query to the tokens, as the pooling heads of some vision models have it."""

    def __init__(self):
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, 2, WIDTH))
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x):
        return self.attention(self.query.expand(x.shape[0], -1, -1), x, x, need_weights=False)[0]


@pytest.mark.parametrize("unit", ["parameters", "flops", "latency"])
def test_attention_to_another_tensor(unit):
    torch.manual_seed(0)
    model, x = Pooled().eval(), torch.randn(3, 7, WIDTH)
    before = model(x)
    whole = counted(model, unit, x)
    gates.attach_transformer(model)
    torch.testing.assert_close(model(x), before, rtol=1e-5, atol=1e-5)
    budget = gates.budget(model, x, **{unit: 1.0})
    with torch.no_grad():
        model.attention.out_proj.gate.log_alpha[1:3] = -9.0
    small = gates.harvest(model, x, repeats=1).model
    torch.testing.assert_close(small(x), model(x), rtol=1e-5, atol=1e-5)
    if unit == "latency":
        assert budget.realised().item() <= 1
    else:
        assert budget.realised().item() == pytest.approx(counted(small, unit, x) / whole, rel=1e-5)


def test_attention_that_is_not_for_heads_stays_as_it_is():
    """With keys of another width, with a learnt key, or read past the module by torch's own block."""
    block = EncoderBlock()
    for other in (
        nn.MultiheadAttention(WIDTH, HEADS, kdim=8, vdim=8),
        nn.MultiheadAttention(WIDTH, HEADS, add_bias_kv=True),
        nn.MultiheadAttention(WIDTH, HEADS, add_zero_attn=True),
    ):
        block.self_attention = other
        assert gates.attach_transformer(copy.deepcopy(block)) == ["mlp.3"]
    with pytest.raises(ValueError, match="no attention or MLP"):
        gates.attach_transformer(nn.TransformerEncoderLayer(WIDTH, HEADS, UNITS))


def test_a_refused_option_leaves_the_model_as_it_was():
    model = vit()
    with pytest.raises(ValueError, match="clamp"):
        gates.attach_transformer(model, clamp=-1.0)
    assert isinstance(model.blocks[0].self_attention, nn.MultiheadAttention)
