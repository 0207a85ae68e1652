"""Where the targets are: each module registers its own with `nupi.paper.runner.target` when imported."""

MODULES: tuple[str, ...] = (
    "nupi.paper.fairness",
    "nupi.paper.fairness_nu",
)
