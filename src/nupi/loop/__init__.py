"""Parts of a training loop besides the Lagrangian; all of them are public as `nupi.<name>`."""
