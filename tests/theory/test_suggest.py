import math

import pytest
import torch
from torch.func import functional_call

import nupi
from nupi.theory import suggest_gains
from nupi.theory.spectrum import critical_points


def line(h=1.0, a=2.0):
    """One variable of curvature h, one constraint of slope a, and the solution at x = 1."""
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)

    def evaluate():
        return 0.5 * h * x.square().sum(), {"line": a * (x - 1)}

    return x, nupi.Lagrangian({"line": nupi.Equality()}).double(), evaluate


def run(x, lagrangian, evaluate, gains, lr, steps, momentum=0.0):
    """The violations of a real run with these gains."""
    primal = torch.optim.SGD([x], lr=lr, momentum=momentum)
    dual = nupi.NuPI(lagrangian.parameters(), ki=gains.ki, kp=gains.kp, init="bumpless")
    seen = []
    for _ in range(steps):
        loss, violations = evaluate()
        seen.append(violations["line"].item())
        lagrangian.ascend(dual, violations)
        lagrangian(loss, violations).backward()
        primal.step()
        primal.zero_grad()
    return torch.tensor(seen)


@pytest.mark.parametrize(("h", "a"), [(1.0, 2.0), (0.0, 1.0), (-0.5, 3.0)])
def test_kp_for_a_given_ki_is_the_closed_form(h, a):
    x, lagrangian, evaluate = line(h, a)
    lr, ki = 0.01, 0.02
    found = suggest_gains([x], lagrangian, *evaluate(), lr=lr, ki=ki)["line"]
    assert found.slope.item() == pytest.approx(abs(a))
    assert found.curvature.item() == pytest.approx(h)
    assert found.ki.item() == ki
    assert found.kp.item() == pytest.approx(critical_points(h, a, ki / lr)[1])


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("h", [0.5, 40.0])  # kp > 0, and a curvature that damps more than enough by itself
def test_the_suggested_gains_settle_in_the_steps_asked_for(h, momentum):
    x, lagrangian, evaluate = line(h=h)
    found = suggest_gains([x], lagrangian, *evaluate(), lr=0.01, steps=400, momentum=momentum)["line"]
    assert (found.kp.item() > 0) == (h < 10)
    seen = run(x, lagrangian, evaluate, found, lr=0.01, steps=1500, momentum=momentum)
    scale = abs(seen[0].item())
    settled = int((seen.abs() > 0.02 * scale).nonzero().max()) + 1
    assert 200 < settled < 480
    assert seen.max() < 0.02 * scale  # it starts below 0: no overshoot to speak of


def test_without_the_suggested_kp_the_same_run_overshoots():
    x, lagrangian, evaluate = line(h=0.5)
    found = suggest_gains([x], lagrangian, *evaluate(), lr=0.01, steps=400)["line"]
    seen = run(x, lagrangian, evaluate, found._replace(kp=torch.zeros_like(found.kp)), lr=0.01, steps=1500)
    assert seen.max() > 0.2 * abs(seen[0].item())


def test_slope_and_curvature_of_a_network_against_its_full_hessian():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()
    inputs, labels = torch.randn(16, 3, dtype=torch.float64), torch.randint(2, (16,))
    lagrangian = nupi.Lagrangian({"rates": nupi.Inequality(2, init=0.7), "size": nupi.Equality()}).double()

    def evaluate(parameters):
        logits = functional_call(model, parameters, (inputs,))
        rates = logits.softmax(-1).mean(0) - 0.4
        size = sum(p.square().sum() for p in parameters.values()) - 3.0
        return torch.nn.functional.cross_entropy(logits, labels), {"rates": rates, "size": size.reshape(1)}

    named = dict(model.named_parameters())
    found = suggest_gains(model, lagrangian, *evaluate(named), lr=0.1, steps=100)
    assert {name: group.ki.shape for name, group in found.items()} == {"rates": (2,), "size": (1,)}

    # Everything again on one flat vector, with the whole Hessian.
    shapes = {name: p.shape for name, p in named.items()}

    def unflatten(flat):
        parts = flat.split([shape.numel() for shape in shapes.values()])
        return {name: part.reshape(shapes[name]) for name, part in zip(shapes, parts, strict=True)}

    flat = torch.cat([p.detach().reshape(-1) for p in named.values()])
    phi = torch.autograd.functional.hessian(lambda x: lagrangian(*evaluate(unflatten(x))), flat)
    for name, count in (("rates", 2), ("size", 1)):
        slopes = torch.autograd.functional.jacobian(lambda x, n=name: evaluate(unflatten(x))[1][n], flat)
        for i in range(count):
            assert found[name].slope[i].item() == pytest.approx(slopes[i].norm().item(), rel=1e-9)
            curvature = (slopes[i] @ phi @ slopes[i] / slopes[i].square().sum()).item()
            assert found[name].curvature[i].item() == pytest.approx(curvature, rel=1e-9)
    # The tensors are gains as they are, and the model has not been touched.
    nupi.NuPI(
        [{"params": [lagrangian.get_parameter("rates")], "kp": found["rates"].kp}], ki=found["rates"].ki
    )
    assert all(p.grad is None for p in model.parameters())


def test_the_settling_constant_is_where_two_percent_is_left():
    from nupi.theory.suggest import CRITICAL_SETTLING

    assert (1 + CRITICAL_SETTLING) * math.exp(-CRITICAL_SETTLING) == pytest.approx(0.02, rel=1e-3)


def test_bad_requests_are_refused():
    x, lagrangian, evaluate = line()
    with pytest.raises(ValueError, match="give either steps or ki, but steps=None and ki=None came"):
        suggest_gains([x], lagrangian, *evaluate(), lr=0.1)
    with pytest.raises(ValueError, match="give either steps or ki"):
        suggest_gains([x], lagrangian, *evaluate(), lr=0.1, steps=10, ki=0.1)
    with pytest.raises(ValueError, match=r"lr=0 must be positive"):
        suggest_gains([x], lagrangian, *evaluate(), lr=0.0, steps=10)
    with pytest.raises(ValueError, match=r"momentum=1\.0 must be in \[0, 1\)"):
        suggest_gains([x], lagrangian, *evaluate(), lr=0.1, steps=10, momentum=1.0)
    loss, seen = evaluate()
    for few in (0.5, 1e-30, 1e-300):
        with pytest.raises(ValueError, match=r"must be at least 1: it is a number of primal steps"):
            suggest_gains([x], lagrangian, *evaluate(), lr=0.1, steps=few)
    pair = nupi.Lagrangian({"line": nupi.Equality(2)}).double()
    some = {"line": nupi.Indexed(seen["line"], torch.tensor([0]))}
    with pytest.raises(ValueError, match=r"violations\['line'\] has 1 of 2 constraints"):
        suggest_gains([x], pair, loss, some, lr=0.1, steps=10)
    constant = torch.ones(1, dtype=torch.float64)
    with (
        pytest.warns(UserWarning, match="'line' has no gradient"),
        pytest.raises(ValueError, match="the gradient of constraint 'line' is 0 on this batch"),
    ):
        suggest_gains([x], lagrangian, loss, {"line": constant}, lr=0.1, steps=10)
    with pytest.raises(ValueError, match="the gradient of constraint 'line' is 0 on this batch"):
        suggest_gains([x], lagrangian, loss, {"line": constant + 0 * x.sum()}, lr=0.1, steps=10)


@pytest.mark.parametrize("option", ["lr", "steps", "ki", "momentum"])
@pytest.mark.parametrize("value", [10**400, 1e300, -1.0, math.nan])
def test_a_number_that_no_float32_can_hold_is_refused_by_name(option, value):
    x, lagrangian, evaluate = line()
    options = {"lr": 0.1, "steps": 10} | {option: value}
    if option == "ki":
        del options["steps"]
    with pytest.raises(ValueError, match=f"{option}=.* must be"):
        suggest_gains([x], lagrangian, *evaluate(), **options)
    with pytest.raises(TypeError, match=f"{option} must be a number, but '3' is a str"):
        suggest_gains([x], lagrangian, *evaluate(), **options | {option: "3"})


def test_gains_that_overflow_are_refused_and_not_returned():
    x, lagrangian, evaluate = line()
    with pytest.raises(ValueError, match="the gains of 'line' would not be finite"):
        suggest_gains([x], lagrangian, *evaluate(), lr=1e-320, steps=10)
    with pytest.raises(TypeError, match="violations must map constraint names to tensors, but a list came"):
        suggest_gains([x], lagrangian, evaluate()[0], [1.0], lr=0.1, steps=10)


@pytest.mark.parametrize("form", ["indexed", "averaged"])
def test_the_librarys_own_partial_violations_are_taken(form):
    x, lagrangian, evaluate = line()
    loss, seen = evaluate()
    given = {
        "indexed": nupi.Indexed(seen["line"], torch.tensor([0])),
        "averaged": nupi.Averaged(3 * seen["line"], torch.tensor([3])),
    }[form]
    found = suggest_gains([x], lagrangian, loss, {"line": given}, lr=0.1, steps=10)["line"]
    plain = suggest_gains([x], lagrangian, *evaluate(), lr=0.1, steps=10)["line"]
    torch.testing.assert_close(tuple(found), tuple(plain))


def test_a_batch_or_a_model_that_cannot_be_measured_is_refused():
    x = torch.tensor([0.3, 0.0], requires_grad=True)
    lagrangian = nupi.Lagrangian({"sum": nupi.Equality()})
    violations = {"sum": x.sum() - 1}
    with pytest.raises(ValueError, match="loss is nan or infinite"):
        suggest_gains([x], lagrangian, x.sum() * float("nan"), violations, lr=0.1, ki=0.4)
    with pytest.raises(ValueError, match=r"violations\['sum'\] is nan or infinite"):
        suggest_gains([x], lagrangian, x.sum(), {"sum": x.sum() / 0.0}, lr=0.1, ki=0.4)
    frozen = torch.nn.Linear(2, 1).requires_grad_(False)
    for model in ([], frozen):
        with pytest.raises(ValueError, match="model has no parameter that requires a gradient"):
            suggest_gains(model, lagrangian, x.sum(), violations, lr=0.1, ki=0.4)


def test_an_optimizer_is_measured_as_its_step_size_is():
    x = torch.tensor([0.3, 0.0], dtype=torch.float64, requires_grad=True)
    lagrangian = nupi.Lagrangian({"sum": nupi.Equality()}).double()
    asked = ([x], lagrangian, x.square().sum(), {"sum": x.sum() - 1})
    primal = torch.optim.SGD([x], lr=0.1, momentum=0.5)
    by_number = suggest_gains(*asked, lr=0.1, momentum=0.5, steps=100)["sum"]
    by_optimizer = suggest_gains(*asked, primal=primal, steps=100)["sum"]
    torch.testing.assert_close(by_optimizer.ki, by_number.ki)
    torch.testing.assert_close(by_optimizer.kp, by_number.kp)
    with pytest.raises(ValueError, match="either lr or primal"):
        suggest_gains(*asked, steps=100)
    adam = torch.optim.Adam([x], lr=0.01)
    with pytest.raises(ValueError, match="has not taken a step yet"):
        suggest_gains(*asked, primal=adam, steps=100)
    x.sum().backward()
    adam.step()
    # Both gradients were 1, and 2 x comes next: that is Adam's second moment at its second step, and P = lr / its root
    # up to what the need adds, so that M is smaller only a little.
    moment = (0.999 * 0.001 + 0.001 * (2 * x.detach()) ** 2) / (1 - 0.999**2)
    expected = float((0.01 / moment.sqrt()).sum())
    again = ([x], lagrangian, x.square().sum(), {"sum": x.sum() - 1})
    found = suggest_gains(*again, primal=adam, steps=1000)["sum"]
    assert 0.9 < float(found.slope) ** 2 / expected <= 1.0 + 1e-6
