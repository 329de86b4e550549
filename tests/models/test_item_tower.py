import pytest
import torch

from crossbatch.models import FeatureTable, ItemTower

NUM_ITEMS = 9


@pytest.fixture
def features() -> dict[str, FeatureTable]:
    rows = NUM_ITEMS + 1
    return {
        "genre": FeatureTable("categorical", torch.arange(rows).int() % 4, num_values=4),
        "tags": FeatureTable("multi_valued", torch.arange(rows) + 1, torch.arange(rows + 1), 11),
        "year": FeatureTable("numeric", torch.rand(rows, 2)),
        "text": FeatureTable("dense", torch.rand(rows, 6).half()),
    }


def test_id_alone_is_the_bare_table():
    tower = ItemTower(NUM_ITEMS, 8)
    ids = torch.tensor([3, 3, 1])
    assert torch.equal(tower(ids), tower.table.weight[ids])
    assert [name for name, _ in tower.named_parameters()] == ["table.weight"]
    assert tower.table.weight.shape == (NUM_ITEMS + 1, 8)


def test_id_and_content_through_a_linear_layer(features):
    tower = ItemTower(NUM_ITEMS, 8, features={"year": features["year"]})
    ids = torch.tensor([4, 2])
    joined = torch.cat([tower.table.weight[ids], features["year"].values[ids]], dim=1)
    (layer,) = tower.layers
    torch.testing.assert_close(tower(ids), joined @ layer.weight.T + layer.bias)


def test_hidden_layers_have_relu(features):
    tower = ItemTower(NUM_ITEMS, 8, hidden=(5, 4))
    first, second, last = (layer for layer in tower.layers if isinstance(layer, torch.nn.Linear))
    x = tower.table.weight[[7]]
    for layer in (first, second):
        x = (x @ layer.weight.T + layer.bias).clamp_min(0)
    torch.testing.assert_close(tower(torch.tensor([7])), x @ last.weight.T + last.bias)


def test_widths(features):
    tower = ItemTower(NUM_ITEMS, 8, features=features, id_dim=3, feature_dims={"tags": 5})
    assert tower.layers[0].weight.shape == (8, 3 + 32 + 5 + 2 + 32)
    assert tower(torch.tensor([0, 9])).shape == (2, 8)


def test_every_kind_learns(features):
    tower = ItemTower(NUM_ITEMS, 8, features=features, hidden=(16,))
    tower(torch.arange(1, 10)).square().sum().backward()
    for name, parameter in tower.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.to_dense().abs().sum() > 0, name


def test_pure_content_tower_has_no_id_table(features):
    tower = ItemTower(NUM_ITEMS, 8, features={"genre": features["genre"]}, id=False)
    assert tower.table is None
    assert not any(len(parameter) == NUM_ITEMS + 1 for parameter in tower.parameters())
    vectors = tower(torch.tensor([1, 5, 2]))
    assert torch.equal(vectors[0], vectors[1])  # same genre, so the same item to this tower
    assert not torch.equal(vectors[0], vectors[2])


def test_sparse_option_reaches_every_table(features):
    for sparse in (True, False):
        tower = ItemTower(NUM_ITEMS, 8, features=features, sparse=sparse)
        tower(torch.tensor([1, 2])).sum().backward()
        for table in (tower.table, *(e.embedding for e in list(tower.content.encoders)[:2])):
            assert table.weight.grad.is_sparse == sparse


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((0, 8), {}, "num_items must be at least 1, got 0"),
        ((9, 0), {}, "dim must be at least 1, got 0"),
        ((9, 8), {"id": False}, "id=False needs at least one feature"),
        ((9, 8), {"id_dim": 0}, "id_dim must be at least 1, got 0"),
        ((9, 8), {"hidden": (-1,)}, "hidden must hold layer widths of at least 1"),
    ],
)
def test_rejects_impossible_arguments(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        ItemTower(*arguments, **options)


def test_rejects_features_of_another_catalogue(features):
    with pytest.raises(ValueError, match=r"feature 'genre' has 10 rows, expected .* = 13"):
        ItemTower(12, 8, features={"genre": features["genre"]})
