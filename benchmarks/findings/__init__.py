"""Evaluate the findings of a monitor like a classifier, on runs for which the right findings are known."""
