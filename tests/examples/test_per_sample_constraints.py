import cvxpy as cp
import pytest
import torch
from examples import per_sample_constraints as example


@pytest.fixture(scope="module")
def exact():
    """The exact solution and its multipliers, which cvxpy gives for the same constraints: error^2 <= 1."""
    rows = example.data()
    weights = cp.Variable(example.FEATURES)
    errors = cp.square(rows.x.double().numpy() @ weights - rows.y.double().numpy())
    each = errors <= example.LIMIT**2
    cp.Problem(cp.Minimize(cp.sum(errors)), [each]).solve(solver="CLARABEL")
    return weights.value, each.dual_value


def test_every_row_meets_its_constraint_at_the_optimum_of_the_sum(exact):
    rows = example.data()
    usual = torch.linalg.lstsq(rows.x, rows.y).solution
    assert (rows.x @ usual - rows.y).abs().max() > 1.02
    weights, multipliers = example.train(rows, epochs=200)
    assert (rows.x @ weights - rows.y).abs().max() < 1.01
    assert weights.tolist() == pytest.approx(exact[0].tolist(), abs=0.02)
    # The multipliers are those of the sum of losses, whatever the batch size.
    assert multipliers.sum().item() == pytest.approx(exact[1].sum(), rel=0.3)
    assert multipliers.argmax().item() == exact[1].argmax()
