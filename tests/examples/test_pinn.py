import math

import torch
from examples import pinn


def test_the_boundary_conditions_hold_and_the_solution_is_found():
    model = pinn.train(800)
    x = torch.linspace(0, 1, 101).unsqueeze(1)
    with torch.no_grad():
        assert model(pinn.BOUNDARY).abs().max() < 5e-3
        assert (model(x) - torch.sin(math.pi * x)).abs().max() < 0.02
