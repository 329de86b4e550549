"""EASE against one ridge regression per item, without the item itself among the inputs."""

import numpy as np
import pytest
import torch

from crossbatch.evaluation import linear_models as ease_module
from crossbatch.evaluation.baselines import ease
from crossbatch.evaluation.linear_models import item_weights

from .conftest import ToyDataset, histories_batch

NUM_ITEMS, L2 = 20, 3.0  # items 19 and 20 never occur


@pytest.fixture(scope="module")
def dataset():
    rng = np.random.default_rng(2)
    sequences = [rng.integers(1, 19, n).tolist() for n in rng.integers(2, 9, 60)]  # with repeats
    return ToyDataset(sequences, NUM_ITEMS)


@pytest.fixture(scope="module")
def ridge(dataset):
    """Column j: the least-squares weights of all other items for j, by `numpy.linalg.solve`."""
    has = np.zeros((len(dataset.sequences), NUM_ITEMS))
    for user, sequence in enumerate(dataset.sequences):
        has[user, np.array(sequence) - 1] = 1.0
    weights = np.zeros((NUM_ITEMS, NUM_ITEMS))
    for j in range(NUM_ITEMS):
        others = np.delete(np.arange(NUM_ITEMS), j)
        inputs = has[:, others]
        gram = inputs.T @ inputs + L2 * np.eye(NUM_ITEMS - 1)
        weights[others, j] = np.linalg.solve(gram, inputs.T @ has[:, j])
    return weights


@pytest.mark.parametrize("users", [7, 2048])
def test_weights_are_ridge_regressions_on_the_other_items(dataset, ridge, users, monkeypatch):
    monkeypatch.setattr(ease_module, "USERS", users)
    offsets, items = dataset.train_sequences()
    found = item_weights(offsets, items, num_items=NUM_ITEMS, l2=L2)
    np.testing.assert_allclose(found.numpy(), ridge, atol=1e-5)
    assert not found.diagonal().any()


def test_weights_are_the_closed_form(dataset):
    offsets, items = dataset.train_sequences()
    has = np.zeros((len(dataset.sequences), NUM_ITEMS))
    has[np.repeat(np.arange(len(has)), np.diff(offsets)), items - 1] = 1.0
    inverse = np.linalg.solve(has.T @ has + L2 * np.eye(NUM_ITEMS), np.eye(NUM_ITEMS))
    expected = -inverse / np.diag(inverse)
    np.fill_diagonal(expected, 0.0)
    found = item_weights(offsets, items, num_items=NUM_ITEMS, l2=L2)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("rows", [2, 512])
def test_lists_are_sums_of_the_weights_of_distinct_items(dataset, ridge, rows, monkeypatch):
    monkeypatch.setattr(ease_module, "ROWS", rows)
    recommend = ease(dataset, l2=L2)
    histories = [[3, 7, 3], [9], [1, 2, 4, 5, 6, 8], []]
    popular = sorted(range(1, NUM_ITEMS + 1), key=lambda i: (-dataset.item_counts[i], i))
    exclude = torch.tensor([[3, 7, 0], [9, 1, 2], [8, 6, 0], [4, 0, 0]])
    for banned in (None, exclude):
        ranked = recommend(histories_batch(histories), 12, banned)
        for row, history in enumerate(histories):
            left_out = [] if banned is None else banned[row].tolist()
            scores = sum((ridge[item - 1] for item in set(history)), np.zeros(NUM_ITEMS))
            order = sorted(range(1, NUM_ITEMS + 1), key=lambda i: (-round(scores[i - 1], 5), i))
            expected = [i for i in (order if history else popular) if i not in left_out]
            assert ranked[row].tolist() == expected[:12]


def test_lists_end_with_the_catalogue():
    recommend = ease(ToyDataset([[1, 2], [2, 3]], 3), l2=1.0)
    ranked = recommend(histories_batch([[1]]), 5, torch.tensor([[1]]))
    assert ranked.tolist() == [[2, 3, 0, 0, 0]]
