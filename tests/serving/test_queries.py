"""A model whose queries score together, from the run to the served answer."""

import json
import math

import pytest
import torch

from crossbatch.queries import Queries
from crossbatch.retrieval import ExactIndex, IVFIndex
from crossbatch.retrieval.choice import choose_index, recall_of
from crossbatch.serving import export_bundle
from crossbatch.serving.server.answers import answer_all
from crossbatch.serving.server.live_bundle import LiveBundle
from crossbatch.serving.server.messages import RecommendRequest
from crossbatch.training.run_folder import open_run

from .conftest import trained


@pytest.fixture(scope="module")
def run(shop, tmp_path_factory):
    out = tmp_path_factory.mktemp("queries") / "run"
    model = {"name": "recent_items", "normalize": True, "user_features": []}
    return trained(shop, out, temperature=0.2, **model)


@pytest.fixture(scope="module")
def bundle(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("bundles") / "queries"
    return export_bundle(run, out, graph_formats=("pt2",))


def expected_scores(run, history):
    """Scores of all items by the trained towers in float64, one query at a time."""
    towers = open_run(run).towers
    tower = towers.user_tower
    with torch.no_grad():
        items = towers.items(torch.arange(1, 201)).double()
        vectors = tower.layer(towers.describe(torch.tensor(history))).double()
    ages = torch.arange(len(history) - 1, -1, -1)
    weights = tower.log_weights.detach().double()[ages].softmax(dim=0)
    queries = vectors / vectors.norm(dim=1, keepdim=True)
    return (weights[:, None] * (queries @ items.T / 0.2).exp()).sum(dim=0).log()


def test_a_bundle_ranks_by_the_exact_joint_score(run, bundle):
    history = [7, 30, 4]
    truth = expected_scores(run, history)
    keys = bundle.item_keys(history)
    (found,) = bundle.recommend([keys], k=20)
    assert found.items
    allowed = [item for item in range(1, 201) if item not in history]
    best = sorted(allowed, key=lambda item: (-float(truth[item - 1]), item))[:20]
    for item, expected in zip(found.items, best, strict=True):
        assert item.score == pytest.approx(float(truth[expected - 1]), rel=1e-4)
        assert item.id == expected or math.isclose(
            truth[item.id - 1], truth[expected - 1], rel_tol=1e-5
        )


def test_the_item_behind_a_recommendation_has_the_largest_part_in_its_score(run, bundle):
    history = [7, 30, 4]
    towers = open_run(run).towers
    with torch.no_grad():
        queries = towers.users(torch.tensor([history]))
    for item in bundle.recommend([bundle.item_keys(history)], k=10)[0].items:
        vector = bundle.item_vectors[item.id]
        parts = queries.log_weights[0] + queries.vectors[0] @ vector
        assert item.because == bundle.item_keys([history[int(parts.argmax())]])[0]


def test_only_the_most_recent_items_count(bundle):
    history = bundle.item_keys(range(1, 41))
    recent = history[-bundle.history_length :]
    lists = bundle.recommend([history, recent], k=5, exclude_seen=False)
    assert [item.id for item in lists[0].items] == [item.id for item in lists[1].items]
    assert bundle.num_interests == bundle.history_length


def test_a_user_of_whom_nothing_is_known_gets_popular_items_without_a_reason(bundle):
    (found,) = bundle.recommend([[]], k=5)
    assert found.popular
    assert [item.because for item in found.items] == [None] * 5


def test_an_approximate_index_is_measured_by_the_joint_score():
    pytest.importorskip("faiss")
    torch.manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(20_001, 16), dim=1)
    places = torch.randint(1, 20_001, (40, 6))
    log_weights = torch.randn(40, 6).log_softmax(dim=1)
    log_weights[:10, 3:] = -torch.inf
    queries = Queries(10 * vectors[places], log_weights)
    index, facts = choose_index(vectors, queries, name="ivf", k=20, target=0.95)
    assert isinstance(index, IVFIndex)
    truth = ExactIndex(vectors).search(queries, 20)
    assert facts.recall == recall_of(index, queries, truth.item_ids) >= 0.95
    found = index.search(queries, 20)
    shared = found.item_ids[:, 0] == truth.item_ids[:, 0]
    assert shared.float().mean() > 0.9
    torch.testing.assert_close(found.scores[shared, 0], truth.scores[shared, 0])


def test_the_parity_check_covers_the_graph(bundle):
    assert bundle.manifest["parity"]["pt2"] < 1e-4
    assert bundle.manifest["parity"]["user vectors"] < 1e-4


def test_an_explained_answer_names_the_item_behind_each_recommendation(bundle):
    live = {"main": LiveBundle("main", bundle.path)}
    history = bundle.item_keys([7, 30, 4])
    query = RecommendRequest(bundle="main", history=history, k=6, explain=True)
    (answer,) = answer_all(live, [query])
    body = json.loads(answer.body)
    listed = bundle.recommend([history], k=6)[0].items
    assert [item["because"]["id"] for item in body["items"]] == [item.because for item in listed]
    assert [interest["near"] for interest in body["interests"]] == [[key] for key in history]
