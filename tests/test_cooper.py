"""Users of Cooper can take the controller alone: `NuPI` as the dual optimizer of Cooper's own loop."""

import cooper
import torch

import nupi


class UnitBall(cooper.ConstrainedMinimizationProblem):
    """min |x - a|^2 / 2 s.t. |x|^2 <= 1: x = a / |a|, lambda = (|a| - 1) / 2."""

    def __init__(self, x):
        super().__init__()
        self.x = x
        self.target = torch.tensor([3.0, 4.0], dtype=x.dtype)
        self.ball = cooper.Constraint(
            multiplier=cooper.multipliers.DenseMultiplier(num_constraints=1, dtype=x.dtype),
            constraint_type=cooper.ConstraintType.INEQUALITY,
            formulation_type=cooper.formulations.Lagrangian,
        )

    def compute_cmp_state(self):
        loss = (self.x - self.target).pow(2).sum() / 2
        violation = (self.x.pow(2).sum() - 1).reshape(1)
        return cooper.CMPState(loss, {self.ball: cooper.ConstraintState(violation=violation)})


def test_nupi_solves_a_problem_inside_coopers_alternating_optimizer():
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    problem = UnitBall(x)
    loop = cooper.optim.AlternatingDualPrimalOptimizer(
        problem,
        primal_optimizers=torch.optim.SGD([x], lr=0.02),
        dual_optimizers=nupi.NuPI(problem.dual_parameters(), ki=0.1, kp=0.5),
    )
    for _ in range(3_000):
        loop.roll()
    expected = torch.tensor([0.6, 0.8], dtype=torch.float64)
    torch.testing.assert_close(x.detach(), expected, atol=1e-8, rtol=0)
    torch.testing.assert_close(problem.ball.multiplier.weight.item(), 2.0, atol=1e-8, rtol=0)
