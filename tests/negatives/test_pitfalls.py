"""Mistakes seen in public code, one test each."""

import math

import pytest
import torch

from crossbatch.negatives import (
    Candidates,
    Corpus,
    CrossBatchSampler,
    CrossBatchSoftmax,
    InBatchSampler,
    MemoryBank,
    MixedSampler,
    UniformSampler,
    sampled_softmax_loss,
)


def columns(scores, ids, q=None, *, cached=False):
    log_q = torch.zeros(len(ids)) if q is None else torch.tensor(q).log()
    return Candidates(torch.tensor(scores).unsqueeze(1), torch.tensor(ids), log_q, cached=cached)


def loss_of(positive, negatives, **options):
    return float(sampled_softmax_loss(torch.ones(1, 1), positive, negatives, **options))


def probabilities(scores, ids, q, own, **options):
    """Softmax of one row read off the gradient: ∂loss/∂v_j = p_j for u = 1."""
    negatives = columns(scores, ids, q)
    negatives.embeddings.requires_grad_()
    positive = columns([own[1]], [own[0]], [own[2]])
    sampled_softmax_loss(torch.ones(1, 1), positive, negatives, **options).backward()
    return negatives.embeddings.grad.squeeze(1).tolist()


def test_pitfall_01_log_q_added_instead_of_subtracted():
    positive, negative = columns([1.0], [1], [0.5]), columns([0.0], [2], [0.25])
    assert loss_of(positive, negative) == pytest.approx(0.551445, abs=1e-6)  # wrong sign: 0.168848
    rare, popular = probabilities([0.0, 0.0], [2, 3], [0.01, 0.9], own=(1, 0.0, 0.5))
    assert rare > popular


def test_pitfall_02_q_clipped_so_that_rare_items_are_alike():
    sampler = InBatchSampler(Corpus(torch.tensor([0, 5, 7, 7_145_469]), dim=1))
    five, seven = sampler.log_q(torch.tensor([1, 2])).tolist()
    assert five == pytest.approx(math.log(5 / 7_145_481), abs=1e-5)
    assert seven - five == pytest.approx(math.log(7 / 5), abs=1e-5)


def test_pitfall_03_temperature_divides_log_q():
    # s = [1, 0], q = [.5, .25], T = .1: s' = [10 + log 2, log 4] → log(1 + 2 e⁻¹⁰) = 9.0796e-5
    positive, negative = columns([1.0], [1], [0.5]), columns([0.0], [2], [0.25])
    assert loss_of(positive, negative, temperature=0.1) == pytest.approx(9.0796e-5, rel=1e-3)
    # (s − log q)/T would be log(1 + e^{(log 4 − 1 − log 2)/.1}) = 0.0454


@pytest.mark.parametrize("chunk_size", [None, 1])
def test_pitfall_04_mask_that_does_nothing(chunk_size):
    """Masked columns, whatever their score, have probability and gradient exactly 0."""
    p = probabilities(
        [1e4, 0.5, 30.0], [1, 2, 1], [0.1, 0.2, 0.3], own=(1, 0.0, 0.5), chunk_size=chunk_size
    )
    assert p[0] == p[2] == 0.0
    assert p[1] > 0.0


def test_pitfall_05_positive_counted_twice():
    one = columns([3.0], [1], [0.5])
    assert loss_of(one, one) == 0.0


def test_pitfall_06_enqueue_before_the_loss():
    u, v, ids = torch.randn(4, 3), torch.randn(4, 3), torch.tensor([1, 2, 3, 4])
    bank, none = CrossBatchSoftmax(3, capacity=8, warmup_steps=0), CrossBatchSoftmax(3, capacity=0)
    assert torch.equal(bank(u, v, ids), none(u, v, ids))
    sampler = CrossBatchSampler(Corpus(torch.ones(9), dim=3), capacity=100, warmup_steps=0)
    for step in range(1, 5):
        positives = Candidates(torch.randn(2, 3), torch.tensor([step, step + 1]), torch.zeros(2))
        drawn = sampler.draw(u, positives, None)
        assert len(drawn) == 2 + 2 * (step - 1)  # rows of earlier steps only
        assert (sampler.bank.birth[: len(sampler.bank)] < step).all()
        sampler.observe(positives)


def test_pitfall_07_rows_of_an_unfilled_bank_take_part():
    batches = [(torch.randn(4, 3), torch.randn(4, 3), torch.randint(1, 99, (4,))) for _ in range(3)]
    losses = []
    for capacity in (8, 50, 10_000):
        loss_fn = CrossBatchSoftmax(3, capacity=capacity, warmup_steps=0)
        losses.append([loss_fn(*batch) for batch in batches])
    for each in losses[1:]:
        assert all(torch.equal(a, b) for a, b in zip(each, losses[0], strict=True))


def test_pitfall_08_bank_columns_left_uncorrected():
    """An item's logit is the same in the batch and in the bank."""
    positive = columns([0.3], [1], [0.5])
    first, second = columns([0.7], [2], [0.001]), columns([-0.2], [3], [0.2])
    from_bank = columns([0.7], [2], [0.001], cached=True)
    assert loss_of(positive, first + second) == loss_of(positive, second + from_bank)
    sampler = CrossBatchSampler(Corpus(torch.tensor([0, 1, 9]), dim=1), warmup_steps=0)
    ids = torch.tensor([1, 2])
    batch = Candidates(torch.zeros(2, 1), ids, sampler.log_q(ids))
    sampler.observe(batch)
    assert torch.equal(sampler.bank.read().log_q, batch.log_q)


def test_pitfall_09_mixture_weights_swapped_or_another_q_for_the_positive():
    """The swapped weights fail the Monte-Carlo test of the samplers' contract; by hand here."""
    sampler = MixedSampler(Corpus(torch.tensor([0, 9, 1]), dim=1), num_uniform=1)
    ids = torch.tensor([1, 1, 2])  # B = 3, B' = 1: Q*(1) = (3·.9 + .5)/4 = .8, Q*(2) = .2
    positives = Candidates(torch.zeros(3, 1), ids, sampler.log_q(ids))
    assert positives.log_q.exp().tolist() == pytest.approx([0.8, 0.8, 0.2])
    drawn = sampler.draw(torch.zeros(3, 1), positives, lambda i: torch.zeros(len(i), 1))
    assert torch.equal(drawn.log_q[:3], positives.log_q)


def test_pitfall_10_unigram_q_for_uniform_columns_or_repeats_dropped():
    sampler = MixedSampler(
        Corpus(torch.tensor([0, 9, 1]), dim=1), num_uniform=2, correction="per_stream"
    )
    ids = torch.tensor([1, 1, 2])
    positives = Candidates(torch.zeros(3, 1), ids, sampler.log_q(ids))
    drawn = sampler.draw(torch.zeros(3, 1), positives, lambda i: torch.zeros(len(i), 1))
    assert drawn.item_ids[:3].tolist() == [1, 1, 2]  # repeats are kept: q counts them
    assert drawn.log_q[3:].exp().tolist() == pytest.approx([0.5, 0.5])


def test_pitfall_11_counts_of_two_streams_on_two_scales():
    losses = []
    for factor in (1, 1000):
        torch.manual_seed(0)
        corpus = Corpus(torch.tensor([0, 9, 1, 5]) * factor, dim=1)
        for correction in ("mixture", "per_stream"):
            sampler = MixedSampler(corpus, num_uniform=2, correction=correction)
            ids = torch.tensor([1, 2])
            positives = Candidates(torch.ones(2, 1), ids, sampler.log_q(ids))
            drawn = sampler.draw(torch.ones(2, 1), positives, lambda i: i.unsqueeze(1) / 4)
            losses.append(sampled_softmax_loss(torch.ones(2, 1), positives, drawn))
    assert torch.equal(losses[0], losses[2])
    assert torch.equal(losses[1], losses[3])


def test_pitfall_12_fullness_read_off_the_data_and_wrap_around_at_the_tail():
    bank = MemoryBank(5, dim=1)  # no multiple of the batch size; ids and labels may be 0
    for first in range(0, 12, 3):
        ids = torch.arange(first, first + 3)
        bank.enqueue(Candidates(ids.float().unsqueeze(1), ids % 2 * 0, torch.zeros(3)))
        expected = [float(i) for i in range(first + 3)][-5:]
        assert bank.read().embeddings.flatten().tolist() == expected
        assert bank.read().item_ids.tolist() == [0] * len(expected)


def test_pitfall_13_a_partial_batch_leaves_stale_rows():
    bank = MemoryBank(4, dim=1)
    seen = []
    for size in (3, 1, 4, 2, 9, 1, 1):
        ids = torch.arange(len(seen), len(seen) + size)
        seen += ids.tolist()
        bank.enqueue(Candidates(ids.float().unsqueeze(1), ids, torch.zeros(size)))
        assert bank.read().item_ids.tolist() == seen[-4:]


def test_pitfall_14_cursor_and_fill_lost_in_the_checkpoint():
    batches = [(torch.randn(3, 2), torch.randn(3, 2), torch.randint(1, 9, (3,))) for _ in range(5)]
    whole, first, second = (CrossBatchSoftmax(2, capacity=7, warmup_steps=1) for _ in range(3))
    expected = [whole(*batch) for batch in batches]
    for batch in batches[:2]:
        first(*batch)
    second.load_state_dict(first.state_dict())
    got = [second(*batch) for batch in batches[2:]]
    assert all(torch.equal(a, b) for a, b in zip(got, expected[2:], strict=True))


def test_pitfall_15_ids_and_vectors_misaligned():
    bank = MemoryBank(6, dim=2)
    for _ in range(5):
        ids = torch.randint(1, 50, (4,))
        vectors = torch.stack([ids.float(), -ids.float()], dim=1)
        bank.enqueue(Candidates(vectors, ids, -ids.float()))
        rows = bank.read()
        assert torch.equal(rows.embeddings[:, 0], rows.item_ids.float())
        assert torch.equal(rows.log_q, -rows.item_ids.float())


def test_pitfall_16_gradient_leaks_into_the_bank_or_the_bank_aliases_the_model():
    table = torch.nn.Parameter(torch.randn(9, 2))
    loss_fn = CrossBatchSoftmax(2, capacity=4, warmup_steps=0)
    loss_fn(torch.randn(4, 2), table[1:5], torch.tensor([1, 2, 3, 4]))
    cached = loss_fn.bank.read().embeddings.clone()
    loss_fn(torch.randn(2, 2), table[5:7], torch.tensor([5, 6])).backward()
    assert table.grad.any(dim=1).nonzero().flatten().tolist() == [5, 6]
    loss_fn.bank.requires_grad_()  # reaches parameters only: there are none
    assert not loss_fn.bank.read().embeddings.requires_grad
    before = loss_fn.bank.read().embeddings.clone()
    with torch.no_grad():
        table.zero_()
    assert torch.equal(loss_fn.bank.read().embeddings, before)
    assert torch.equal(cached[2:], before[:2])


@pytest.mark.parametrize("law", ["uniform", "log_uniform"])
def test_pitfall_28_uniform_sampler_draws_the_padding_id(law):
    sampler = UniformSampler(Corpus(torch.ones(6), dim=1), num_negatives=4, law=law)
    batch = columns([0.0], [1])
    drawn = [
        sampler.draw(torch.ones(1, 1), batch, lambda i: torch.zeros(len(i), 1)).item_ids
        for _ in range(300)
    ]
    assert sorted(set(torch.cat(drawn).tolist())) == [1, 2, 3, 4, 5]


def test_pitfall_32_evaluation_pushes_to_the_bank_or_clears_it():
    loss_fn = CrossBatchSoftmax(2, capacity=6, warmup_steps=0)
    batch = (torch.randn(3, 2), torch.randn(3, 2), torch.tensor([1, 2, 3]))
    loss_fn(*batch)
    before = [x.clone() for x in loss_fn.state_dict().values()]
    loss_fn.eval()
    loss_fn(*batch)
    loss_fn.train()
    assert all(
        torch.equal(a, b) for a, b in zip(before, loss_fn.state_dict().values(), strict=True)
    )


def test_item_tower_of_a_bi_encoder_gets_no_gradient():
    """Current items enter as columns with gradient, not as detached memory."""
    v = torch.randn(3, 2, requires_grad=True)
    CrossBatchSoftmax(2, capacity=6, warmup_steps=0)(
        torch.randn(3, 2), v, torch.tensor([1, 2, 3])
    ).backward()
    assert float(v.grad.norm()) > 0.01


def test_equal_ids_in_the_bank_become_positives():
    """A bank copy of the positive changes nothing: it is neither negative nor positive."""
    positive, other = columns([0.3], [1], [0.5]), columns([0.1], [2], [0.5])
    copy_in_bank = columns([2.0], [1], [0.5], cached=True)
    assert loss_of(positive, other + copy_in_bank) == loss_of(positive, other)
