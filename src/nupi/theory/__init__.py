"""Predict a run before you start it: the paper's analysis of nuPI as functions.

| module            | question                                                                          |
| ----------------- | --------------------------------------------------------------------------------- |
| `relative_update` | how does a step of nuPI differ from one of gradient ascent?                       |
| `momentum_map`    | which momentum method, if any, equals nuPI with these gains?                      |
| `flow`            | which path do gradient descent and nuPI take in continuous time, on any problem?  |
| `spectrum`        | does a quadratic program converge, oscillate or diverge, and which kp is critical? |
| `discrete`        | the same with real step sizes: is it stable, and by what factor does a step contract? |
| `suggest`         | which gains should I start from, for this model and this batch?                   |
"""

from nupi.theory import discrete, flow, momentum_map, relative_update, spectrum
from nupi.theory.discrete import iteration_matrix, spectral_radius, stability_region
from nupi.theory.flow import FlowProblem, solve_flow, solve_oscillator
from nupi.theory.momentum_map import Momentum, as_momentum
from nupi.theory.spectrum import Regime, critical_kp, regime
from nupi.theory.suggest import Suggestion, suggest_gains

__all__ = [
    "FlowProblem",
    "Momentum",
    "Regime",
    "Suggestion",
    "as_momentum",
    "critical_kp",
    "discrete",
    "flow",
    "iteration_matrix",
    "momentum_map",
    "regime",
    "relative_update",
    "solve_flow",
    "solve_oscillator",
    "spectral_radius",
    "spectrum",
    "stability_region",
    "suggest_gains",
]
