"""Users that `implicit`'s factorisation has not seen, against a dense least-squares solution."""

import numpy as np
import pytest
import torch

pytest.importorskip("implicit")

from crossbatch.evaluation.baselines import als
from crossbatch.evaluation.linear_models import factorise

from .conftest import ToyDataset, histories_batch

NUM_ITEMS = 25  # the last one never occurs
ALPHA, L2 = 7.0, 0.5


@pytest.fixture(scope="module")
def dataset():
    rng = np.random.default_rng(3)
    return ToyDataset([rng.integers(1, 25, n).tolist() for n in rng.integers(2, 9, 60)], NUM_ITEMS)


def solved(items, history):
    """(YᵀCY + λ I)⁻¹ Yᵀ C p with p = 1 and C = α for the history's items; float64."""
    has = np.zeros(len(items))
    has[history] = 1.0
    confidence = np.where(has > 0, ALPHA, 1.0)
    matrix = items.T @ (confidence[:, None] * items) + L2 * np.eye(items.shape[1])
    return np.linalg.solve(matrix, items.T @ (confidence * has))


def test_a_user_is_the_least_squares_solution_of_the_history(dataset):
    model = factorise(
        *dataset.train_sequences(), num_items=NUM_ITEMS, factors=6, alpha=ALPHA, l2=L2
    )
    histories = torch.tensor([[3, 9, 3, 0], [12, 0, 0, 0], [1, 2, 4, 6]])
    found = model.encode(histories)
    items = model.items.double().numpy()
    for row, history in zip(found, histories, strict=True):
        expected = solved(items, [i for i in set(history.tolist()) if i])
        np.testing.assert_allclose(row.numpy(), expected, rtol=2e-4, atol=1e-5)


def test_items_are_least_squares_solutions_too(dataset):
    """The last half-step of training leaves each item as the solution for its users."""
    model = factorise(
        *dataset.train_sequences(), num_items=NUM_ITEMS, factors=4, alpha=ALPHA, l2=L2
    )
    users = model.model.user_factors.astype(np.float64)
    item = model.items[5].numpy()
    has = [u for u, sequence in enumerate(dataset.sequences) if 5 in sequence]
    # Three steps of conjugate gradients from a good start: close, not exact.
    np.testing.assert_allclose(item, solved(users, has), rtol=0.02, atol=0.01)
    assert not model.items[25].any()


def test_lists_are_products_of_the_vectors(dataset):
    recommend = als(dataset, factors=6, alpha=ALPHA, l2=L2)
    model = factorise(
        *dataset.train_sequences(), num_items=NUM_ITEMS, factors=6, alpha=ALPHA, l2=L2
    )
    items = model.items.double().numpy()
    scores = items @ solved(items, [3, 9])
    order = [i for i in np.argsort(-scores, kind="stable").tolist() if i]
    batch = histories_batch([[3, 9], []])
    assert recommend(batch, 8, None)[0].tolist() == order[:8]
    left_out = recommend(batch, 8, torch.tensor([[3, 9], [0, 0]]))
    assert left_out[0].tolist() == [i for i in order if i not in (3, 9)][:8]
    popular = sorted(range(1, NUM_ITEMS + 1), key=lambda i: (-dataset.item_counts[i], i))
    assert left_out[1].tolist() == popular[:8]


def test_the_same_data_give_the_same_vectors(dataset):
    one, two = (
        factorise(*dataset.train_sequences(), num_items=NUM_ITEMS, factors=6, alpha=ALPHA, l2=L2)
        for _ in range(2)
    )
    assert torch.equal(one.items, two.items)
