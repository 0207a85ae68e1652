"""Fits with equal widths in all blocks, against counts of harvested models and against all pairs of widths."""

import itertools
import re
import warnings

import pytest
import torch
import transformers
from gates.networks import IMAGES as CONVOLUTIONS
from gates.networks import chain, gated
from gates.transformers_tiny import HEADS, SAYS_HEADS, TRANSFORMERS, gpt2, llama

from nupi import gates


@pytest.mark.parametrize("unit", ["parameters", "flops"])
@pytest.mark.parametrize("build", TRANSFORMERS, ids=lambda build: build.__name__)
def test_a_uniform_fit_keeps_the_budget_and_gives_all_blocks_one_width(build, unit):
    torch.manual_seed(0)
    model, example = build()
    gates.attach_transformer(model)
    with torch.no_grad():
        for phi in gates.gate_parameters(model):
            phi.normal_(-1.6, 2.0)
    before = [layer.gate.log_alpha.detach().clone() for layer in gates.gated_layers(model).values()]
    limit = 0.8
    budget = gates.budget(model, example, **{unit: limit})
    with warnings.catch_warnings(record=True, action="always") as caught:
        moved = budget.fit(uniform=True)
    layers = list(gates.gated_layers(model).values())
    after = [layer.gate.is_open() for layer in layers]
    for kind in (True, False):
        assert (
            len(
                {
                    int(each.sum())
                    for each, layer in zip(after, layers, strict=True)
                    if (layer.size > 1) == kind
                }
            )
            == 1
        )
    fewer = opened(model)[0][0] < HEADS  # than the config of some can say
    assert ["own from_pretrained will not load" in str(each.message) for each in caught] == [True] * (
        fewer and build.__name__ not in SAYS_HEADS
    )
    for old, new in zip(before, after, strict=True):  # the strongest of each block stay
        assert set(old.argsort(descending=True)[: int(new.sum())].tolist()) == set(
            new.nonzero().flatten().tolist()
        )
    assert moved == sum(int((old.gt(-1.5986) != new).sum()) for old, new in zip(before, after, strict=True))
    small = gates.harvest(model, example, repeats=1)
    share = getattr(small.after, unit) / getattr(small.before, unit)
    assert (
        limit - 0.015 < share <= limit
    )  # two units, one in each block, are at most 1.5 points of such a small network
    assert build.__name__ not in SAYS_HEADS or not hasattr(small.model.config, "harvested")


def test_a_uniform_fit_is_refused_where_blocks_keep_their_width_or_are_none():
    model, example = gpt2()
    gates.attach_transformer(model, heads="*.0.*")
    with pytest.raises(ValueError, match="on all of its heads"):
        gates.budget(model, example, parameters=0.9).fit(uniform=True)
    with pytest.raises(ValueError, match="on all of its heads"):
        gates.budget(gated(chain), CONVOLUTIONS, parameters=0.9).fit(uniform=True)


def opened(model):
    """Open heads and open units of each block."""
    counts = {True: [], False: []}
    for layer in gates.gated_layers(model).values():
        counts[layer.size > 1].append(int(layer.gate.is_open().sum()))
    return counts[True], counts[False]


def parameters(model):
    return sum(each.numel() for each in model.parameters())


def share_with(build, heads=None, units=None):
    """The share of the parameters that a harvest with such widths leaves, counted on the model."""
    model, example = build()
    whole = parameters(model)
    gates.attach_transformer(model, heads=heads and "*", mlps=units and "*")
    for layer in gates.gated_layers(model).values():
        layer.gate.log_alpha.data.fill_(2.0)[heads if layer.size > 1 else units :] = -5.0
    return parameters(gates.harvest(model, example, repeats=1).model) / whole


def wide_gpt2():
    config = transformers.GPT2Config(
        n_embd=64, n_layer=2, n_head=8, vocab_size=50, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config), gpt2()[1]


@pytest.mark.filterwarnings("ignore:uniform=True leaves")
@pytest.mark.parametrize(
    ("limit", "before", "after"),
    [
        (0.5, (8, 256), (4, 115)),
        (0.9, (8, 256), (7, 231)),
        (0.5, (1, 128), (1, 163)),
        (0.9, (2, 64), (7, 231)),
        (0.5, (8, 64), (7, 67)),
    ],
)
def test_widths_stay_in_the_proportion_that_training_left(limit, before, after):
    """Of 8 heads and 256 units: one head is left, or all are open again, only if training left it so."""
    torch.manual_seed(0)
    model, example = wide_gpt2()
    whole = parameters(model)
    gates.attach_transformer(model)
    for layer in gates.gated_layers(model).values():
        layer.gate.log_alpha.data.normal_(4.0, 0.1)[before[layer.size == 1] :] -= 20.0
    gates.budget(model, example, parameters=limit).fit(uniform=True)
    (heads, _), (units, _) = opened(model)
    assert abs(heads - after[0]) <= 1
    assert units == pytest.approx(after[1], rel=0.2)
    left = parameters(gates.harvest(model, example, repeats=1).model) / whole
    assert limit - 0.01 <= left <= limit


@pytest.mark.parametrize("limit", [0.6, 0.75, 0.97])
def test_no_pair_of_widths_within_a_point_changes_the_proportions_less(limit):
    """All pairs of 4 groups and 48 units, by the sizes of a Llama counted by hand."""
    torch.manual_seed(0)
    model, example = llama()
    whole = parameters(model)
    gates.attach_transformer(model)
    with torch.no_grad():
        for phi in gates.gate_parameters(model):
            phi.normal_(-1.0, 2.0)
    now = [sum(max(each, 1) for each in counts) / 2 for counts in opened(model)]
    gates.budget(model, example, parameters=limit).fit(uniform=True)
    head, unit = (
        (2 * 4 + 2 * 4 + 4 + 4) * 32,
        3 * 32,
    )  # two heads of queries and one of keys, of 4 channels each
    shares = {
        (h, u): 1 - 2 * ((4 - h) * head + (48 - u) * unit) / whole
        for h, u in itertools.product((1, 2, 4), range(1, 49))  # six heads do not divide the width of 32
    }
    best = {
        h: max(u for u in range(1, 49) if shares[h, u] <= limit) for h in (1, 2, 4) if shares[h, 1] <= limit
    }
    near = [pair for pair in best.items() if shares[pair] >= limit - 0.01]
    assert near

    def change(pair):
        return sum(torch.tensor(new / old).log().item() ** 2 for new, old in zip(pair, now, strict=True))

    assert tuple(counts[0] for counts in opened(model)) == min(near, key=change)


def test_widths_far_below_the_budget_come_with_a_warning_that_has_their_sizes():
    """With heads alone a whole group goes in every block, and three of four the config refuses."""
    model, example = llama()
    gates.attach_transformer(model, mlps=None)
    budget = gates.budget(model, example, parameters=0.85)
    with pytest.warns(UserWarning, match="uniform=True ends .* fit\\(\\) without uniform=True") as caught:
        budget.fit(uniform=True)
    (message,) = (str(each.message) for each in caught)
    below, above = re.findall(r"(\d) key-value heads in every block would leave ([01]\.\d+)", message)
    for count, share in (below, above):
        assert share_with(llama, heads=int(count)) == pytest.approx(float(share), abs=6e-5)
    assert float(below[1]) < 0.84
    assert float(above[1]) > 0.85
    points = re.search(r"ends ([\d.]+) points below parameters=0\.85", message)[1]
    assert float(points) == pytest.approx(100 * (0.85 - float(below[1])), abs=0.06)
    assert "heads and MLPs both" in message
    assert caught[0].filename == __file__
    assert opened(model)[0] == [int(below[0])] * 2


class Many(transformers.LlamaConfig):
    """A config that takes no fewer than four heads of queries, two groups here."""

    def __init__(self, **options):
        super().__init__(**options)
        if self.num_attention_heads < 4:
            raise ValueError("too few")


def test_a_budget_below_the_smallest_equal_widths_is_refused_with_their_size():
    model, example = llama()
    model.config.__class__ = Many
    gates.attach_transformer(model)
    smallest = share_with(llama, heads=2, units=1)
    budget = gates.budget(model, example, parameters=smallest - 0.01)
    before = [phi.detach().clone() for phi in gates.gate_parameters(model)]
    with pytest.raises(
        ValueError, match=r"uniform=True cannot keep parameters=0\.\d+: 2 key-value heads and 1 MLP unit"
    ) as error:
        budget.fit(uniform=True)
    sizes = [float(each) for each in re.findall(r"0\.\d+", str(error.value))]
    assert sizes[1] == pytest.approx(smallest, abs=6e-5)
    assert sizes[2] == pytest.approx(share_with(llama, heads=1, units=1), abs=6e-5)
    assert all(torch.equal(*pair) for pair in zip(before, gates.gate_parameters(model), strict=True))
    budget.fit()
    left = parameters(gates.harvest(model, example, repeats=1).model) / parameters(llama()[0])
    assert left <= smallest - 0.01
