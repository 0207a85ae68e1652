"""Benchmarks of other libraries."""
