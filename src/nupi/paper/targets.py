"""Where the targets are: each module registers its own with `nupi.paper.runner.target` when imported."""

MODULES: tuple[str, ...] = (
    "nupi.paper.svm.dynamics",
    "nupi.paper.svm.sensitivity",
    "nupi.paper.svm.nu",
    "nupi.paper.svm.beyond",
    "nupi.paper.analysis.sheet",
    "nupi.paper.analysis.relative_update",
    "nupi.paper.analysis.spectrum",
    "nupi.paper.analysis.bilinear",
    "nupi.paper.plane.kp",
    "nupi.paper.fairness.fairness",
    "nupi.paper.fairness.nu",
    "nupi.paper.sparsity.global_",
    "nupi.paper.sparsity.dynamics",
    "nupi.paper.sparsity.kp",
    "nupi.paper.sparsity.adam",
    "nupi.paper.sparsity.starts",
)
