"""Train PyTorch models under constraints, with Lagrange multipliers that converge instead of oscillating."""

__version__ = "0.1.0"
