"""One step of a dual optimizer over the multipliers of some constraints."""
