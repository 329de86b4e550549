"""Weights, several positives and both directions of the drop-in loss, against plain loops."""

import pytest
import torch

from crossbatch.negatives import CrossBatchSoftmax, Queries

B, P, D, T = 5, 3, 4, 0.5
IDS = torch.tensor([[3, 7, -1], [3, -1, -1], [9, 8, 2], [7, 1, -1], [5, 5, -1]])
COUNTS = torch.arange(1, 12)
LOG_Q = (COUNTS.double() / COUNTS.sum()).log()


def vectors(seed=0):
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(B, D, generator=generator, dtype=torch.float64, requires_grad=True)
    v = torch.randn(B, P, D, generator=generator, dtype=torch.float64, requires_grad=True)
    return u, v


def definition(u, v, ids, *, bank=(), push=1.0, symmetric=False, known=None):
    """`[B]` losses by loops over rows, positives and columns.

    `ids` are lists of each row's positives, `v` their vectors; `bank` are (vector, id) constants.
    """
    pairs = [(b, v[b][p], i) for b, row in enumerate(ids) for p, i in enumerate(row)]
    likes = [set(row) | set(known[b] if known else ()) for b, row in enumerate(ids)]

    def logit(user, item, number, log_q=True):
        return user @ item / T - (LOG_Q[number] if log_q else 0)

    rows = [[] for _ in ids]
    for b, item, number in pairs:
        own = logit(u[b], item, number)
        terms = [own]
        for _, other, i in pairs:
            if i not in likes[b]:
                scaled = other.detach() + push * (other - other.detach())
                terms.append(logit(u[b], scaled, i))
        terms += [logit(u[b], other, i) for other, i in bank if i not in likes[b]]
        loss = torch.logsumexp(torch.stack(terms), 0) - own
        if symmetric:
            own = logit(u[b], item, number, log_q=False)
            terms = [own]
            for c, _, i in pairs:
                if number != i and number not in likes[c]:
                    terms.append(logit(u[c], item, number, log_q=False))
            loss = (loss + torch.logsumexp(torch.stack(terms), 0) - own) / 2
        rows[b].append(loss)
    return torch.stack([torch.stack(row).mean() for row in rows])


def listed(ids=IDS):
    return [[i for i in row if i >= 0] for row in ids.tolist()]


def assert_same(found, expected, inputs):
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(each, inputs, retain_graph=True) for each in (found, expected)]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("item_gradient", ["paper", "balanced"])
def test_several_positives_in_both_directions_with_a_bank(symmetric, item_gradient):
    loss_fn = CrossBatchSoftmax(
        D, 6, 1, COUNTS, T, item_gradient, symmetric=symmetric, bank_dtype="float32"
    ).double()
    u, v = vectors(1)
    loss_fn(u.float(), v.float(), IDS)  # fills the bank with its ten positives, six of which stay
    kept = loss_fn.bank.read()
    bank = list(zip(kept.embeddings.double(), kept.item_ids.tolist(), strict=True))
    assert len(bank) == 6
    columns = sum(map(len, listed()))
    push = (columns - 1 + len(bank)) / (columns - 1) if item_gradient == "balanced" else 1.0
    u, v = vectors(2)
    weights = torch.tensor([1.0, 0.0, 2.5, 1.0, 0.5], dtype=torch.float64)
    expected = definition(u, v, listed(), bank=bank, push=push, symmetric=symmetric)
    with torch.no_grad():  # which leaves the bank as it is
        rows = loss_fn(u, v, IDS, reduction="none")
    torch.testing.assert_close(rows, expected.detach())
    found = loss_fn(u, v, IDS, weights=weights)
    assert_same(found, (weights * expected).sum() / weights.sum(), (u, v))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_weights_of_rows(reduction):
    u, v = vectors()
    ids, items = torch.tensor([4, 2, 9, 2, 6]), v[:, 0]
    weights = torch.tensor([2.0, 1.0, 0.0, 0.25, 1.0], dtype=torch.float64)
    rows = weights * definition(u, items.unsqueeze(1), [[i] for i in ids.tolist()])
    expected = {"mean": rows.sum() / weights.sum(), "sum": rows.sum(), "none": rows}[reduction]
    loss_fn = CrossBatchSoftmax(D, 0, 0, COUNTS, T)
    found = loss_fn(u, items, ids, weights=weights, reduction=reduction)
    assert_same(found.sum(), expected.sum(), (u, v))
    torch.testing.assert_close(found, expected)
    ones = loss_fn(u, items, ids, weights=torch.ones(B, dtype=torch.float64), reduction=reduction)
    torch.testing.assert_close(ones, loss_fn(u, items, ids, reduction=reduction))


def test_what_users_like_is_no_negative_in_either_direction():
    u, v = vectors()
    ids, items = torch.tensor([4, 2, 9, 3, 6]), v[:, 0]
    known = torch.tensor([[2, 9], [-1, -1], [6, -1], [-1, -1], [4, 11]])
    rows = definition(
        u,
        items.unsqueeze(1),
        [[i] for i in ids.tolist()],
        symmetric=True,
        known=listed(known),
    )
    loss_fn = CrossBatchSoftmax(D, 0, 0, COUNTS, T, symmetric=True)
    assert_same(loss_fn(u, items, ids, known_positives=known), rows.mean(), (u, v))


def test_both_directions_are_the_loss_of_clip():
    """Without counts, bank and repeats: the mean of two cross-entropies."""
    u, v = vectors()
    items, target = v[:, 0], torch.arange(B)
    scores = u @ items.T / T
    cross_entropy = torch.nn.functional.cross_entropy
    expected = (cross_entropy(scores, target) + cross_entropy(scores.T, target)) / 2
    loss_fn = CrossBatchSoftmax(D, 0, 0, None, T, symmetric=True)
    assert_same(loss_fn(u, items, target), expected, (u, v))


def test_one_positive_in_a_row_of_several_is_the_plain_loss():
    u, v = vectors()
    ids = torch.tensor([4, 2, 9, 2, 6])
    loss_fn = CrossBatchSoftmax(D, 0, 0, COUNTS, T)
    plain = loss_fn(u, v[:, 0], ids)
    assert_same(loss_fn(u, v[:, :1], ids.unsqueeze(1)), plain, (u, v))


def test_queries_and_interests_with_several_positives():
    u, v = vectors()
    interests = torch.stack([u, -u, 2 * u], dim=1)
    loss_fn = CrossBatchSoftmax(D, 0, 0, COUNTS, T)
    chosen = [
        [interests[b][int((interests[b] @ v[b, p]).argmax())] for p in range(len(row))]
        for b, row in enumerate(listed())
    ]
    flat_users = torch.stack([user for row in chosen for user in row])
    flat_items = torch.stack([v[b, p] for b, row in enumerate(listed()) for p in range(len(row))])
    flat_ids = torch.tensor([i for row in listed() for i in row])
    own = torch.tensor([row + [-1] * (P - len(row)) for row in listed() for _ in row])
    pairs = loss_fn(flat_users, flat_items, flat_ids, known_positives=own, reduction="none")
    sizes = [len(row) for row in listed()]
    expected = torch.stack([part.mean() for part in pairs.split(sizes)]).mean()
    assert_same(loss_fn(interests, v, IDS), expected, (u, v))
    weights = torch.zeros(B, 3, dtype=torch.float64)
    assert torch.isfinite(loss_fn(Queries(interests, weights), v, IDS))
    with pytest.raises(ValueError, match="symmetric=True needs user vectors"):
        CrossBatchSoftmax(D, symmetric=True)(Queries(interests, weights), v, IDS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": torch.ones(3)}, r"weights must be floating point of shape \[5\]"),
        ({"weights": -torch.ones(5)}, "weights must be finite and not negative"),
        ({"weights": torch.zeros(5)}, "weights are all 0"),
        ({"item_ids": torch.full((5, 3), -1)}, "row 0 has no positive"),
        ({"items": torch.zeros(5, 2, D)}, r"items must have shape \[B, P, d\]"),
        ({"reduction": "max"}, "reduction must be"),
    ],
)
def test_mistakes_are_named(change, message):
    u, v = vectors()
    arguments = {"users": u, "items": v, "item_ids": IDS} | change
    with pytest.raises(ValueError, match=message):
        CrossBatchSoftmax(D, 0)(**arguments)


def test_it_prints_its_options():
    text = repr(CrossBatchSoftmax(8, 16, temperature=0.1, symmetric=True))
    for part in ("dim=8", "capacity=16", "temperature=0.1", "symmetric=True"):
        assert part in text


def test_gradients_that_one_process_collects_are_not_those_of_several():
    with pytest.raises(ValueError, match='pass item_gradient="balanced" with process_group'):
        CrossBatchSoftmax(D, item_gradient="deferred", process_group=object())
