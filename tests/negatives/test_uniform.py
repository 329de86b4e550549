import math

import pytest
import torch

from crossbatch.negatives import Candidates, Corpus, UniformSampler
from crossbatch.negatives.samplers import draw_distinct

CORPUS = Corpus(torch.tensor([0, *range(1, 41)]), dim=2)
BATCH = Candidates(torch.zeros(3, 2), torch.tensor([1, 2, 3]), torch.zeros(3))
USERS = torch.zeros(3, 2)


def encode(ids):
    return torch.stack([ids.float(), -ids.float()], dim=1)


def test_draws_distinct_items_with_their_vectors():
    drawn = UniformSampler(CORPUS, num_negatives=15).draw(USERS, BATCH, encode)
    ids = drawn.item_ids.tolist()
    assert len(set(ids)) == len(ids) == 15
    assert torch.equal(drawn.embeddings, encode(drawn.item_ids))
    assert drawn.log_q.tolist() == pytest.approx([-math.log(40)] * 15)


def test_a_small_catalogue_is_drawn_whole():
    drawn = UniformSampler(CORPUS, num_negatives=1280).draw(USERS, BATCH, encode)
    assert sorted(drawn.item_ids.tolist()) == list(range(1, 41))


@pytest.mark.parametrize("count", [3, 12, 30, 40])  # rejection below half, permutation above
def test_every_item_and_every_pair_is_equally_likely(count):
    """Inclusion probability n/N, joint probability n(n−1)/(N(N−1)); 5 sigma over all cells."""
    draws, N = 3000, 40
    seen = torch.zeros(draws, N + 1)
    for row in seen:
        row[draw_distinct(N, count, torch.device("cpu"))] = 1
    assert (seen.sum(dim=1) == count).all()
    assert not seen[:, 0].any()
    share = seen[:, 1:].mean(dim=0)
    p = count / N
    assert ((share - p).abs() <= 5 * math.sqrt(p * (1 - p) / draws) + 1e-12).all()
    pairs = (seen[:, 1:].T @ seen[:, 1:] / draws).fill_diagonal_(0)
    p2 = count * (count - 1) / (N * (N - 1))
    gap = (pairs - p2).abs().fill_diagonal_(0)
    assert (gap <= 5 * math.sqrt(p2 * (1 - p2) / draws) + 1e-6).all()


def test_gradient_reaches_the_encoder():
    table = torch.randn(41, 2, requires_grad=True)
    drawn = UniformSampler(CORPUS, num_negatives=5).draw(USERS, BATCH, lambda ids: table[ids])
    drawn.embeddings.sum().backward()
    assert sorted(table.grad.any(dim=1).nonzero().flatten()) == sorted(drawn.item_ids)


def test_log_uniform_is_zipf_over_the_rank():
    """P(i) = log((i+1)/i) / log(N+1), and −log q is its own log."""
    sampler = UniformSampler(CORPUS, num_negatives=40_000, law="log_uniform")
    drawn = sampler.draw(USERS, BATCH, encode)
    q = torch.tensor([math.log((i + 1) / i) / math.log(41) for i in range(1, 41)])
    assert float(q.sum()) == pytest.approx(1.0)
    share = torch.bincount(drawn.item_ids, minlength=41)[1:] / 40_000
    assert ((share - q).abs() <= 5 * (q * (1 - q) / 40_000).sqrt()).all()
    torch.testing.assert_close(sampler.log_q(torch.arange(1, 41)), q.log())


@pytest.mark.parametrize("law", ["uniform", "log_uniform"])
@pytest.mark.parametrize("item_ids", [[0], [41], [-1]])
def test_ids_outside_the_catalogue_are_refused(law, item_ids):
    sampler = UniformSampler(CORPUS, law=law)
    with pytest.raises(ValueError, match="item_ids must lie between 1 and 40"):
        sampler.log_q(torch.tensor(item_ids))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_negatives": 0}, "num_negatives must be at least 1, got 0"),
        ({"law": "zipf"}, "law must be 'uniform' or 'log_uniform', got 'zipf'"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        UniformSampler(CORPUS, **options)
