"""Every user tower as an exported graph, with features of every kind, for any number of users."""

from types import SimpleNamespace

import pytest
import torch

from crossbatch.errors import DataError
from crossbatch.models import MODELS, FeatureTable, build_model
from crossbatch.queries import Queries
from crossbatch.serving.bundle.graph import UserGraph, export_graph
from crossbatch.serving.user_features import Profiles

LENGTH, USERS = 5, 9
SCHEMA = {
    "tags": {"kind": "multi_valued", "num_values": 6},
    "age": {"kind": "numeric", "num_values": 2},
    "job": {"kind": "categorical", "num_values": 4},
    "taste": {"kind": "dense", "num_values": 3},
}
TABLES = {
    "tags": FeatureTable(
        "multi_valued",
        torch.tensor([1, 2, 3, 5, 5, 1]),
        torch.tensor([0, 2, 2, 3, 3, 3, 5, 5, 6, 6]),
        6,
    ),
    "age": FeatureTable("numeric", torch.rand(USERS, 2)),
    "job": FeatureTable("categorical", torch.arange(USERS) % 4, None, 4),
    "taste": FeatureTable("dense", torch.rand(USERS, 3).half()),
}


def graph_of(model):
    recommender = SimpleNamespace(
        towers=model, history_vectors=model.item_tower.table.weight.detach()
    )
    return UserGraph(recommender, SCHEMA if model.profile else {})


def histories():
    generator = torch.Generator().manual_seed(0)
    history = torch.randint(1, 31, (USERS, LENGTH), generator=generator)
    lengths = torch.arange(USERS) % (LENGTH + 1)  # an empty one among them
    return history * (torch.arange(LENGTH) < lengths[:, None])


@pytest.mark.parametrize("name", MODELS)
def test_equals_the_towers_for_any_number_of_users(name):
    torch.manual_seed(1)
    model = build_model(name, 30, 4, user_features=TABLES, normalize=True).eval()
    graph = graph_of(model)
    assert graph.input_names() == ["history", "age", "job", "tags", "tags.starts", "taste"]
    program = export_graph(graph, LENGTH).module()
    for rows in (torch.arange(USERS), torch.tensor([5]), torch.tensor([1, 3])):
        inputs = graph.inputs(histories()[rows], Profiles(TABLES, rows))
        with torch.no_grad():
            found = program(*inputs)
            expected = model.users(histories()[rows], rows)
        if isinstance(expected, Queries):  # graphs give as many as a history may have items
            found = Queries(*found).scores(model.items(torch.arange(1, 31)))
            expected = expected.scores(model.items(torch.arange(1, 31)))
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_without_features_the_history_is_all():
    model = build_model("youtube_dnn", 30, 4).eval()
    graph = graph_of(model)
    program = export_graph(graph, LENGTH).module()
    (history,) = graph.inputs(histories(), None)
    with torch.no_grad():
        torch.testing.assert_close(program(history), model.users(history))


def test_a_tower_that_cannot_be_traced_names_the_remedy():
    class Branching(torch.nn.Module):
        def forward(self, vectors, mask):
            return vectors.sum(dim=1) if vectors.sum().item() > 0 else vectors.mean(dim=1)

    model = build_model("youtube_dnn", 30, 4).eval()
    model.user_tower = Branching()
    with pytest.raises(DataError, match="pass --no-graph"):
        export_graph(graph_of(model), LENGTH)
