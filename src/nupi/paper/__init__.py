"""The reproduction of the paper: a module for each family of figures, and the runner that checks them."""
