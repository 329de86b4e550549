"""Users of several weighted queries: losses and gradients against sums in plain Python floats."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from crossbatch.negatives import (
    SAMPLERS,
    Candidates,
    Corpus,
    CrossBatchSoftmax,
    Queries,
    diagnose,
    sampled_softmax_loss,
)

B, K, D, M = 5, 3, 4, 7


def batch(seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype)

    log_weights = randn(B, K)
    log_weights[0, 1:] = -math.inf  # one query
    log_weights[1, 0] = -math.inf  # absent ones need not be the last
    ids = torch.tensor([3, 1, 3, 2, 5])  # a repeated positive
    positives = Candidates(randn(B, D), ids, randn(B))
    bank = Candidates(randn(M, D), torch.tensor([1, 2, 3, 4, 5, 6, 7]), randn(M), cached=True)
    return randn(B, K, D), log_weights, positives, bank


def brute_force(vectors, log_weights, positives, negatives, *, temperature, exclude, mask="both"):
    """Row by row, query by query, column by column."""
    cached = [part.cached for part in negatives.parts for _ in range(len(part))]

    def score(r, item):
        terms = [
            math.exp(a + math.fsum(x * y for x, y in zip(q, item, strict=True)) / temperature)
            for q, a in zip(vectors[r].tolist(), log_weights[r].tolist(), strict=True)
        ]
        return math.log(math.fsum(terms))

    losses = []
    for r in range(len(vectors)):
        own = score(r, positives.embeddings[r].tolist()) - float(positives.log_q[r])
        total = math.exp(own)
        for c in range(len(negatives)):
            same = int(negatives.item_ids[c]) == int(positives.item_ids[r])
            if (same and not (mask == "batch" and cached[c])) or exclude[r][c]:
                continue
            item = negatives.embeddings[c].tolist()
            total += math.exp(score(r, item) - float(negatives.log_q[c]))
        losses.append(math.log(total) - own)
    return torch.tensor(losses, dtype=torch.float64)


@pytest.mark.parametrize("chunk_size", [None, 1, 4])
@pytest.mark.parametrize("mask", ["both", "batch"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_losses_equal_brute_force(mask, chunk_size, dtype):
    vectors, log_weights, positives, bank = batch(dtype=dtype)
    negatives = positives + bank
    exclude = torch.rand(B, len(negatives), generator=torch.Generator().manual_seed(2)) < 0.2
    options = {"temperature": 0.7, "exclude": exclude, "mask": mask}
    truth = brute_force(vectors, log_weights, positives, negatives, **options)
    queries = Queries(vectors, log_weights)
    losses = sampled_softmax_loss(
        queries, positives, negatives, chunk_size=chunk_size, reduction="none", **options
    )
    mean = sampled_softmax_loss(queries, positives, negatives, chunk_size=chunk_size, **options)
    torch.testing.assert_close(losses.double(), truth, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(mean.double(), truth.mean(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("chunk_size", [None, 2])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_gradients_of_vectors_weights_items_and_temperature(reduction, chunk_size):
    vectors, log_weights, positives, bank = batch()
    present = log_weights > -math.inf

    def loss(vectors, weights, items, temperature):
        log_weights = torch.full((B, K), -math.inf, dtype=torch.float64)
        log_weights = log_weights.masked_scatter(present, weights)
        own = Candidates(items, positives.item_ids, positives.log_q)
        return sampled_softmax_loss(
            Queries(vectors, log_weights),
            own,
            own + bank,
            temperature=temperature,
            reduction=reduction,
            chunk_size=chunk_size,
        )

    leaves = (vectors, log_weights[present], positives.embeddings, torch.tensor(0.6).double())
    assert gradcheck(loss, tuple(leaf.clone().requires_grad_() for leaf in leaves))


def test_absent_queries_get_no_gradient():
    vectors, log_weights, positives, bank = batch(dtype=torch.float32)
    vectors.requires_grad_()
    sampled_softmax_loss(Queries(vectors, log_weights), positives, positives + bank).backward()
    absent = log_weights == -math.inf
    assert not vectors.grad[absent].any()
    assert vectors.grad[~absent].abs().amin(dim=1).gt(0).all()


def test_one_query_of_weight_one_is_a_user_vector():
    vectors, _, positives, bank = batch(dtype=torch.float32)
    alone = sampled_softmax_loss(vectors[:, 0], positives, positives + bank, temperature=0.5)
    queries = Queries(vectors[:, :1], torch.zeros(B, 1))
    together = sampled_softmax_loss(queries, positives, positives + bank, temperature=0.5)
    torch.testing.assert_close(together, alone)


def test_two_halves_of_a_query_are_the_query():
    vectors, _, positives, bank = batch(dtype=torch.float32)
    alone = sampled_softmax_loss(vectors[:, 0], positives, positives + bank)
    halves = Queries(vectors[:, [0, 0]], torch.full((B, 2), math.log(0.5)))
    torch.testing.assert_close(sampled_softmax_loss(halves, positives, positives + bank), alone)


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_takes_queries(name):
    torch.manual_seed(0)
    counts = torch.tensor([0, 4, 3, 5, 1, 2, 6, 1])
    options = {"uniform": {"num_negatives": 4}, "mixed": {"num_uniform": 3}}.get(name, {})
    if name == "cross_batch":
        options = {"capacity": 6, "warmup_steps": 0, "item_gradient": "balanced"}
    sampler = SAMPLERS[name](Corpus(counts, D), **options)
    table = torch.randn(8, D)
    vectors, log_weights, given, _ = batch(dtype=torch.float32)
    queries = Queries(vectors, log_weights)
    for _ in range(2):  # the second time there is a bank to read
        ids = given.item_ids
        positives = Candidates(table[ids], ids, sampler.log_q(ids))
        negatives = sampler.draw(queries, positives, lambda ids: table[ids])
        found = sampled_softmax_loss(queries, positives, negatives, reduction="none")
        nothing = torch.zeros(B, len(negatives), dtype=torch.bool)
        truth = brute_force(
            vectors, log_weights, positives, negatives, temperature=1.0, exclude=nothing
        )
        torch.testing.assert_close(found.double(), truth, rtol=1e-5, atol=1e-5)
        sampler.observe(positives)


def test_the_drop_in_loss_takes_queries_and_fills_its_bank():
    vectors, log_weights, positives, _ = batch(dtype=torch.float32)
    loss_fn = CrossBatchSoftmax(D, capacity=2 * B, warmup_steps=0, temperature=0.5)
    queries, ids = Queries(vectors, log_weights), positives.item_ids
    items = [positives.embeddings, torch.randn(B, D)]
    for step in range(2):
        own = Candidates(items[step], ids, torch.zeros(B))
        columns = own if step == 0 else own + Candidates(items[0], ids, torch.zeros(B), cached=True)
        nothing = torch.zeros(B, len(columns), dtype=torch.bool)
        truth = brute_force(vectors, log_weights, own, columns, temperature=0.5, exclude=nothing)
        found = loss_fn(queries, items[step], ids)
        torch.testing.assert_close(found.double(), truth.mean(), rtol=1e-5, atol=1e-5)
    assert len(loss_fn.bank) == 2 * B
    assert loss_fn.stats()["effective_negatives"] > 1


def test_diagnostics_are_those_of_the_joint_score():
    vectors, log_weights, positives, bank = batch(dtype=torch.float32)
    found = diagnose(Queries(vectors, log_weights), positives, positives + bank, temperature=0.7)
    scores = (vectors / 0.7) @ (positives + bank).embeddings.T + log_weights.unsqueeze(2)
    scores = scores.exp().sum(dim=1).log() - (positives + bank).log_q
    own = scores[:, :B].diagonal()
    others = scores.masked_fill(
        (positives + bank).item_ids == positives.item_ids.unsqueeze(1), -math.inf
    )
    expected = (others.amax(dim=1) - own).mean()
    assert found["hardness"] == pytest.approx(float(expected), abs=1e-5)
    assert found["gradient_ratio"] > 0


@pytest.mark.parametrize(
    ("vectors", "log_weights", "message"),
    [
        (torch.randn(2, 3), torch.zeros(2, 3), r"vectors must be a floating-point tensor of shape"),
        (torch.zeros(2, 3, 4).long(), torch.zeros(2, 3), "got torch.int64"),
        (torch.randn(2, 3, 4), torch.zeros(2, 4), r"log_weights must hold one number a query"),
    ],
)
def test_queries_of_the_wrong_shape_are_refused(vectors, log_weights, message):
    with pytest.raises(ValueError, match=message):
        Queries(vectors, log_weights)


def test_a_user_without_a_query_is_refused():
    vectors, log_weights, positives, _ = batch(dtype=torch.float32)
    log_weights[3] = -math.inf
    with pytest.raises(ValueError, match="user 3 has no query"):
        sampled_softmax_loss(Queries(vectors, log_weights), positives, positives)


def test_as_many_queries_as_positives():
    vectors, log_weights, positives, _ = batch(dtype=torch.float32)
    with pytest.raises(ValueError, match="positives must hold one column per user, 4, got 5"):
        sampled_softmax_loss(Queries(vectors, log_weights).rows(slice(4)), positives, positives)
