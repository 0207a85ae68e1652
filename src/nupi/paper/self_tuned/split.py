"""Which problems the rule's constants were chosen on, and which were kept back to report on.

The lists were fixed before the rule was final. The SVM and the plane are few enough to be development problems as a
whole: what is reported on them shows what the rule can do, not that it carries over.
"""

from __future__ import annotations

from typing import Any

DEVELOPMENT: dict[str, Any] = {
    "quadratic programs": range(1, 13),
    "networks": ("adult_rows", "blobs"),
    "network seeds": (0, 1),
    "seen": ("autoencoder", "wine"),
    "first problems": (
        "equalized odds",
        "one constraint per sample",
    ),  # tests/optim/test_self_tuned_first_problems.py
}
TEST: dict[str, Any] = {
    "quadratic programs": range(2026, 2226),
    "networks": ("low_digits", "adult_rows"),
    "network seeds": (10, 11, 12, 13, 14),
    "unseen": ("tumours", "diabetes"),
    "unseen seeds": (0, 1, 2, 3, 4),
    "blind": ("codes", "light digits"),
    "blind seeds": (0, 1, 2, 3, 4),
}
