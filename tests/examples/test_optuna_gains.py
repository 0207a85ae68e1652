import optuna
import pytest
from examples import optuna_gains


def test_the_best_trial_is_feasible():
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna_gains.search(15)
    done = study.get_trials(states=[optuna.trial.TrialState.COMPLETE])
    best = study.best_trial
    assert best.constraints["violation"] <= 0
    assert any(trial.constraints["violation"] > 0 for trial in done)
    assert best.value == min(trial.value for trial in done if trial.constraints["violation"] <= 0)
    loss, violation = optuna_gains.train(best.params["ki"], best.params["kp"])
    assert loss == best.value
    assert violation <= optuna_gains.TOLERANCE
    # The exact solution: ridge regression with the norm at its limit.
    assert loss == pytest.approx(exact_loss(), rel=0.02)


def exact_loss():
    import cvxpy as cp
    import torch

    rng = torch.Generator().manual_seed(0)
    x = torch.randn(200, 4, generator=rng)
    y = x @ torch.tensor([2.0, -1.0, 0.5, 1.0]) + 0.1 * torch.randn(200, generator=rng)
    weights = cp.Variable(4)
    loss = cp.sum_squares(x.double().numpy() @ weights - y.double().numpy()) / 200
    return cp.Problem(cp.Minimize(loss), [cp.sum_squares(weights) <= optuna_gains.LIMIT]).solve(
        solver="CLARABEL"
    )
