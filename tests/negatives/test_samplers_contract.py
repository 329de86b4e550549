"""What every entry of SAMPLERS must do, whatever its strategy."""

import copy
import math

import pytest
import torch

from crossbatch.negatives import SAMPLERS, Candidates, Corpus, sampled_softmax_loss

N, D, B = 30, 3, 8
COUNTS = torch.tensor([0.0, *[1 / i for i in range(1, N + 1)]], dtype=torch.float64)
Q = COUNTS / COUNTS.sum()
CORPUS = Corpus(COUNTS, dim=D)
OPTIONS = {
    "uniform": {"num_negatives": 12},
    "in_batch": {},
    "mixed": {"num_uniform": 12},
    "cross_batch": {"capacity": 2 * B, "warmup_steps": 0},
}
EVERY = pytest.mark.parametrize("name", sorted(SAMPLERS))


def build(name, **more):
    return SAMPLERS[name](CORPUS, **(OPTIONS.get(name, {}) | more))


class Tower(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(N + 1, D))

    def forward(self, ids):
        return self.table[ids]


def draw(sampler, tower, users):
    ids = torch.multinomial(Q, B, replacement=True)
    positives = Candidates(tower(ids), ids, sampler.log_q(ids))
    return positives, sampler.draw(users, positives, tower)


def step(sampler, tower):
    users = torch.randn(B, D, requires_grad=True)
    positives, negatives = draw(sampler, tower, users)
    loss = sampled_softmax_loss(users, positives, negatives)
    sampler.observe(positives)
    return loss, users, negatives


@EVERY
def test_columns_are_well_formed(name):
    sampler, tower = build(name), Tower()
    for _ in range(4):
        _, _, negatives = step(sampler, tower)
        assert negatives.embeddings.shape == (len(negatives), D)
        assert negatives.item_ids.dtype == torch.int64
        assert 1 <= int(negatives.item_ids.min()) <= int(negatives.item_ids.max()) <= N
        assert torch.isfinite(negatives.log_q).all()
        assert negatives.log_q.dtype == torch.float32
        for part in negatives.parts:
            if not part.cached:
                torch.testing.assert_close(part.embeddings, tower(part.item_ids))


@EVERY
def test_both_towers_learn(name):
    sampler, tower = build(name), Tower()
    for _ in range(3):
        loss, users, _ = step(sampler, tower)
    loss.backward()
    assert float(users.grad.norm()) > 0
    assert float(tower.table.grad.norm()) > 0
    assert not tower.table.grad[0].any()


@EVERY
def test_log_q_is_one_value_per_item(name):
    sampler = build(name)
    ids = torch.tensor([3, 1, 3, 2])
    log_q = sampler.log_q(ids)
    assert log_q.shape == (4,)
    assert log_q[0] == log_q[2]
    torch.testing.assert_close(sampler.log_q(ids.flip(0)), log_q.flip(0))


@EVERY
@pytest.mark.parametrize("bad", [[1, N + 1], [-1, 1], [0, 1]])
def test_ids_outside_the_catalogue_are_refused(name, bad):
    with pytest.raises(ValueError, match="item_ids "):
        build(name).log_q(torch.tensor(bad))


@EVERY
def test_resumes_to_the_bit(name):
    torch.manual_seed(0)
    sampler, tower = build(name), Tower()
    for _ in range(3):
        step(sampler, tower)
    resumed = build(name)
    resumed.load_state_dict(sampler.state_dict())
    random = torch.get_rng_state()
    losses = []
    for each in (sampler, resumed):
        torch.set_rng_state(random)
        losses.append([step(each, tower)[0] for _ in range(3)])
    assert all(torch.equal(a, b) for a, b in zip(*losses, strict=True))


@EVERY
def test_copies_and_moves(name):
    sampler, tower = build(name), Tower()
    step(sampler, tower)
    moved = copy.deepcopy(sampler).to(torch.bfloat16)
    ids = torch.arange(1, N + 1)
    assert torch.equal(moved.log_q(ids), sampler.log_q(ids))
    assert torch.isfinite(step(moved, tower)[0])


@EVERY
def test_scaling_the_counts_changes_nothing(name):
    torch.manual_seed(1)
    tower, random = Tower(), torch.get_rng_state()
    losses = []
    for factor in (1.0, 1e6):
        torch.set_rng_state(random)
        options = OPTIONS.get(name, {})
        sampler = SAMPLERS[name](Corpus(COUNTS * factor, dim=D), **options)
        losses.append(torch.stack([step(sampler, tower)[0] for _ in range(3)]))
    torch.testing.assert_close(*losses)


ESTIMATORS = [
    ("uniform", {}),
    ("uniform", {"law": "log_uniform"}),
    ("in_batch", {}),
    ("mixed", {"correction": "mixture"}),
    ("mixed", {"correction": "per_stream"}),
    ("cross_batch", {"item_gradient": "paper"}),
    ("cross_batch", {"item_gradient": "balanced"}),
    ("cross_batch", {"item_gradient": "deferred"}),
]


def partition_estimates(name, options, tower, user, draws):
    """Independent estimates (1/n) Σ_j e^{s_j − log q_j} of Z = Σ_i e^{s_i}."""
    sampler = build(name, **options)
    estimates = []
    with torch.no_grad():
        for _ in range(draws):
            for _ in range(2 if name == "cross_batch" else 0):  # renew the bank of two batches
                sampler.observe(draw(sampler, tower, user)[0])
            _, negatives = draw(sampler, tower, user)
            logits = negatives.embeddings @ user - negatives.log_q
            estimates.append(logits.exp().mean())
    return torch.stack(estimates)


@pytest.mark.parametrize(("name", "options"), ESTIMATORS)
def test_the_corrected_partition_function_is_unbiased(name, options):
    """Scores that follow popularity; the mean of the estimates within 4 standard errors of Z."""
    tower, user = popular_world()
    Z = float((tower.table.detach()[1:] @ user).exp().sum())
    estimates = partition_estimates(name, options, tower, user, draws=400)
    error = float(estimates.std() / math.sqrt(len(estimates)))
    assert error < 0.03 * Z  # small enough to see the wrong corrections below
    assert abs(float(estimates.mean()) - Z) < 4 * error


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("in_batch", "nothing"), ("mixed", "unigram"), ("mixed", "swapped"), ("mixed", "nothing")],
)
def test_the_test_above_would_see_a_wrong_correction(name, wrong, monkeypatch):
    """The biases of 1.3-1.6 that public code has."""
    tower, user = popular_world()
    Z = float((tower.table.detach()[1:] @ user).exp().sum())
    log_qs = {
        "nothing": lambda ids: torch.full(ids.shape, -math.log(N)),
        "unigram": lambda ids: Q[ids].log().float(),
        "swapped": lambda ids: ((12 * Q[ids] + B / N) / (12 + B)).log().float(),
    }
    sampler_class = SAMPLERS[name]
    rightly = sampler_class.draw

    def wrongly(self, users, positives, encode):
        drawn = rightly(self, users, positives, encode)
        return Candidates(drawn.embeddings, drawn.item_ids, log_qs[wrong](drawn.item_ids))

    monkeypatch.setattr(sampler_class, "draw", wrongly)
    estimates = partition_estimates(name, {}, tower, user, draws=200)
    error = float(estimates.std() / math.sqrt(len(estimates)))
    assert abs(float(estimates.mean()) - Z) > 6 * error


def popular_world():
    torch.manual_seed(7)
    tower, user = Tower(), torch.tensor([1.0, 0.5, -0.5])
    with torch.no_grad():
        wanted = 0.5 * Q[1:].log().float() + 0.3 * torch.randn(N)
        tower.table[1:] += (wanted - tower.table[1:] @ user).unsqueeze(1) * user / user.dot(user)
    return tower, user
