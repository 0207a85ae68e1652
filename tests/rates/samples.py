"""Rows to measure rates on, and what a measured violation comes to."""

import torch


def rows(count=300, groups=3, seed=0):
    """Logits, labels that the logits tell something of, and the group of each row."""
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, generator=rng, dtype=torch.float64)
    labels = (logits + torch.randn(count, generator=rng, dtype=torch.float64) > 0).long()
    return logits, labels, torch.randint(groups, (count,), generator=rng)


def dense(violation):
    """What a violation comes to, NaN where nothing was seen."""
    counts = violation.counts.expand(violation.sums.shape)
    return torch.where(counts > 0, violation.sums / counts, torch.nan)
