"""The streaming estimate of q: the limit it must reach, drift, duplicates, collisions, state."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbatch.negatives import (
    Candidates,
    Corpus,
    CrossBatchSampler,
    CrossBatchSoftmax,
    InBatchSampler,
    StreamingFrequency,
)


def stream(frequency, q, batches, size=32, seed=0):
    """Feed batches drawn from `q` `[R]`."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(batches):
        frequency.observe(torch.multinomial(q, size, replacement=True, generator=generator))


def test_a_batch_at_a_time_by_hand():
    frequency = StreamingFrequency(1000, tables=1, rate=0.5)
    frequency.observe(torch.tensor([7, 7, 3, 4]))  # rows 1-4: 7 came twice
    assert frequency(torch.tensor([7])).exp().item() == pytest.approx(2 / 4)
    assert frequency(torch.tensor([3])).exp().item() == pytest.approx(1 / 4)
    frequency.observe(torch.tensor([3, 5, 6, 8]))
    frequency.observe(torch.tensor([7, 5, 6, 8]))
    # 7: gaps 4 and 8, hits 2 and 1, both as plain means so far
    assert frequency(torch.tensor([7])).exp().item() == pytest.approx(1.5 / 6)
    frequency.observe(torch.tensor([7, 1, 1, 1]))
    # third time: the weight is 0.5, not 1/3
    assert frequency(torch.tensor([7])).exp().item() == pytest.approx(1.25 / 5)


def test_an_item_that_never_came_counts_as_one_that_comes_now():
    frequency = StreamingFrequency(1000)
    assert frequency(torch.tensor([5, 6])).exp().tolist() == pytest.approx([0.5, 0.5])
    frequency.observe(torch.tensor([1, 2, 3]))
    assert frequency(torch.tensor([5])).exp().item() == pytest.approx(1 / 4)


def test_frequent_and_rare_items_both_reach_their_true_frequency():
    q = torch.tensor([0.0, 0.5, 0.25, 0.1, 0.1, 0.03, 0.015, 0.005])
    frequency = StreamingFrequency(4096, rate=0.002)
    stream(frequency, q, 4000)
    estimate = frequency(torch.arange(1, 8)).exp()
    # The inverse mean gap in batches of 32 would say 1/32 for every item that is in nearly all.
    assert (estimate / q[1:]).tolist() == pytest.approx([1.0] * 7, rel=0.1)


def test_it_follows_popularity_that_drifts():
    before, after = torch.tensor([0.0, 0.6, 0.4]), torch.tensor([0.0, 0.1, 0.9])
    frequency = StreamingFrequency(64, rate=0.05)
    stream(frequency, before, 300)
    stream(frequency, after, 300, seed=1)
    assert frequency(torch.tensor([1, 2])).exp().tolist() == pytest.approx([0.1, 0.9], rel=0.25)


def test_a_collision_in_one_table_does_not_count():
    frequency = StreamingFrequency(13, tables=2)
    ids = torch.arange(1, 2000)
    first, second = frequency._cells(ids)
    rare = 1
    together = ids[(first == first[0]) & (second != second[0]) & (ids != rare)][:3]
    for _ in range(200):
        frequency.observe(together)
    frequency.observe(torch.tensor([rare]))
    alone = StreamingFrequency(13, tables=1)
    for _ in range(200):
        alone.observe(together)
    alone.observe(torch.tensor([rare]))
    assert frequency(torch.tensor([rare])).exp().item() == pytest.approx(1 / 601, rel=1e-5)
    assert alone(torch.tensor([rare])).exp().item() > 0.1


@given(st.lists(st.integers(1, 2**62), min_size=1, max_size=40), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_any_ids_give_finite_log_probabilities(ids, tables):
    frequency = StreamingFrequency(97, tables=tables)
    item_ids = torch.tensor(ids)
    for _ in range(2):
        log_q = frequency(item_ids)
        assert log_q.shape == item_ids.shape
        assert bool((log_q <= 1e-6).all())
        assert bool(torch.isfinite(log_q).all())
        frequency.observe(item_ids)


def test_ids_spread_evenly_over_the_buckets():
    cells = StreamingFrequency(64, tables=4)._cells(torch.arange(1, 64_001))
    for row in cells:
        counts = torch.bincount(row, minlength=64).double()
        chi2 = float(((counts - 1000) ** 2 / 1000).sum())
        assert chi2 < 63 + 6 * math.sqrt(2 * 63)


def test_state_resumes_exactly_and_precision_stays():
    q = torch.rand(50).double()
    frequency = StreamingFrequency(256)
    stream(frequency, q, 20)
    other = StreamingFrequency(256)
    other.load_state_dict(frequency.state_dict())
    stream(frequency, q, 20, seed=2)
    stream(other, q, 20, seed=2)
    ids = torch.arange(50)
    assert torch.equal(frequency(ids), other(ids))
    assert frequency.half().rows.dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buckets": 0}, "buckets must be at least 1, got 0"),
        ({"tables": 5}, "tables must be 1 to 4, got 5"),
        ({"rate": 0.0}, "rate must be above 0 and at most 1, got 0.0"),
    ],
)
def test_bad_options_are_one_sentence(options, message):
    with pytest.raises(ValueError, match=message):
        StreamingFrequency(**options)


def test_the_drop_in_loss_learns_q_in_training_only():
    loss_fn = CrossBatchSoftmax(dim=4, capacity=8, item_counts=StreamingFrequency(64))
    u, v, ids = torch.randn(3, 4), torch.randn(3, 4), torch.tensor([1, 1, 2])
    loss_fn(u.requires_grad_(), v, ids)
    assert int(loss_fn.frequency.clock) == 3
    loss_fn.eval()
    loss_fn(u, v, ids)
    assert int(loss_fn.frequency.clock) == 3
    # With the learned q the positive of item 1 is corrected by log 2/3.
    expected = torch.tensor([2 / 3, 2 / 3, 1 / 3]).log()
    assert torch.allclose(loss_fn._log_q(ids), expected)


@pytest.mark.parametrize("sampler_type", [InBatchSampler, CrossBatchSampler])
def test_samplers_use_the_stream_instead_of_the_counts(sampler_type):
    corpus = Corpus(torch.tensor([0, 1, 1000]), dim=2)  # counts that no longer hold
    sampler = sampler_type(corpus, streaming_q=True)
    ids = torch.tensor([1, 1, 1, 2])
    for _ in range(3):
        sampler.observe(Candidates(torch.randn(4, 2), ids, sampler.log_q(ids)))
    assert sampler.log_q(torch.tensor([1, 2])).exp().tolist() == pytest.approx([0.75, 0.25])
