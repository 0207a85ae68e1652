"""Where the targets are: each module registers its own with `nupi.paper.runner.target` when imported."""

MODULES: tuple[str, ...] = (
    "nupi.paper.svm.dynamics",
    "nupi.paper.svm.sensitivity",
    "nupi.paper.svm.smoothing",
    "nupi.paper.svm.beyond",
    "nupi.paper.sheet",
    "nupi.paper.updates",
    "nupi.paper.oscillator",
    "nupi.paper.bilinear",
    "nupi.paper.plane_targets",
    "nupi.paper.fairness",
    "nupi.paper.fairness_nu",
    "nupi.paper.rivals.targets",
    "nupi.paper.sparsity.table_targets",
    "nupi.paper.sparsity.dynamics",
    "nupi.paper.sparsity.kp",
    "nupi.paper.sparsity.ablations",
    "nupi.paper.sparsity.beyond",
)
