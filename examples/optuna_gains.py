"""Search for the gains of nuPI with Optuna, with feasibility as a constraint of the search, not in its objective.

A trial trains a small regression under a bound on the norm of its weights, with gains that Optuna suggests. It returns
the loss and the largest violation over the last steps. Optuna prefers trials without violation, and among these the
lowest loss.

    pip install 'optuna>=5'
    python examples/optuna_gains.py
"""

from __future__ import annotations

import optuna
import torch

import nupi

LIMIT, TOLERANCE = 1.0, 1e-3


def train(ki: float, kp: float, steps: int = 150) -> tuple[float, float]:
    """The loss at the end, and the largest violation over the last steps."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(200, 4, generator=rng)
    y = x @ torch.tensor([2.0, -1.0, 0.5, 1.0]) + 0.1 * torch.randn(200, generator=rng)
    weights = torch.zeros(4, requires_grad=True)
    primal = torch.optim.SGD([weights], lr=0.02, momentum=0.9)
    lagrangian = nupi.Lagrangian({"norm": nupi.Inequality()})
    dual = nupi.NuPI(lagrangian.parameters(), ki=ki, kp=kp)
    over = []
    for _ in range(steps):
        loss = (x @ weights - y).square().mean()
        violation = weights.square().sum() - LIMIT
        over.append(violation.item())
        lagrangian.ascend(dual, {"norm": violation})
        lagrangian(loss, {"norm": violation}).backward()
        primal.step()
        primal.zero_grad()
    return (x @ weights - y).square().mean().item(), max(over[-20:])


def objective(trial: optuna.Trial) -> float:
    """One training run."""
    ki = trial.suggest_float("ki", 1e-3, 10.0, log=True)
    kp = trial.suggest_float("kp", 1e-2, 100.0, log=True)
    try:
        loss, violation = train(ki, kp)
    except nupi.NonFiniteViolationError:  # these gains make the model diverge
        raise optuna.TrialPruned from None
    trial.set_constraint("violation", violation - TOLERANCE)  # feasible if <= 0
    return loss


def search(trials: int = 40) -> optuna.Study:
    """Run the study; its best trial is feasible."""
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=trials)
    return study


def main() -> None:
    """Search, and print the best gains."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = search()
    done = study.get_trials(states=[optuna.trial.TrialState.COMPLETE])
    best = study.best_trial
    feasible = sum(trial.constraints["violation"] <= 0 for trial in done)
    print(f"{feasible} of {len(study.trials)} trials were feasible")
    print(f"best: ki={best.params['ki']:.3g}, kp={best.params['kp']:.3g}, loss {best.value:.4f}")


if __name__ == "__main__":
    main()
