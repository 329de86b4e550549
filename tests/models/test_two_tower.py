import pytest
import torch
from torch import nn

from crossbatch.kernels.ragged import real_entries
from crossbatch.models import (
    EmbeddingTable,
    FeatureTable,
    ItemTower,
    TwoTower,
    YouTubeDNN,
    build_model,
)

NUM_ITEMS, DIM = 50, 8


class CountingTower(nn.Module):
    """A foreign item tower, unknown to the package: it remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_ITEMS + 1, DIM)
        self.asked: list[list[int]] = []

    def forward(self, ids):
        self.asked.append(ids.tolist())
        return self.embedding(ids)


class SumTower(nn.Module):
    """A foreign user tower with one vector per user."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(DIM, DIM)

    def forward(self, history):
        return self.layer(history.padded()[0].sum(dim=1))


class FirstAndLast(nn.Module):
    """A foreign tower of two interests, without a readout of its own."""

    def forward(self, history):
        vectors, mask = history.padded()
        last = mask.sum(dim=1).sub(1).clamp_min(0)
        return torch.stack([vectors[:, 0], vectors[torch.arange(len(last)), last]], dim=1)


@pytest.fixture
def ages() -> FeatureTable:
    """User n is n - 5 years old."""
    return FeatureTable("numeric", torch.arange(-5.0, 5.0).view(10, 1))


def test_history_is_tied_to_the_items_by_default(make_history):
    model = TwoTower(ItemTower(NUM_ITEMS, DIM), FirstAndLast())
    interests = model.users(torch.tensor([[4, 7, 9, 0]]))
    assert torch.equal(interests[0], model.items(torch.tensor([4, 9])))


@pytest.fixture
def tags() -> FeatureTable:
    """Item n has the category n mod 3; that of padding is 0, as some items' is."""
    return FeatureTable("categorical", torch.arange(NUM_ITEMS + 1) % 3, num_values=3)


@pytest.mark.parametrize("id_dim", [DIM, 3])
def test_a_history_with_content_has_what_the_items_layers_see(tags, id_dim):
    tower = ItemTower(NUM_ITEMS, DIM, features={"tag": tags}, id_dim=id_dim, hidden=(4,))
    model = TwoTower(tower, YouTubeDNN(DIM, input_dim=id_dim + 32), history="content")
    history = torch.tensor([[4, 9, 0], [0, 0, 0]])
    vectors, _ = model._read_history(history[history != 0], torch.tensor([2, 2])).padded()
    assert vectors.shape == (2, 2, id_dim + 32)
    for place, item in ((0, 4), (1, 9)):
        by_hand = torch.cat(
            [tower.table.weight[item], tower.content.encoders[0].embedding.weight[item % 3]]
        )
        assert torch.equal(vectors[0, place], by_hand)
    assert not vectors[1].any()  # not the vector of category 0
    assert torch.equal(model.describe(torch.tensor([4])), vectors[:1, 0])


def test_padding_teaches_no_category(tags):
    tower = ItemTower(NUM_ITEMS, DIM, features={"tag": tags}, sparse=False)
    model = TwoTower(tower, YouTubeDNN(DIM, input_dim=DIM + 32), history="content")
    model.users(torch.tensor([[4, 5, 0, 0]])).sum().backward()
    learned = tower.content.encoders[0].embedding.weight.grad.any(dim=1)
    assert learned.tolist() == [False, True, True]


def test_the_width_of_histories_reaches_the_user_tower(tags):
    model = build_model("gru4rec", NUM_ITEMS, DIM, item={"id_dim": 3}, item_features={"tag": tags})
    assert model.user_tower.input_dim == 3  # ids alone
    with pytest.raises(
        ValueError, match=r"'content' describes an item by 35 numbers, but .* 8; give"
    ):
        TwoTower(model.item_tower, YouTubeDNN(DIM), history="content")
    with pytest.raises(ValueError, match=r"by 3 numbers, .* reads 9; give it input_dim=3"):
        build_model("gru4rec", NUM_ITEMS, DIM, item={"id_dim": 3}, tower={"input_dim": 9})
    with pytest.raises(ValueError, match="input_dim must be at least 1, got 0"):
        build_model("mind", NUM_ITEMS, DIM, tower={"input_dim": 0})


def test_history_through_the_item_tower_encodes_each_distinct_item_once():
    tower = CountingTower()
    model = TwoTower(tower, SumTower(), history="item_tower")
    history = torch.tensor([[5, 3, 5, 0], [3, 3, 0, 0], [0, 0, 0, 0]])
    vectors = model._read_history(*real_entries(history)).items
    assert tower.asked == [[3, 5]]
    assert torch.equal(vectors, tower.embedding.weight[[5, 3, 5, 3, 3]])


def test_the_two_sources_agree_for_a_bare_table(make_history):
    history, tower = make_history(), ItemTower(NUM_ITEMS, DIM)
    user_tower = YouTubeDNN(DIM)
    by_id = TwoTower(tower, user_tower).users(history)
    by_tower = TwoTower(tower, user_tower, history="item_tower").users(history)
    torch.testing.assert_close(by_id, by_tower)


def test_history_through_the_item_tower_trains_it(make_history):
    genres = FeatureTable("categorical", torch.arange(NUM_ITEMS + 1).int() % 5, num_values=5)
    tower = ItemTower(NUM_ITEMS, DIM, features={"genre": genres}, id=False)
    model = TwoTower(tower, YouTubeDNN(DIM), history="item_tower")
    model.users(torch.tensor([[1, 2, 6, 0]])).sum().backward()
    rows = tower.content.encoders[0].embedding.weight.grad.coalesce().indices()[0]
    assert rows.tolist() == [1, 2]  # of items 1, 2 and 6; nothing for the padding item's genre 0


def test_foreign_towers_train_without_subclassing(make_history):
    model = TwoTower(CountingTower(), SumTower(), history="item_tower")
    history = make_history()
    assert model.users(history).shape == (8, 1, DIM)
    u, v = model(history, torch.arange(1, 9))
    (u * v).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_foreign_interests_are_read_out_by_the_best_score():
    model = TwoTower(ItemTower(NUM_ITEMS, DIM), FirstAndLast())
    history = torch.tensor([[4, 9], [4, 9]])
    u, v = model(history, torch.tensor([4, 9]))
    interests = model.users(history)
    for row in range(2):
        best = (interests[row] @ v[row]).argmax()
        assert torch.equal(u[row], interests[row, best])


def test_profile_is_joined_to_every_interest(ages):
    model = TwoTower(ItemTower(NUM_ITEMS, DIM), FirstAndLast(), user_features={"age": ages})
    history, users = torch.tensor([[4, 9], [7, 2]]), torch.tensor([3, 6])
    plain = TwoTower(model.item_tower, FirstAndLast()).users(history)
    (layer,) = model.fuse
    joined = torch.cat([plain, torch.tensor([[[-2.0]] * 2, [[1.0]] * 2])], dim=-1)
    expected = joined @ layer.weight.T + layer.bias
    torch.testing.assert_close(model.users(history, users), expected)


def test_a_tower_that_passes_items_through_does_so_beside_a_profile(ages):
    tower, items = YouTubeDNN(DIM, pooling="recency"), ItemTower(NUM_ITEMS, DIM)
    model = TwoTower(items, tower, user_features={"age": ages})
    history = torch.tensor([[4, 0], [7, 0]])
    found = model.users(history, torch.tensor([3, 6]))[:, 0]
    torch.testing.assert_close(found, items(torch.tensor([4, 7])))


def test_profile_of_unknown_users_is_zero(ages):
    model = TwoTower(ItemTower(NUM_ITEMS, DIM), SumTower(), user_features={"age": ages}).eval()
    history = torch.tensor([[4, 9], [4, 9]])
    zero_age = model.users(history, torch.tensor([5, 5]))
    assert not torch.allclose(zero_age, model.users(history, torch.tensor([0, 0])))
    torch.testing.assert_close(model.users(history), zero_age)
    torch.testing.assert_close(model.users(history, torch.tensor([-1, -1])), zero_age)
    model.train()
    with pytest.raises(
        ValueError, match="user_ids is required to train a model with user features"
    ):
        model.users(history)


@pytest.mark.parametrize("sparse", [True, False])
def test_tables_of_the_profile_have_the_gradients_asked_for(sparse):
    jobs = FeatureTable("categorical", torch.arange(10).int(), num_values=10)
    model = TwoTower(
        ItemTower(NUM_ITEMS, DIM), SumTower(), user_features={"job": jobs}, sparse=sparse
    )
    model.users(torch.tensor([[4, 9]]), torch.tensor([3])).sum().backward()
    gradient = model.profile.encoders[0].embedding.weight.grad
    assert gradient.is_sparse == sparse
    assert gradient.to_dense().any(dim=1).nonzero().tolist() == [[3]]


def test_history_dropout_acts_in_training_only():
    torch.manual_seed(0)
    model = TwoTower(ItemTower(NUM_ITEMS, DIM), FirstAndLast(), history_dropout=0.5)
    history = torch.arange(1, 11).expand(64, 10)
    firsts = model.users(history)[:, 0].unique(dim=0)
    assert len(firsts) > 2
    model.eval()
    assert len(model.users(history)[:, 0].unique(dim=0)) == 1


def test_normalised_history_vectors_are_the_items_vectors(make_history):
    """What serving has at hand (unit item vectors) must be enough to compute a user."""
    genres = FeatureTable("categorical", torch.arange(NUM_ITEMS + 1).int() % 5, num_values=5)
    tower = ItemTower(NUM_ITEMS, DIM, features={"genre": genres})
    model = TwoTower(tower, YouTubeDNN(DIM), history="item_tower", normalize=True)
    history = make_history()
    mask = history != 0
    vectors = model.items(torch.arange(NUM_ITEMS + 1))[history] * mask.unsqueeze(-1)
    torch.testing.assert_close(model.interests(vectors, mask), model.users(history))


def test_foreign_item_tower_may_lend_its_table():
    class Tower(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(NUM_ITEMS + 1, DIM)

        def forward(self, ids):
            return self.table(ids) * 2

    model = TwoTower(Tower(), FirstAndLast())
    history = torch.tensor([[3, 0]])
    assert torch.equal(model.users(history)[0, 0], model.item_tower.table.weight[3])
    assert torch.equal(model.describe(torch.tensor([3]))[0], model.item_tower.table.weight[3])


@pytest.mark.parametrize(
    ("tower", "options", "message"),
    [
        (CountingTower(), {}, 'history="id" needs an item tower with an id table'),
        (CountingTower(), {"history": "content"}, "needs an item tower with a method columns"),
        (
            ItemTower(9, DIM),
            {"history": "ids"},
            "history must be one of id, content, item_tower, got 'ids'",
        ),
        (ItemTower(9, DIM), {"history_dropout": 1.0}, r"history_dropout must be in \[0, 1\)"),
        (ItemTower(9, DIM), {"history_dropout": -0.1}, r"history_dropout must be in \[0, 1\)"),
    ],
)
def test_rejects_what_cannot_work(tower, options, message):
    with pytest.raises(ValueError, match=message):
        TwoTower(tower, SumTower(), **options)


def test_user_features_need_a_known_width(ages):
    with pytest.raises(ValueError, match="attribute `dim`"):
        TwoTower(CountingTower(), SumTower(), history="item_tower", user_features={"age": ages})


def test_pure_content_tower_says_how_to_read_histories():
    genres = FeatureTable("categorical", torch.zeros(10).int(), num_values=5)
    tower = ItemTower(9, DIM, features={"genre": genres}, id=False)
    with pytest.raises(ValueError, match='pass history="item_tower"'):
        TwoTower(tower, YouTubeDNN(DIM))


def test_tables_are_found_by_type():
    """Optimisers look for EmbeddingTable to update rows lazily; position tables are dense."""
    model = TwoTower(ItemTower(NUM_ITEMS, DIM), YouTubeDNN(DIM))
    tables = [m for m in model.modules() if isinstance(m, EmbeddingTable) and m.sparse]
    assert tables == [model.item_tower.table]


def test_a_request_without_context_gets_the_average_answer():
    """Three of four events come from one device: without it, items have the shares of the log."""
    torch.manual_seed(0)
    devices = torch.tensor([1, 1, 1, 2] * 16 + [0])  # the last event has none; it is no sample
    context = {"device": FeatureTable("categorical", devices, num_values=3)}
    model = TwoTower(
        ItemTower(3, DIM, sparse=False),
        YouTubeDNN(DIM),
        context=context,
        sparse=False,
        context_dropout=0.25,
    )
    events = torch.arange(64)
    history, positives = torch.full((64, 1), 3), devices[:64]  # the device decides the item
    items = torch.tensor([1, 2])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(300):
        users = model.users(history, events, events)[:, 0]
        loss = nn.functional.cross_entropy(users @ model.items(items).T, positives - 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    asked = torch.tensor([0, 3, 64])
    users = model.users(torch.full((3, 1), 3), asked, asked)[:, 0]
    first = (users @ model.items(items).T).softmax(dim=1)[:, 0]
    torch.testing.assert_close(first, torch.tensor([1.0, 0.0, 0.75]), atol=0.08, rtol=0)
