"""What an optimizer refuses, and that a refusal costs nothing."""

import copy

import numpy as np
import oracles
import pytest
import torch
from laws import draw, run

import nupi


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ki": -0.1}, r"ki must lie in \[0, inf\).*maximize=False"),
        ({"ki": float("nan")}, "ki must be finite"),
        ({"ki": "fast"}, "ki must be a number or a tensor, but 'fast'"),
        ({"ki": 0.1, "kp": float("inf")}, "kp must be finite"),
        ({"ki": 0.1, "nu": 1.0}, r"nu must lie in \(-1, 1\), but 1.0"),
        ({"ki": 0.1, "nu": -1.5}, r"nu must lie in \(-1, 1\)"),
        ({"ki": 0.1, "nu": torch.tensor([0.1, 0.2, 2.0])}, r"nu must lie in \(-1, 1\)"),
        ({"ki": 0.1, "kp": torch.ones(4)}, r"kp has shape \(4,\), which does not broadcast.*\(3,\)"),
        ({"ki": torch.ones(2, 3)}, r"ki has shape \(2, 3\)"),
        ({"ki": 0.1, "init": "cold"}, "init must be one of zero, error, ema, bumpless, but 'cold'"),
        ({"ki": 0.1, "form": "polar"}, "form must be one of velocity, positional, conditional, but 'polar'"),
        ({"ki": 0.1, "lr": -1.0}, "lr must lie in"),
    ],
)
def test_a_bad_gain_is_refused_and_named(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        nupi.NuPI([torch.zeros(3)], **options)


RANGES = {  # of every optimizer, the gains that have one, and values outside of it
    nupi.NuPI: ({"ki": 0.1}, {"ki": [-0.1], "nu": [1.0, -1.0, 2.0], "lr": [-1.0]}),
    nupi.PID: ({"ki": 0.1, "kp": 1.0, "kd": 0.5}, {"ki": [-0.1], "nu": [1.0, -1.0, 2.0], "lr": [-1.0]}),
    nupi.UnifiedMomentum: ({"lr": 0.1, "beta": 0.5}, {"lr": [-0.1], "beta": [1.0, -1.0, 2.0]}),
    nupi.SelfTuned: ({"steps": 9}, {"lr": [-1.0], "steps": [0.5], "scale": [0.0, -1.0]}),
}


@pytest.mark.parametrize("kind", RANGES)
def test_a_gain_outside_of_its_range_is_refused_at_first_and_on_the_way(kind):
    options, outside = RANGES[kind]
    for name, value in ((name, value) for name, values in outside.items() for value in values):
        with pytest.raises(ValueError, match=rf"^{name} must (lie|be at least)"):
            kind([torch.zeros(1)], **{**options, name: value})
        theta = torch.zeros(1)
        optimizer = kind([theta], **options)
        optimizer.param_groups[0][name] = value
        theta.grad = torch.ones(1)
        with pytest.raises(ValueError, match=rf"^{name} must (lie|be at least)"):
            optimizer.step()
        assert theta.item() == 0.0


@pytest.mark.parametrize("kind", RANGES)
def test_an_integer_parameter_and_a_gain_that_is_no_number_are_refused(kind):
    options, outside = RANGES[kind]
    with pytest.raises((TypeError, ValueError), match=r"floating-point|int64"):
        kind([torch.zeros(3, dtype=torch.int64)], **options)
    for name in outside:
        with pytest.raises(TypeError, match=f"{name} must be a number or a tensor, but 'fast'"):
            kind([torch.zeros(3)], **{**options, name: "fast"})


@pytest.mark.parametrize("name", ["steps", "scale"])
def test_a_horizon_or_a_scale_for_each_constraint_is_refused(name):
    with pytest.raises(TypeError, match=f"{name} must be a number, but a tensor came; use param groups"):
        nupi.SelfTuned([torch.zeros(3)], **{"steps": 9, name: torch.full((3,), 2.0)})


def test_a_bad_group_is_not_added():
    optimizer = nupi.NuPI([torch.zeros(3)], 0.1)
    with pytest.raises(ValueError, match="kp has shape"):
        optimizer.add_param_group({"params": [torch.zeros(2)], "kp": torch.ones(5)})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("shapes", [[(4,)], [(3,), (3,)], [(3, 1)]], ids=str)
def test_a_checkpoint_of_other_parameters_is_refused_whole(shapes):
    def stepped(some):
        params = [torch.zeros(shape) for shape in some]
        optimizer = nupi.NuPI(params, 0.1, 1.0)
        run(optimizer, params, [tuple(torch.ones(shape) for shape in some)] * 2)
        return optimizer

    other, mine = stepped(shapes), stepped([(3,)])
    mine.param_groups[0]["ki"] = 0.7
    before = copy.deepcopy(mine.state_dict())
    with pytest.raises(ValueError, match="another problem, and nothing was loaded"):
        mine.load_state_dict(other.state_dict())
    after = mine.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert torch.equal(after["state"][0]["xi"], before["state"][0]["xi"])


@pytest.mark.parametrize(
    ("make", "size", "message"),
    [
        (
            lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, maximize=True),
            3,
            "has momentum, .* of another optimizer",
        ),
        (lambda p: torch.optim.Adam(p, 0.1, maximize=True), 3, "of another optimizer"),
        (lambda p: nupi.UnifiedMomentum(p, 0.1, 0.5), 3, "has beta, gamma: it is of another optimizer"),
        (lambda p: nupi.PID(p, 0.1, 1.0, 0.5), 3, "has kd, one_sided: it is of another optimizer"),
        (lambda p: nupi.NuPI(p, torch.ones(3)), 4, "does not broadcast"),
    ],
    ids=["SGD", "Adam", "UnifiedMomentum", "PID", "another gain"],
)
def test_a_checkpoint_of_another_optimizer_is_refused_whole(make, size, message):
    params = [torch.zeros(3)]
    other = make(params)
    run(other, params, [(torch.ones(3),)] * 2)
    mine = [torch.zeros(size)]
    optimizer = nupi.NuPI(mine, 0.7, 1.0)
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(other.state_dict())
    run(optimizer, mine, [(torch.ones(size),)])
    assert mine[0][0].item() == pytest.approx(0.7)
    with pytest.raises(ValueError, match=r"not 'state' and 'param_groups'"):
        optimizer.load_state_dict({})


def test_named_parameters_are_compared_by_name():
    left, right = ([(name, torch.zeros(1)) for name in names] for names in (("a", "b"), ("c", "d")))
    with pytest.raises(ValueError, match=r"is for \['a', 'b'\], but here are \['c', 'd'\]"):
        nupi.NuPI(right, 0.1).load_state_dict(nupi.NuPI(left, 0.1).state_dict())


def test_numbers_of_numpy_are_numbers(tmp_path):
    optimizer = nupi.NuPI([torch.zeros(1)], ki=np.logspace(-5, 1, 4)[2], kp=np.float32(0.5))
    torch.save(optimizer.state_dict(), tmp_path / "dual.pt")
    assert torch.load(tmp_path / "dual.pt", weights_only=True)["param_groups"][0]["kp"] == 0.5


def test_a_misspelt_option_is_refused():
    with pytest.raises(ValueError, match="'Kp'; did you mean 'kp'"):
        nupi.NuPI([{"params": [torch.zeros(1)], "Kp": 3.0}], 0.1)
    with pytest.raises(TypeError, match="foreach must be True, False or None, but 'yes'"):
        nupi.NuPI([torch.zeros(1)], 0.1, foreach="yes")


def test_rows_may_be_seen_coarsely_and_finely():
    """A gradient sparse in one dimension, then in two: each element keeps a clock of its own."""
    param = torch.zeros(2, 3, dtype=torch.float64)
    optimizer = nupi.NuPI([param], 0.1, 0.7, 0.3, init="bumpless")
    heard = {(i, j): [] for i in range(2) for j in range(3)}
    visits = [([0], 1), ([(1, 2)], 2), ([(0, 1), (1, 0)], 2), ([1], 1), ([(0, 0), (1, 1)], 2)]
    for error, (places, dims) in zip(draw(0, 2, 3), visits, strict=False):
        index = torch.tensor(places).reshape(len(places), dims).T
        gradient = torch.sparse_coo_tensor(index, error[tuple(index)], (2, 3), check_invariants=True)
        run(optimizer, [param], [(gradient,)])
        for place in places:
            for i, j in [(place, j) for j in range(3)] if dims == 1 else [place]:
                heard[i, j].append(float(error[i, j]))
    for (i, j), seen in heard.items():
        assert param[i, j].item() == pytest.approx(
            oracles.nupi(seen, 0.0, 0.1, 0.7, 0.3, "bumpless")[-1], rel=1e-12
        )


def test_loading_takes_no_hold_of_the_checkpoint():
    param = torch.zeros(2)
    optimizer = nupi.NuPI([param], 0.1, 1.0, init="error")
    run(optimizer, [param], [(torch.ones(2),)])
    saved = optimizer.state_dict()
    kept = saved["state"][0]["xi"].clone()
    again = torch.zeros(2)
    loaded = nupi.NuPI([again], 0.1, 1.0)
    loaded.load_state_dict(saved)
    run(loaded, [again], [(torch.full((2,), 5.0),)])
    assert torch.equal(saved["state"][0]["xi"], kept)


def test_a_closure_is_called_with_gradients_on():
    x = torch.tensor([1.0], requires_grad=True)
    optimizer = nupi.NuPI([x], ki=0.1, maximize=False)

    def closure():
        optimizer.zero_grad()
        loss = (x**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 1.0
    assert x.item() == pytest.approx(0.8)


@pytest.mark.filterwarnings("ignore:Skipping serialization:UserWarning")  # said by torch 2.6 of itself
def test_inductor_compiles_the_step():
    torch._dynamo.reset()
    eager, compiled = torch.zeros(64), torch.zeros(64)
    plain, fast = (nupi.NuPI([p], 0.1, 1.0, 0.5) for p in (eager, compiled))
    step = torch.compile(fast.step, fullgraph=True)
    for e in draw(0, 64, dtype=torch.float32, steps=3):
        eager.grad, compiled.grad = e.clone(), e.clone()
        plain.step()
        step()
    torch.testing.assert_close(eager, compiled)


@pytest.mark.parametrize(
    "nu", [-1.0, 1.0, torch.tensor([-1.0]), torch.tensor([1.0]), torch.tensor([0.5, -1.0])]
)
def test_the_ends_of_the_range_of_nu_are_outside_of_it(nu):
    params = [torch.nn.Parameter(torch.zeros(2))]
    with pytest.raises(ValueError, match=r"nu must lie in \(-1, 1\)"):
        nupi.NuPI(params, ki=0.1, kp=1.0, nu=nu)


@pytest.mark.parametrize("ki", [0.0, torch.tensor([0.0, 0.1])])
def test_a_step_size_of_zero_is_allowed(ki):
    nupi.NuPI([torch.nn.Parameter(torch.zeros(2))], ki=ki)


def test_a_gain_with_more_dimensions_than_the_multipliers_is_refused():
    with pytest.raises(ValueError, match=r"ki has shape \(1, 3\), which does not broadcast.*\(3,\)"):
        nupi.NuPI([torch.zeros(3)], ki=torch.ones(1, 3))


def test_state_of_another_name_is_refused_and_nothing_is_loaded():
    param = torch.zeros(3)
    dual = nupi.NuPI([param], ki=0.1, kp=1.0)
    param.grad = torch.ones(3)
    dual.step()
    saved = copy.deepcopy(dual.state_dict())
    saved["state"][0]["velocity"] = torch.ones(3)
    saved["state"][0]["xi"] = torch.full((3,), 7.0)
    with pytest.raises(
        ValueError, match="holds 'velocity': it is of another optimizer, and nothing was loaded"
    ):
        dual.load_state_dict(saved)
    assert dual.state[param]["xi"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_the_ends_of_a_range_belong_to_it(scale):
    assert nupi.SelfTuned([torch.zeros(1)], 10, scale=scale).param_groups[0]["scale"] == scale
    with pytest.raises(ValueError, match="scale must lie between 1e-12 and 1e12"):
        nupi.SelfTuned([torch.zeros(1)], 10, scale=scale**1.1)
