"""The fairness experiment: statistical parity on Adult, and the targets `fairness` and `fairness-nu`."""
