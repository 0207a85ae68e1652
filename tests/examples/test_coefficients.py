"""Each example brings its metric to the target, and keeps it there over the last quarter of training."""

from statistics import mean

import pytest
from examples import actor_critic_entropy, language_model_kl, sparse_autoencoder_l0, vae_rate


def last(record, which):
    return mean(row[which] for row in record[-len(record) // 4 :])


def test_the_kl_to_the_reference_is_at_its_target_and_the_reward_is_up():
    record = language_model_kl.train(200)
    assert last(record, 1) == pytest.approx(language_model_kl.TARGET, rel=0.15)
    assert last(record, 0) > record[0][0] + 0.15


def test_the_entropy_of_the_actor_is_at_its_target_and_the_reward_is_up():
    record = actor_critic_entropy.train()
    assert last(record, 1) == pytest.approx(actor_critic_entropy.TARGET, abs=0.15)
    assert last(record, 0) > mean(row[0] for row in record[:20]) + 0.2
    assert all(row[2] >= 0 for row in record)


def test_the_rate_of_the_vae_is_at_its_target_and_its_distortion_is_down():
    record = vae_rate.train()
    assert last(record, 1) == pytest.approx(vae_rate.TARGET, rel=0.1)
    assert last(record, 0) < 0.6 * record[0][0]


def test_the_l0_of_the_sparse_autoencoder_is_at_its_target_and_its_error_is_down():
    record = sparse_autoencoder_l0.train()
    assert last(record, 1) == pytest.approx(sparse_autoencoder_l0.TARGET, rel=0.1)
    assert last(record, 0) < 0.5 * record[0][0]
