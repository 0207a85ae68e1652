"""The two-dimensional nonconvex problem of the paper's appendix, and the targets `plane-*`."""
