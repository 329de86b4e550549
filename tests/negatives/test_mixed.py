import math

import pytest
import torch

from crossbatch.negatives import Candidates, Corpus, InBatchSampler, MixedSampler

COUNTS = torch.tensor([0, 6, 3, 1, 0])  # N = 4, p = .6, .3, .1, 0
CORPUS = Corpus(COUNTS, dim=2)
IDS = torch.tensor([1, 2])


def encode(ids):
    return torch.stack([ids.float(), -ids.float()], dim=1)


def batch(sampler):
    return Candidates(encode(IDS), IDS, sampler.log_q(IDS))


def test_mixture_by_hand():
    # B = 2, B' = 3, N = 4: Q*(i) = (2 p(i) + 3/4) / 5 → .39, .27, .19, .15
    sampler = MixedSampler(CORPUS, num_uniform=3)
    positives = batch(sampler)
    assert positives.log_q.exp().tolist() == pytest.approx([0.39, 0.27])
    negatives = sampler.draw(torch.zeros(2, 2), positives, encode)
    q = {1: 0.39, 2: 0.27, 3: 0.19, 4: 0.15}
    assert sum(q.values()) == pytest.approx(1.0)
    ids = negatives.item_ids.tolist()
    assert negatives.log_q.exp().tolist() == pytest.approx([q[i] for i in ids])
    assert ids[:2] == [1, 2]
    assert len(ids) == 5


def test_an_item_has_one_q_whichever_stream_it_came_from():
    sampler = MixedSampler(CORPUS, num_uniform=4)  # all four items: 1 and 2 come twice
    negatives = sampler.draw(torch.zeros(2, 2), batch(sampler), encode)
    seen = {}
    for item, log_q in zip(negatives.item_ids.tolist(), negatives.log_q.tolist(), strict=True):
        assert seen.setdefault(item, log_q) == log_q
    assert len(seen) == 4


def test_per_stream_by_hand():
    sampler = MixedSampler(CORPUS, num_uniform=3, correction="per_stream")
    negatives = sampler.draw(torch.zeros(2, 2), batch(sampler), encode)
    assert negatives.log_q.exp().tolist() == pytest.approx([0.6, 0.3, 0.25, 0.25, 0.25])


def test_batch_size_can_be_given():
    sampler = MixedSampler(CORPUS, num_uniform=3, batch_size=6)  # (6 p + 3/4) / 9
    assert batch(sampler).log_q.exp().tolist() == pytest.approx([4.35 / 9, 2.55 / 9])


def test_without_uniform_columns_it_is_in_batch():
    mixed, plain = MixedSampler(CORPUS, num_uniform=0), InBatchSampler(CORPUS)
    positives = batch(mixed)
    assert torch.equal(positives.log_q, plain.log_q(IDS))
    assert mixed.draw(torch.zeros(2, 2), positives, encode) is positives


def test_both_streams_carry_gradient():
    table = torch.randn(5, 2, requires_grad=True)
    sampler = MixedSampler(CORPUS, num_uniform=4)
    positives = Candidates(table[IDS], IDS, sampler.log_q(IDS))
    negatives = sampler.draw(torch.zeros(2, 2), positives, lambda ids: table[ids])
    negatives.embeddings.sum().backward()
    assert table.grad[:, 0].tolist() == [0, 2, 2, 1, 1]


def test_log_space_holds_for_rare_items():
    """p = 1e-12 of a mixture with few uniform columns: no underflow, no clipping."""
    counts = torch.tensor([0.0, 1e-12, 1.0], dtype=torch.float64)
    sampler = MixedSampler(Corpus(counts, dim=2), num_uniform=1, batch_size=1_000_000)
    got = sampler.log_q(torch.tensor([1]))
    expected = math.log((1e6 * 1e-12 + 1 / 2) / (1e6 + 1))
    assert float(got) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_uniform": -1}, "num_uniform must be 0 or more, got -1"),
        ({"correction": "unigram"}, "correction must be 'mixture' or 'per_stream', got 'unigram'"),
        ({"batch_size": 0}, "batch_size must be at least 1 or None, got 0"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MixedSampler(CORPUS, **options)


def test_uniform_items_every_so_often_with_a_q_of_their_own():
    sampler, plain = MixedSampler(CORPUS, num_uniform=3, every=3), InBatchSampler(CORPUS)
    mixed = MixedSampler(CORPUS, num_uniform=3)
    for turn in range(7):
        positives = batch(sampler)
        like = mixed if turn % 3 == 0 else plain
        assert torch.equal(positives.log_q, like.log_q(IDS))
        assert len(sampler.draw(torch.zeros(2, 2), positives, encode)) == (2 if turn % 3 else 5)
        sampler.observe(positives)
        resumed = MixedSampler(CORPUS, num_uniform=3, every=3)
        resumed.load_state_dict(sampler.state_dict())
        sampler = resumed
    assert "turn" not in mixed.state_dict()
    with pytest.raises(ValueError, match="every must be at least 1"):
        MixedSampler(CORPUS, every=0)
