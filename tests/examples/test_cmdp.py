"""The policy is judged exactly, by the distribution of the queue, step by step."""

import numpy as np
import pytest
from examples import cmdp


def exactly(fast):
    """Mean length of the queue, and share of fast steps, of a policy with these probabilities of the fast server."""
    now, lengths, used = np.eye(cmdp.QUEUE)[0], [], []
    slow_serves, fast_serves = cmdp.SERVES.tolist()
    for _ in range(cmdp.HORIZON):
        lengths.append(now @ np.arange(cmdp.QUEUE))
        used.append(now @ fast)
        after = np.zeros(cmdp.QUEUE)
        for queue, share in enumerate(now):
            served = fast[queue] * fast_serves + (1 - fast[queue]) * slow_serves if queue else 0.0
            for arrives, a in ((1, cmdp.ARRIVES), (0, 1 - cmdp.ARRIVES)):
                for leaves, b in ((1, served), (0, 1 - served)):
                    after[min(queue + arrives - leaves, cmdp.QUEUE - 1)] += share * a * b
        now = after
    assert now.sum() == pytest.approx(1)
    return np.mean(lengths), np.mean(used)


def test_the_cost_is_within_its_limit_and_the_queue_shorter_than_without_a_choice():
    fast = cmdp.train().double().softmax(1)[:, 1].numpy()
    queue, used = exactly(fast)
    assert used <= cmdp.LIMIT + 0.02
    blind, same = exactly(np.full(cmdp.QUEUE, cmdp.LIMIT))
    assert same == pytest.approx(cmdp.LIMIT)
    assert queue < 0.9 * blind
    greedy, dear = exactly(np.ones(cmdp.QUEUE))
    assert dear > cmdp.LIMIT
    assert greedy < queue
