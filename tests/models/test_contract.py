"""What every user tower in MODELS must do, through TwoTower as training and serving use it."""

import copy

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from crossbatch.models import MODELS, FeatureTable, TwoTower, build_model
from crossbatch.queries import Queries

NUM_ITEMS, DIM = 50, 16
SINGLE_INTEREST = {"youtube_dnn", "gru4rec", "sasrec"}
VARIANTS = [
    *((name, {}) for name in MODELS),
    ("youtube_dnn", {"hidden": (24,), "relu": True}),
    ("gru4rec", {"reset_before": False}),
    ("gru4rec", {"hidden_size": 12}),
    ("mind", {"routing": "fixed", "readout": "soft", "relu": False, "bias": False}),
    ("mind", {"adaptive": True, "readout": "soft", "power": 2.0}),
    ("comirec_sa", {"positions": False, "readout": "soft"}),
    ("sasrec", {"heads": 2, "blocks": 1, "max_length": 3}),
    ("youtube_dnn", {"pooling": "recency"}),
    ("youtube_dnn", {"pooling": "recency", "hidden": (24,)}),
    ("recent_items", {"learn_temperature": True}),
]
every_model = pytest.mark.parametrize("name", MODELS)
every_variant = pytest.mark.parametrize(
    ("name", "options"), VARIANTS, ids=[f"{name}-{'-'.join(o)}" for name, o in VARIANTS]
)


def make(name: str, *, seed: int = 0, tower: dict | None = None, **options) -> TwoTower:
    torch.manual_seed(seed)
    return build_model(name, NUM_ITEMS, DIM, tower=tower or {}, **options)


def plain(interests: Tensor | Queries, width: int = 9) -> Tensor:
    """Interests `[B, K, d]` as they are; weighted queries with their weights, padded to `width`."""
    if isinstance(interests, Tensor):
        return interests
    weights = interests.log_weights.exp().unsqueeze(2)
    both = torch.cat([interests.vectors, weights], dim=2)
    return functional.pad(both, (0, 0, 0, width - both.shape[1]))


def scores(u: Tensor | Queries, v: Tensor) -> Tensor:
    return u.scores(v) if isinstance(u, Queries) else u @ v.T


def positives(history: Tensor) -> Tensor:
    return torch.arange(1, len(history) + 1)


@every_variant
def test_shapes(name, options, make_history):
    model, history = make(name, tower=options), make_history(B=8)
    interests = model.users(history)
    u, v = model(history, positives(history))
    if name == "recent_items":  # one query of each item of the longest history
        longest = int((history > 0).sum(dim=1).max())
        assert interests.vectors.shape == u.vectors.shape == (8, longest, DIM)
    else:
        assert interests.ndim == 3
        assert (len(interests), interests.shape[2]) == (8, DIM)
        assert interests.shape[1] == (1 if name in SINGLE_INTEREST else 4)
        assert u.shape == v.shape == (8, DIM)
    assert model.items(torch.tensor([1, 1, 50])).shape == (3, DIM)


@every_variant
def test_empty_histories_are_finite(name, options):
    model = make(name, tower=options)
    u, v = model(torch.zeros(4, 6, dtype=torch.long), torch.arange(1, 5))
    assert plain(u).isfinite().all()
    scores(u, v).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.user_tower.parameters())


@every_variant
@pytest.mark.parametrize("history_from", ["id", "content", "item_tower"])
def test_extra_padding_changes_nothing(name, options, history_from, make_history):
    values = FeatureTable("categorical", torch.arange(NUM_ITEMS + 1) % 7, num_values=7)
    features = {"category": values} if history_from != "id" else {}
    model = make(name, tower=options, history=history_from, item_features=features).eval()
    history = make_history()
    longer = functional.pad(history, (0, 3))
    torch.testing.assert_close(
        plain(model.users(longer)), plain(model.users(history)), atol=1e-6, rtol=1e-5
    )


@every_variant
def test_rows_do_not_see_each_other(name, options, make_history):
    model, history = make(name, tower=options).eval(), make_history()
    alone = torch.cat([plain(model.users(row[None])) for row in history])
    torch.testing.assert_close(alone, plain(model.users(history)), atol=1e-6, rtol=1e-5)


@every_variant
def test_gradients_reach_both_towers(name, options, make_history):
    model, history = make(name, tower=options), make_history(B=16)
    targets = positives(history) + 20
    u, v = model(history, targets)
    functional.cross_entropy(scores(u, v), torch.arange(len(u))).backward()
    for parameter in model.user_tower.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
    assert any(parameter.grad.abs().sum() > 0 for parameter in model.user_tower.parameters())
    rows = model.item_tower.table.weight.grad.coalesce().indices()[0]
    read = torch.cat([history[history > 0], targets]).unique()
    assert rows.tolist() == read.tolist()  # and never the padding row


@every_model
def test_same_seed_same_model_and_same_training_pass(name, make_history):
    history = make_history()

    def run(seed: int) -> Tensor:
        model = make(name, seed=seed, history_dropout=0.3)
        torch.manual_seed(seed)
        return plain(model(history, positives(history))[0])

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))


@every_model
def test_evaluation_is_deterministic(name, make_history):
    model, history = make(name, history_dropout=0.5).eval(), make_history()
    assert torch.equal(plain(model.users(history)), plain(model.users(history)))


@every_model
def test_state_dict_round_trip(name, make_history):
    genres = FeatureTable("categorical", torch.arange(NUM_ITEMS + 1) % 7, num_values=7)
    ages = FeatureTable("numeric", torch.rand(9, 2))
    options = {"item_features": {"genre": genres}, "user_features": {"age": ages}}
    one, other = make(name, seed=0, **options), make(name, seed=1, **options)
    history, users = make_history(), torch.arange(8)
    one.eval(), other.eval()
    assert not torch.equal(plain(one.users(history, users)), plain(other.users(history, users)))
    other.load_state_dict(one.state_dict())
    assert torch.equal(plain(one.users(history, users)), plain(other.users(history, users)))
    assert torch.equal(one.items(positives(history)), other.items(positives(history)))
    assert all(isinstance(value, Tensor) for value in one.state_dict().values())


@every_model
def test_a_copy_is_independent(name, make_history):
    model = make(name).eval()
    history = make_history()
    twin = copy.deepcopy(model)
    before = plain(twin.users(history))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert torch.equal(plain(twin.users(history)), before)


@every_model
def test_normalised_vectors_have_length_one(name, make_history):
    model, history = make(name, normalize=True), make_history()
    u, v = model(history, positives(history))
    full = history[:, 0] > 0  # an empty history may well be the zero vector
    if isinstance(u, Queries):
        real = u.log_weights.exp()[full] > 0
        lengths = 0.1 * u.vectors[full].norm(dim=2)[real]  # divided by the temperature
        torch.testing.assert_close(lengths, torch.ones_like(lengths))
    else:
        torch.testing.assert_close(u[full].norm(dim=1), torch.ones(int(full.sum())))
    torch.testing.assert_close(v.norm(dim=1), torch.ones(len(v)))


@every_model
def test_bfloat16_autocast_stays_close(name, make_history):
    model, history = make(name).eval(), make_history()
    exact = plain(model.users(history))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        u, v = model(history, positives(history))
        rough = plain(model.users(history)).float()
    scores(u.float(), v.float()).sum().backward()
    assert all(p.grad.isfinite().all() for p in model.user_tower.parameters())
    assert (rough - exact).norm() <= 0.05 * exact.norm()


@every_model
def test_training_lowers_the_loss(name):
    """Ten groups of five items; a history's positive is of the same group."""
    torch.manual_seed(0)
    model = make(name, sparse=False, tower={"temperature": 1.0} if name == "recent_items" else {})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(80):
        group = torch.randperm(10)
        history = group[:, None] * 5 + torch.randint(1, 6, (10, 4))
        u, v = model(history, group * 5 + torch.randint(1, 6, (10,)))
        loss = functional.cross_entropy(scores(u, v), torch.arange(10))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(2.303, abs=0.5)  # log 10: it knows nothing yet
    assert sum(losses[-10:]) / 10 < 1.7
