"""Gates: train a network under a budget on its size, then remove the closed parts.

nupi.gates.attach(model, "layer*.conv1", clamp=4.6)             # gates on channels, by name
budget = nupi.gates.budget(model, example, flops=0.5)           # the harvested network has half the FLOPs
...
violations = {"flops": budget()}
lagrangian.ascend(dual, violations)
lagrangian(loss, violations).backward()
...
budget.fit()                                                    # close or open the last gates to meet the budget
small = nupi.gates.harvest(model, example)                      # a plain, smaller network
"""

from nupi.gates.attaching import attach
from nupi.gates.batch_norms import GatedBatchNorm1d, GatedBatchNorm2d
from nupi.gates.budgets import budget
from nupi.gates.budgets.limit import Budget
from nupi.gates.densities import density, gate_parameters, gated_layers, layer_densities, weight_parameters
from nupi.gates.hard_concrete import HardConcrete, probability_active, quantile
from nupi.gates.harvesting import Harvest, HarvestError, harvest
from nupi.gates.layers import Gated, GatedConv1d, GatedConv2d, GatedLinear
from nupi.gates.norms import GatedGroupNorm, GatedLayerNorm, GatedRMSNorm
from nupi.gates.transformer.attaching import attach_transformer
from nupi.gates.transformer.attention import HeadAttention
from nupi.gates.transformer.layers import GatedInputLinear
from nupi.gates.transformer.pretrained import from_pretrained
from nupi.gates.transformer.shipping import save_pretrained

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
    "HeadAttention",
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
    "save_pretrained",
    "weight_parameters",
]
