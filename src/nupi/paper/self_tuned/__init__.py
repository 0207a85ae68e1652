"""Gains that find themselves, against gains set by hand: problems, runs, and the targets that show them."""
