"""Gains that find themselves, against gains set by hand: problems, runs and the target `self-tuned`."""
