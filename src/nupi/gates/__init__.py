"""Gates: train a sparse network under a constraint on its density, then take the closed parts out.

nupi.gates.attach(model, "layer*.conv1", clamp=4.6)             # gates on channels, by name
...
violations = {"density": nupi.gates.density(model) - 0.3}       # at most 30% of the gated parameters
lagrangian.ascend(dual, violations)
lagrangian(loss, violations).backward()
...
small = nupi.gates.harvest(model, example)                      # a plain, smaller network
"""

from nupi.gates.attaching import attach
from nupi.gates.budgets import Budget, budget
from nupi.gates.densities import density, gate_parameters, gated_layers, layer_densities, weight_parameters
from nupi.gates.hard_concrete import HardConcrete, probability_active, quantile
from nupi.gates.harvesting import Harvest, HarvestError, harvest
from nupi.gates.layers import Gated, GatedBatchNorm1d, GatedBatchNorm2d, GatedConv1d, GatedConv2d, GatedLinear
from nupi.gates.norms import GatedGroupNorm, GatedLayerNorm, GatedRMSNorm
from nupi.gates.transformer.attaching import attach_transformer
from nupi.gates.transformer.layers import GatedInputLinear
from nupi.gates.transformer.pretrained import from_pretrained

__all__ = [
    "Budget",
    "Gated",
    "GatedBatchNorm1d",
    "GatedBatchNorm2d",
    "GatedConv1d",
    "GatedConv2d",
    "GatedGroupNorm",
    "GatedInputLinear",
    "GatedLayerNorm",
    "GatedLinear",
    "GatedRMSNorm",
    "HardConcrete",
    "Harvest",
    "HarvestError",
    "attach",
    "attach_transformer",
    "budget",
    "density",
    "from_pretrained",
    "gate_parameters",
    "gated_layers",
    "harvest",
    "layer_densities",
    "probability_active",
    "quantile",
    "weight_parameters",
]
