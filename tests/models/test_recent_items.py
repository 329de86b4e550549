import math

import pytest
import torch

from crossbatch.models import ItemTower, RecentItems, TwoTower
from crossbatch.models.history import PaddedHistory


def test_starts_as_the_items_themselves_with_falling_weights():
    tower = RecentItems(4, temperature=0.5)
    vectors = torch.randn(2, 3, 4)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    queries = tower(PaddedHistory(vectors, mask))
    torch.testing.assert_close(queries.vectors[0], vectors[0])
    torch.testing.assert_close(queries.vectors[1, 0], vectors[1, 0])
    # oldest first: ages 2, 1, 0, log-weights -0.6, -0.3, 0, normalised
    terms = [math.exp(-0.6), math.exp(-0.3), 1.0]
    expected = torch.tensor([term / sum(terms) for term in terms])
    torch.testing.assert_close(queries.log_weights[0].exp(), expected)
    assert queries.log_weights[1].exp().tolist() == [1.0, 0.0, 0.0]
    torch.testing.assert_close(tower.divided(queries).vectors, queries.vectors / 0.5)


def test_gaps_of_a_history_do_not_age_its_items():
    tower = RecentItems(4)
    vectors = torch.randn(1, 4, 4)
    gap = tower(PaddedHistory(vectors, torch.tensor([[True, False, True, False]])))
    whole = tower(PaddedHistory(vectors[:, [0, 2]], torch.ones(1, 2, dtype=torch.bool)))
    torch.testing.assert_close(gap.log_weights[:, [0, 2]], whole.log_weights)
    assert gap.log_weights.exp()[0, [1, 3]].tolist() == [0.0, 0.0]


def test_scores_equal_the_formula_in_float64():
    torch.manual_seed(0)
    model = TwoTower(ItemTower(20, 6), RecentItems(6, temperature=0.2), normalize=True)
    torch.nn.init.normal_(model.user_tower.layer.weight)
    torch.nn.init.normal_(model.user_tower.log_weights)
    model.eval()
    history = [3, 9, 4]
    with torch.no_grad():
        found = model.users(torch.tensor([[*history, 0]])).scores(model.items(torch.arange(1, 21)))
    table = model.item_tower.table.weight.detach().double()
    layer, ages = model.user_tower.layer, model.user_tower.log_weights.detach().double()
    log_weights = torch.stack([ages[2], ages[1], ages[0]]).log_softmax(0)
    for item in range(1, 21):
        v = table[item] / table[item].norm()
        terms = 0.0
        for item_k, log_weight in zip(history, log_weights.tolist(), strict=True):
            q = layer.weight.detach().double() @ table[item_k] + layer.bias.detach().double()
            terms += math.exp(log_weight + float(q @ v / q.norm()) / 0.2)
        assert float(found[0, item - 1]) == pytest.approx(math.log(terms), rel=1e-5)


def test_a_user_without_history_scores_all_items_alike():
    model = TwoTower(ItemTower(20, 6), RecentItems(6), normalize=True).eval()
    scores = model.users(torch.zeros(1, 3, dtype=torch.long)).scores(
        model.items(torch.arange(1, 9))
    )
    torch.testing.assert_close(scores, torch.zeros(1, 8))


@pytest.mark.parametrize("temperature", [0, -1.0, math.inf, math.nan])
def test_impossible_temperatures_are_refused(temperature):
    with pytest.raises(ValueError, match="temperature must be positive and finite, got"):
        RecentItems(4, temperature=temperature)
