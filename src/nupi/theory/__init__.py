"""What can be said before a run: the paper's analysis of nuPI as functions.

| module            | question                                                                          |
| ----------------- | --------------------------------------------------------------------------------- |
| `relative_update` | what does nuPI do in one step that gradient ascent would not?                     |
| `momentum_map`    | which momentum method is this choice of gains, if any?                            |
| `flow`            | where do gradient descent and nuPI go in continuous time, on any problem?         |
| `spectrum`        | does a quadratic program converge, oscillate, diverge; which kp is critical?      |
| `discrete`        | and with real step sizes: is it stable, and by what factor does a step contract?  |
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
