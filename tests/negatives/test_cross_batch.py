"""CBNS: the bank's life cycle, and what `item_gradient` does to the item tower."""

from itertools import product

import pytest
import torch

from crossbatch.negatives import Candidates, Corpus, CrossBatchSampler, sampled_softmax_loss

CORPUS = Corpus(torch.tensor([0, 4, 3, 2, 1]), dim=3)


def batch(sampler, ids):
    ids = torch.tensor(ids)
    v = torch.randn(len(ids), 3, dtype=torch.float64, requires_grad=True)
    return Candidates(v, ids, sampler.log_q(ids))


def drawn_ids(sampler, positives):
    return sampler.draw(None, positives, None).item_ids.tolist()


def test_bank_fills_during_warm_up_and_is_read_after_it():
    sampler = CrossBatchSampler(CORPUS, capacity=3, warmup_steps=2)
    for ids, expected in [
        ([1, 2], [1, 2]),  # step 0: plain in-batch
        ([3, 4], [3, 4]),  # step 1: plain in-batch
        ([1, 1], [1, 1, 2, 3, 4]),  # step 2: batch, then the newest 3 of 1 2 3 4, oldest first
        ([2, 2], [2, 2, 4, 1, 1]),
    ]:
        positives = batch(sampler, ids)
        assert drawn_ids(sampler, positives) == expected
        sampler.observe(positives)


def test_bank_may_start_empty_after_warm_up():
    sampler = CrossBatchSampler(CORPUS, capacity=3, warmup_steps=2, fill_during_warmup=False)
    for ids, expected in [
        ([1, 2], [1, 2]),
        ([3, 4], [3, 4]),
        ([1, 1], [1, 1]),  # nothing was kept so far
        ([2, 2], [2, 2, 1, 1]),
    ]:
        positives = batch(sampler, ids)
        assert drawn_ids(sampler, positives) == expected
        sampler.observe(positives)


def test_capacity_zero_and_warm_up_are_in_batch_to_the_object():
    for options in ({"capacity": 0, "warmup_steps": 0}, {"capacity": 5, "warmup_steps": 10}):
        sampler = CrossBatchSampler(CORPUS, **options)
        for _ in range(3):
            positives = batch(sampler, [1, 2])
            assert sampler.draw(None, positives, None) is positives
            sampler.observe(positives)


def test_columns_keep_their_log_q():
    sampler = CrossBatchSampler(CORPUS, capacity=4, warmup_steps=0)
    sampler.observe(batch(sampler, [1, 4]))
    negatives = sampler.draw(None, batch(sampler, [4, 1]), None)
    assert negatives.log_q.exp().tolist() == pytest.approx([0.1, 0.4, 0.4, 0.1])


def gradients(item_gradient, seed=0, M=6, B=4):
    torch.manual_seed(seed)
    sampler = CrossBatchSampler(CORPUS, capacity=M, warmup_steps=0, item_gradient=item_gradient)
    sampler.observe(batch(sampler, [1, 2, 3, 4, 1, 2][:M]))
    positives = batch(sampler, [1, 2, 3, 4][:B])
    u = torch.randn(B, 3, dtype=torch.float64, requires_grad=True)
    loss = sampled_softmax_loss(u, positives, sampler.draw(u, positives, None))
    return loss.detach(), *torch.autograd.grad(loss, (u, positives.embeddings))


def test_balancing_changes_neither_the_loss_nor_the_user_gradient():
    (loss, user, item), (loss_b, user_b, item_b) = gradients("paper"), gradients("balanced")
    # Float64, with sums in another order.
    torch.testing.assert_close(loss, loss_b, rtol=1e-14, atol=0)
    torch.testing.assert_close(user, user_b, rtol=1e-12, atol=1e-14)
    assert not torch.allclose(item, item_b)


def test_paper_is_the_published_rule(oracle):
    """Gradient of batch columns in both roles, none of the bank's."""
    torch.manual_seed(0)
    sampler = CrossBatchSampler(CORPUS, capacity=6, warmup_steps=0)
    sampler.observe(batch(sampler, [1, 2, 3, 4, 1, 2]))
    positives = batch(sampler, [1, 2, 3, 4])
    u = torch.randn(4, 3, dtype=torch.float64)
    negatives = sampler.draw(u, positives, None)
    sampled_softmax_loss(u, positives, negatives, reduction="sum").backward()
    truth = oracle(u, positives, negatives)
    torch.testing.assert_close(positives.embeddings.grad, truth.positives + truth.negatives[:4])


def test_balanced_scales_the_negative_role_alone(oracle):
    """(B − 1 + rows read) / (B − 1) = (3 + 6) / 3 = 3 on the negative role, 1 on the positive."""
    torch.manual_seed(0)
    sampler = CrossBatchSampler(CORPUS, capacity=6, warmup_steps=0, item_gradient="balanced")
    sampler.observe(batch(sampler, [1, 2, 3, 4, 1, 2]))
    positives = batch(sampler, [1, 2, 3, 4])
    u = torch.randn(4, 3, dtype=torch.float64)
    negatives = sampler.draw(u, positives, None)
    sampled_softmax_loss(u, positives, negatives, reduction="sum").backward()
    truth = oracle(u, positives, negatives)
    expected = truth.positives + 3 * truth.negatives[:4]
    torch.testing.assert_close(positives.embeddings.grad, expected)


def test_balanced_uses_the_rows_read_not_the_capacity(oracle):
    torch.manual_seed(0)
    sampler = CrossBatchSampler(CORPUS, capacity=1000, warmup_steps=0, item_gradient="balanced")
    sampler.observe(batch(sampler, [1, 2, 3]))
    positives = batch(sampler, [1, 2, 3, 4])
    u = torch.randn(4, 3, dtype=torch.float64)
    negatives = sampler.draw(u, positives, None)
    sampled_softmax_loss(u, positives, negatives, reduction="sum").backward()
    truth = oracle(u, positives, negatives)
    torch.testing.assert_close(positives.embeddings.grad, truth.positives + 2 * truth.negatives[:4])


def test_balanced_with_one_row_has_nothing_to_scale():
    loss, _, item = gradients("balanced", B=1)
    assert torch.isfinite(loss)
    assert torch.isfinite(item).all()
    assert torch.equal(item, gradients("paper", B=1)[2])


# Expectation of the item gradient: every batch and bank of a small world, weighed exactly.

USERS = torch.tensor([[1.0, 0.4], [-0.6, 0.9], [0.3, -1.2], [0.8, 0.8]], dtype=torch.float64)
TABLE = torch.tensor([[0, 0], [0.7, -0.2], [-0.5, 1.0], [0.4, 0.9]], dtype=torch.float64)
WORLD = [(0, 1, 0.4), (1, 2, 0.3), (2, 3, 0.1), (3, 1, 0.2)]  # (user, item, probability)
Q = {1: 0.6, 2: 0.3, 3: 0.1}
SMALL = Corpus(torch.tensor([0, 6, 3, 1]), dim=2)


def item_gradient_of(pairs, bank, item_gradient):
    """Gradient of the mean loss with respect to the item table."""
    table = TABLE.clone().requires_grad_()
    sampler = CrossBatchSampler(
        SMALL, capacity=len(bank), warmup_steps=0, item_gradient=item_gradient
    )

    def encoded(ids):
        ids = torch.tensor(ids)
        return Candidates(table[ids], ids, sampler.log_q(ids).double())

    if bank:
        sampler.bank.double()
        sampler.observe(encoded(bank))
    positives = encoded([item for _, item, _ in pairs])
    users = USERS[[user for user, _, _ in pairs]]
    loss = sampled_softmax_loss(users, positives, sampler.draw(users, positives, None))
    return torch.autograd.grad(loss, table)[0]


def expectation(B, M, item_gradient):
    total = torch.zeros_like(TABLE)
    for pairs in product(WORLD, repeat=B):
        for bank in product(Q, repeat=M):
            weight = 1.0
            for _, _, probability in pairs:
                weight *= probability
            for item in bank:
                weight *= Q[item]
            total += weight * item_gradient_of(pairs, bank, item_gradient)
    return total


def test_balanced_has_the_expectation_of_a_true_batch_of_that_size():
    """B = 2 with M = 2 cached columns against B = 4, all with gradient; exact, not sampled."""
    true_batch = expectation(4, 0, "paper")
    balanced = expectation(2, 2, "balanced")
    paper = expectation(2, 2, "paper")
    torch.testing.assert_close(balanced, true_batch, rtol=1e-6, atol=1e-7)
    assert float((paper - true_batch).norm() / true_batch.norm()) > 0.3
    # The items' pulls and pushes cancel in a true batch; the published rule leaves a net pull.
    assert float(true_batch.sum(dim=0).norm()) < 1e-6
    assert float(balanced.sum(dim=0).norm()) < 1e-6
    assert float(paper.sum(dim=0).norm()) > 0.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": -1}, "capacity must be 0"),
        ({"warmup_steps": -1}, "warmup_steps must be 0 or more, got -1"),
        ({"item_gradient": "split"}, "one of paper, balanced, deferred, got 'split'"),
        ({"bank_dtype": "int8"}, "dtype must be one of float32, bfloat16, float16, got 'int8'"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        CrossBatchSampler(CORPUS, **options)
