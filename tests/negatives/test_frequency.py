"""Estimates of q: laws by enumeration, and the limit that the streaming one must reach."""

import copy
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
    item_frequency,
    no_correction,
    sampler_law,
)
from crossbatch.negatives.frequency import LogFrequency


def test_item_frequency_counts_and_ignores_padding():
    assert item_frequency(torch.tensor([3, 1, 3, 0, 3]), 4).tolist() == [0, 1, 0, 3, 0]


def test_no_correction_is_constant():
    assert no_correction(3).tolist() == [0, 1, 1, 1]


def test_sampler_law_by_hand():
    # User A: items 1 2 3 4 | 5 6 → targets 5, 6, each 1/2. User B: 1 2 3 4 | 5 → target 5.
    # User C is too short to be drawn. q(5) = (1/2 + 1)/2 = 3/4, q(6) = (1/2)/2 = 1/4.
    items = torch.tensor([1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 6])
    q = sampler_law(torch.tensor([0, 6, 11, 13]), items, 6, min_history=4)
    assert q.tolist() == [0, 0, 0, 0, 0, 0.75, 0.25]
    # Three targets drawn alike: 5 twice, 6 once.
    q = sampler_law(torch.tensor([0, 6, 11, 13]), items, 6, min_history=4, sample_by="interaction")
    assert q.tolist() == [0, 0, 0, 0, 0, 2 / 3, 1 / 3]


@settings(deadline=None, max_examples=50)
@given(
    users=st.lists(st.lists(st.integers(1, 6), max_size=8), min_size=1, max_size=6),
    min_history=st.integers(0, 5),
)
def test_sampler_law_against_a_loop(users, min_history):
    lengths = [len(sequence) for sequence in users]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    items = torch.tensor([i for sequence in users for i in sequence], dtype=torch.int64)
    eligible = [sequence[min_history:] for sequence in users if len(sequence) > min_history]
    if not eligible:
        with pytest.raises(
            ValueError, match=f"no sequence is longer than min_history={min_history}"
        ):
            sampler_law(offsets, items, 6, min_history=min_history)
        return
    q = sampler_law(offsets, items, 6, min_history=min_history)
    expected = [sum(t.count(i) / len(t) for t in eligible) / len(eligible) for i in range(7)]
    assert q.tolist() == pytest.approx(expected)
    assert float(q.sum()) == pytest.approx(1.0)
    q = sampler_law(offsets, items, 6, min_history=min_history, sample_by="interaction")
    targets = [item for sequence in eligible for item in sequence]
    assert q.tolist() == pytest.approx([targets.count(i) / len(targets) for i in range(7)])


def test_sampler_law_is_what_batches_draw():
    """Users uniformly, then a target position uniformly: counts of 20,000 draws, 4.5 sigma."""
    users = [[1, 2, 3, 4, *[5] * 12, 6], [1, 1, 1, 1, 6], [2, 2, 2, 2, 3, 6]]
    offsets = torch.tensor([0, *[len(s) for s in users]]).cumsum(0)
    items = torch.tensor([i for sequence in users for i in sequence])
    q = sampler_law(offsets, items, 6, min_history=4)
    draws = 20_000
    user = torch.randint(0, 3, (draws,))
    lengths = offsets.diff()[user]
    position = 4 + (torch.rand(draws) * (lengths - 4)).long()
    drawn = items[offsets[:-1][user] + position]
    share = torch.bincount(drawn, minlength=7) / draws
    sigma = (q * (1 - q) / draws).sqrt()
    assert ((share - q).abs() <= 4.5 * sigma).all()
    raw = item_frequency(items, 6)
    assert abs(float(raw[5] / raw.sum() - q[5])) > 0.1  # the raw frequency is another distribution


def test_log_q_is_the_log_of_the_share():
    log_q = LogFrequency(torch.tensor([0, 1, 3]))(torch.tensor([2, 1, 1]))
    assert log_q.tolist() == pytest.approx([math.log(0.75), math.log(0.25), math.log(0.25)])
    assert log_q.dtype == torch.float32


@pytest.mark.parametrize("moved", [torch.float16, torch.bfloat16, torch.float64])
def test_changing_the_precision_keeps_log_q(moved):
    counts = torch.tensor([0, 5, 7, 7_145_469])
    table = LogFrequency(counts)
    before = table(torch.tensor([1, 2]))
    after = copy.deepcopy(table).to(moved)(torch.tensor([1, 2]))
    assert torch.equal(before, after)
    assert float(after[1] - after[0]) == pytest.approx(math.log(7 / 5), abs=1e-5)


def test_the_table_is_not_in_checkpoints():
    assert not LogFrequency(torch.tensor([0, 1])).state_dict()


@pytest.mark.parametrize(
    ("item_ids", "message"),
    [
        (torch.tensor([1, 9]), "item_ids must lie between 0 and 3, got 1 to 9; item_counts"),
        (torch.tensor([-1, 1]), "item_ids must lie between 0 and 3, got -1 to 1"),
        (torch.tensor([1, 2]), "item_ids hold 2, whose count is 0, so log q is -inf; count"),
        (torch.tensor([0]), "item_ids hold 0, whose count is 0"),
        (torch.tensor([1.0]), r"item_ids must be int64, got torch.float32; .*\.long\(\)"),
        (torch.tensor([True]), "item_ids must be int64, got torch.bool"),
    ],
)
def test_bad_ids_are_refused(item_ids, message):
    with pytest.raises(ValueError, match=message):
        LogFrequency(torch.tensor([0, 4, 0, 5]))(item_ids)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (torch.tensor([0.0, -1.0]), "item_counts must be finite and not negative, got -1"),
        (torch.tensor([0.0, float("inf")]), "item_counts .*got inf"),
        (torch.ones(2, 3), r"item_counts must have shape .*\[2, 3\]"),
    ],
)
def test_bad_counts_are_refused(counts, message):
    with pytest.raises(ValueError, match=message):
        LogFrequency(counts)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: item_frequency(torch.tensor([1, 5]), 4),
            "items must lie between 0 and 4, got 1 to 5",
        ),
        (lambda: item_frequency(torch.tensor([-1]), 4), "items must lie .*got -1"),
        (lambda: item_frequency(torch.tensor([1.0]), 4), "items must be int64, got torch.float32"),
        (lambda: sampler_law(torch.tensor([0, 5]), torch.ones(5).long() * 9, 6), "items must lie"),
        (
            lambda: sampler_law(torch.tensor([0, 5]), torch.ones(6).long(), 6),
            "offsets must run from 0",
        ),
        (
            lambda: sampler_law(torch.tensor([0, 5]), torch.ones(5).long(), 6, sample_by="item"),
            "sample_by must be user or interaction, got 'item'",
        ),
    ],
)
def test_bad_logs_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


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
