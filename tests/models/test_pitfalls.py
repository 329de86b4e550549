"""Mistakes that public two-tower code has made, each with a test that would have caught it."""

import math

import pytest
import torch
from torch.nn import functional

from crossbatch.kernels.routing import routing_weights
from crossbatch.models import MIND, MODELS, EmbeddingTable, ItemTower, build_model
from crossbatch.models.history import PaddedHistory
from crossbatch.models.layers import READOUTS
from crossbatch.queries import Queries


def test_pitfall_17_routing_softmax_over_positions():
    logits, mask = torch.randn(3, 4, 5), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0] * 5])
    weights = routing_weights(logits, mask.bool())
    torch.testing.assert_close(weights.sum(dim=1), mask.float())


def test_pitfall_17_within_the_tower():
    """Without map and agreement, interests before squashing must add up to the history's sum."""
    tower = MIND(3, interests=4, iterations=1, relu=False, bias=False)
    torch.nn.init.eye_(tower.bilinear.weight)
    history = torch.rand(2, 5, 3)
    capsules = tower(PaddedHistory(history, torch.ones(2, 5, dtype=torch.bool)))
    length = capsules.norm(dim=-1, keepdim=True)  # n² / (1 + n²) for a sum of length n
    unsquashed = capsules / length * (length / (1 - length)).sqrt()
    torch.testing.assert_close(unsquashed.sum(dim=1), history.sum(dim=1), atol=1e-4, rtol=1e-4)


def tensors(interests: torch.Tensor | Queries) -> list[torch.Tensor]:
    """Interests, or the vectors and weights of queries."""
    if isinstance(interests, Queries):
        return [interests.vectors, interests.log_weights.exp()]
    return [interests]


@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize("power", [1.0, 2.0, 100.0])
def test_pitfall_18_even_power_picks_the_most_negative_interest(readout, power):
    interests = torch.tensor([[[-3.0, 0.0], [1.0, 1.0]]])
    chosen = READOUTS[readout](interests, torch.tensor([[1.0, 0.0]]), power)
    assert chosen.isfinite().all()
    weight_of_second = chosen[0, 1]  # only the second interest has a second coordinate
    assert weight_of_second > 0.85


@pytest.mark.parametrize("readout", READOUTS)
def test_pitfall_18_large_powers_overflow(readout):
    interests = torch.tensor([[[50.0, 0.0], [-50.0, 1.0]]], requires_grad=True)
    chosen = READOUTS[readout](interests, torch.tensor([[1.0, 0.0]]), 100.0)
    chosen.sum().backward()
    torch.testing.assert_close(chosen, torch.tensor([[50.0, 0.0]]))
    assert interests.grad.isfinite().all()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("content", [1.0, -1e4])
def test_pitfall_19_and_20_padding_row_pollutes_the_user(name, content, make_history):
    torch.manual_seed(0)
    model = build_model(name, 50, 16).eval()
    history = make_history()
    expected = tensors(model.users(history))
    with torch.no_grad():
        model.item_tower.table.weight[0] = content
    for found, before in zip(tensors(model.users(history)), expected, strict=True):
        assert torch.equal(found, before)


@pytest.mark.parametrize("name", MODELS)
def test_pitfall_19_and_20_towers_ignore_vectors_at_padding(name):
    torch.manual_seed(0)
    tower = MODELS[name](16).eval()
    vectors, mask = torch.randn(3, 6, 16), torch.arange(6) < torch.tensor([[6], [2], [0]])
    clean = tensors(tower(PaddedHistory(vectors * mask[:, :, None], mask)))
    found = tensors(tower(PaddedHistory(vectors, mask)))
    torch.testing.assert_close(found, clean, atol=1e-6, rtol=1e-5)
    short = tensors(tower(PaddedHistory(vectors[1:2, :2], mask[1:2, :2])))
    if name == "recent_items":  # a query of each item: padding has none
        clean = [part[:, :2] for part in clean]
    clean = [part[1:2] for part in clean]
    torch.testing.assert_close(clean, short, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_pitfall_21_scores_summed_over_the_wrong_axis(name, make_history):
    torch.manual_seed(0)
    model, history = build_model(name, 50, 16).eval(), make_history(B=5)
    u, _ = model(history, torch.arange(1, 6))
    items, table = model.items(torch.arange(1, 8)), model.item_tower.table.weight
    logits = u.scores(items) if isinstance(u, Queries) else u @ items.T
    assert logits.shape == (5, 7)
    if isinstance(u, Queries):
        terms = [
            log_weight + sum((query * table[7]).tolist())
            for query, log_weight in zip(u.vectors[0], u.log_weights[0].tolist(), strict=True)
        ]
        expected = math.log(sum(math.exp(term) for term in terms))
        assert logits[0, 6].item() == pytest.approx(expected, abs=1e-5)
        return
    assert logits[0, 6].item() == pytest.approx(sum((u[0] * table[7]).tolist()), abs=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_pitfall_22_uninitialised_parameters(name, monkeypatch):
    empty = torch.empty

    def poisoned(*sizes, **options):
        return empty(*sizes, **options).fill_(float("nan"))

    monkeypatch.setattr(torch, "empty", poisoned)
    torch.manual_seed(3)
    one = build_model(name, 50, 16).state_dict()
    monkeypatch.undo()
    torch.manual_seed(3)
    two = build_model(name, 50, 16).state_dict()
    for key, value in one.items():
        assert value.isfinite().all(), key
        assert torch.equal(value, two[key]), key


def test_pitfall_23_unit_normal_embeddings():
    table = EmbeddingTable(367_983, 64).weight
    limit = (6 / (367_983 + 64)) ** 0.5
    assert limit == pytest.approx(0.00404, abs=1e-5)
    assert table.abs().max().item() == pytest.approx(limit, rel=1e-3)
    assert table.std().item() == pytest.approx(0.00233, rel=0.01)


def test_pitfall_23_sparse_gradients_equal_dense_ones(make_history):
    """A sparse gradient is a way to store it; what the optimiser makes of it is its own affair."""
    history, targets = make_history(), torch.arange(1, 9)
    gradients = []
    for sparse in (True, False):
        torch.manual_seed(0)
        model = build_model("youtube_dnn", 50, 16, sparse=sparse)
        u, v = model(history, targets)
        functional.cross_entropy(u @ v.T, torch.arange(8)).backward()
        gradients.append(model.item_tower.table.weight.grad)
    assert gradients[0].is_sparse
    assert not gradients[1].is_sparse
    torch.testing.assert_close(gradients[0].to_dense(), gradients[1])
    assert ItemTower(50, 16).table.sparse  # the default
