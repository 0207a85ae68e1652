"""Parts that may stand in a training loop beside the Lagrangian; all of them are public as `nupi.<name>`."""
