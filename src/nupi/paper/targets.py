"""Where the targets are: each module registers its own with `nupi.paper.runner.target` when imported."""

MODULES: tuple[str, ...] = (
    "nupi.paper.svm.dynamics",
    "nupi.paper.svm.sensitivity",
    "nupi.paper.svm.smoothing",
    "nupi.paper.svm.beyond",
)
