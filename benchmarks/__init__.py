"""Benchmarks against Cooper and hand-written loops. All that is compared is timed in turns within one run."""
