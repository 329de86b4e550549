"""First vectors of items: pairs against a double loop, eigenvectors against NumPy's dense ones."""

import math
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from crossbatch.errors import ConfigError
from crossbatch.kernels import near_pairs as kernel
from crossbatch.kernels.compiler import usable
from crossbatch.kernels.near_pairs import DECAY, DOUBT, WINDOW
from crossbatch.models import build_model
from crossbatch.training import cooccurrence
from crossbatch.training.build import build_trainer, resolve
from crossbatch.training.cooccurrence import (
    FirstVectors,
    begin_with_vectors,
    cooccurrence_vectors,
    leading_vectors,
    near_pairs,
    orthogonalise,
)


def sequences(rng, num_items, lengths):
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return offsets, rng.integers(1, num_items + 1, size=offsets[-1])


def by_hand(offsets, items, num_items):
    """The matrix `[n, n]` of `near_pairs`, where every pair is kept."""
    weights = defaultdict(float)
    for start, stop in pairwise(offsets):
        for p in range(start, stop):
            for q in range(start, stop):
                if p != q and abs(p - q) <= WINDOW and items[p] != items[q]:
                    weights[items[p], items[q]] += math.exp(-DECAY * (abs(p - q) - 1))
    degrees = np.zeros(num_items + 1)
    for (i, _), weight in weights.items():
        degrees[i] += weight
    found = np.zeros((num_items + 1, num_items + 1))
    for (i, j), weight in weights.items():
        information = math.log(weight * degrees.sum() / (degrees[i] * degrees[j]))
        found[i, j] = max(information, 0) * weight / (weight + DOUBT)
    return found


def dense(pairs):
    half = pairs.half.to_dense()
    assert torch.equal(pairs.transposed.to_dense(), half.T)
    return (half + half.T).numpy()


@pytest.fixture(params=[True, False], ids=["compiled", "NumPy"])
def either_way(request, monkeypatch):
    """Both forms of the count, whatever there is to count."""
    if request.param and not usable():
        pytest.skip("needs numba")
    monkeypatch.setattr(kernel, "WORTH_COMPILING", 1 if request.param else math.inf)


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("at_once", [1, 40, 1 << 20])
def test_pairs_are_those_of_a_double_loop(monkeypatch, at_once):
    monkeypatch.setattr(cooccurrence, "AT_ONCE", at_once)
    monkeypatch.setattr(kernel, "PAIRS", at_once)
    rng = np.random.default_rng(0)
    offsets, items = sequences(rng, 12, [0, 1, 2, 30, 5, 0, 14])
    pairs = near_pairs(offsets, items, 12)
    np.testing.assert_allclose(dense(pairs), by_hand(offsets, items, 12), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("either_way")
def test_of_many_pairs_those_with_the_most_information_of_either_item_stay(monkeypatch):
    monkeypatch.setattr(cooccurrence, "MOST_PAIRS", 0)
    monkeypatch.setattr(cooccurrence, "FEWEST", 2)
    rng = np.random.default_rng(1)
    offsets, items = sequences(rng, 15, [20] * 6)
    every = by_hand(offsets, items, 15)
    best = np.argsort(-every, axis=1, kind="stable")[:, :2]
    kept = np.zeros_like(every, dtype=bool)
    for i, row in enumerate(best):
        kept[i, row] = True
    expected = np.where(kept | kept.T, every, 0)
    np.testing.assert_allclose(dense(near_pairs(offsets, items, 15)), expected, rtol=1e-5)


@pytest.mark.skipif(not usable(), reason="needs numba")
@pytest.mark.parametrize("most", [1, 4, 7, 1000])
def test_compiled_code_finds_what_numpy_does(monkeypatch, most):
    monkeypatch.setattr(kernel, "WORTH_COMPILING", 1)
    rng = np.random.default_rng(most)
    offsets, items = sequences(rng, 80, rng.integers(0, 40, 300))  # many equal weights
    found, wanted = (
        kernel.nearest(offsets, items, 90, most),
        kernel.definition(offsets, items, 90, most),
    )
    for name in ("ends", "least", "last"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
    for start, end in pairwise([0, *wanted.ends]):
        own, other = (np.argsort(each.columns[start:end]) + start for each in (found, wanted))
        np.testing.assert_array_equal(found.columns[own], wanted.columns[other])
        np.testing.assert_allclose(found.values[own], wanted.values[other], rtol=1e-6)


@pytest.mark.skipif(not usable(), reason="needs numba")
@pytest.mark.parametrize(
    ("offsets", "items"), [([0, 3], [1, 5, 2]), ([0, 3], [1, -1, 2]), ([0, 4], [1, 2, 3]),
                           ([0, 2, 1, 3], [1, 2, 3])]
)  # fmt: skip
def test_compiled_code_refuses_what_is_out_of_range(monkeypatch, offsets, items):
    monkeypatch.setattr(kernel, "WORTH_COMPILING", 1)
    with pytest.raises(ValueError, match="items must be ids below 5"):
        kernel.nearest(np.array(offsets), np.array(items), 5, 3)


def test_vectors_are_leading_eigenvectors():
    offsets, items = sequences(np.random.default_rng(2), 40, [25] * 12)
    pairs = near_pairs(offsets, items, 40)
    values, _ = np.linalg.eigh(dense(pairs).astype(np.float64))
    # As many columns as the matrix has: the search is then exact.
    found = leading_vectors(pairs, 41, torch.Generator().manual_seed(0)).double().numpy()
    positive = np.sort(values[values > 1e-4])[::-1]
    np.testing.assert_allclose((found**2).sum(axis=0)[: len(positive)], positive, rtol=1e-3)
    vectors, whole = np.linalg.eigh(dense(pairs).astype(np.float64))
    part = np.where(vectors > 0, vectors, 0)
    np.testing.assert_allclose(found @ found.T, (whole * part) @ whole.T, atol=1e-3)


@pytest.mark.parametrize("rows", [8, 9, 20, 64])
def test_columns_are_made_orthogonal_in_place(monkeypatch, rows):
    monkeypatch.setattr(cooccurrence, "ROWS", rows)
    given = torch.randn(61, 4, generator=torch.Generator().manual_seed(0))
    given[:, 3] = given[:, 0] - given[:, 1]  # three of four columns are independent
    given[20:45] = 0
    columns = given.clone()
    r = orthogonalise(columns)
    torch.testing.assert_close(columns.T @ columns, torch.eye(4))
    torch.testing.assert_close(columns @ r, given)


@pytest.mark.parametrize(("at_once", "rows"), [(3, 10), (100, 10), (3, 1000)])
def test_blocks_leave_the_eigenvectors_the_same(monkeypatch, at_once, rows):
    """And items without pairs are zeros, wherever they stand in a block."""
    rng = np.random.default_rng(6)
    offsets, items = sequences(rng, 30, [25] * 20)
    pairs = near_pairs(offsets, 2 * items, 61)  # even ones alone
    expected, vectors = np.linalg.eigh(dense(pairs).astype(np.float64))
    monkeypatch.setattr(cooccurrence, "COLUMNS", at_once)
    monkeypatch.setattr(cooccurrence, "ROWS", rows)
    monkeypatch.setattr(cooccurrence, "ROUNDS", 60)  # until it has found them
    found = leading_vectors(pairs, 5, torch.Generator().manual_seed(0)).double().numpy()
    exact = (vectors[:, -5:] * expected[-5:]) @ vectors[:, -5:].T
    np.testing.assert_allclose(found @ found.T, exact, atol=1e-3)
    assert not found[[0, *range(1, 62, 2)]].any()


def test_items_of_two_groups_lie_apart():
    rng = np.random.default_rng(3)
    items = np.concatenate([rng.integers(1, 11, 300), rng.integers(11, 21, 300)])
    vectors = cooccurrence_vectors(near_pairs(np.arange(0, 601, 10), items, 20), 4).numpy()
    cosines = vectors[1:] @ vectors[1:].T
    assert cosines[:10, :10].min() > cosines[:10, 10:].max()


def test_padding_is_zero_all_others_have_length_one_and_the_seed_decides():
    # Items 8 to 10 occur nowhere; the pairs of 7 items have fewer eigenvectors than dimensions.
    offsets, items = sequences(np.random.default_rng(4), 7, [9] * 8)
    pairs = near_pairs(offsets, items, 10)
    first, again, other = (cooccurrence_vectors(pairs, 16, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not first[0].any()
    torch.testing.assert_close(first[1:].norm(dim=1), torch.ones(10))
    assert (first[1:].abs() > 0).all()  # a dimension of zeros would never learn


@pytest.mark.parametrize("lengths", [[], [0, 0], [1, 1]])
def test_sequences_without_pairs_leave_random_vectors(lengths):
    offsets, items = sequences(np.random.default_rng(5), 3, lengths)
    vectors = cooccurrence_vectors(near_pairs(offsets, items, 3), 8)
    torch.testing.assert_close(vectors[1:].norm(dim=1), torch.ones(3))
    assert abs(float(vectors[1] @ vectors[2])) < 1


def normalised(recipe, **model):
    return replace(
        recipe, model=replace(recipe.model, normalize=True, init="cooccurrence", **model)
    )


def test_a_run_begins_with_them(dataset, recipe):
    chosen = resolve(normalised(recipe), dataset)
    model = build_trainer(chosen, dataset).model
    said = []
    assert begin_with_vectors(model, chosen, FirstVectors(dataset, chosen.train).of, said.append)
    assert len(said) == 1
    pairs = near_pairs(*dataset.train_sequences(), dataset.num_items)
    expected = cooccurrence_vectors(pairs, model.item_tower.table.dim)
    assert torch.equal(model.item_tower.table.weight.detach(), expected)
    ids = torch.arange(1, dataset.num_items + 1)
    torch.testing.assert_close(model.items(ids), expected[1:])  # content is left out at first


def test_vectors_are_counted_once(dataset, recipe, monkeypatch):
    chosen = resolve(normalised(recipe), dataset)
    models = [build_trainer(chosen, dataset).model for _ in range(2)]
    dim = models[0].item_tower.table.dim
    vectors = FirstVectors(dataset, chosen.train)
    assert begin_with_vectors(models[0], chosen, vectors.of)
    monkeypatch.setattr(cooccurrence, "near_pairs", None)  # to call it again would fail
    assert begin_with_vectors(models[1], chosen, vectors.leading)
    first, second = (model.item_tower.table.weight for model in models)
    assert torch.equal(first, second)
    vectors.forget()
    with pytest.raises(TypeError):
        vectors.of(dim)


def test_narrow_vectors_are_the_leading_dimensions_of_wide_ones(dataset, recipe, monkeypatch):
    train = resolve(normalised(recipe), dataset).train
    vectors = FirstVectors(dataset, train, width=12)
    narrow = vectors.leading(5)
    monkeypatch.setattr(cooccurrence, "near_pairs", None)
    wide = vectors.of(12)
    pairs = near_pairs(*dataset.train_sequences(), dataset.num_items)
    assert torch.equal(wide, cooccurrence_vectors(pairs, 12, seed=train.seed))
    expected = wide[1:, :5] / wide[1:, :5].norm(dim=1, keepdim=True)
    torch.testing.assert_close(narrow[1:], expected)
    assert not narrow[0].any()


@pytest.mark.parametrize(
    "model", [{"init": "random"}, {"normalize": False}, {"item": {"hidden": [8]}}]
)
def test_where_they_would_not_be_what_is_scored_items_begin_at_random(dataset, recipe, model):
    chosen = normalised(recipe)
    chosen = resolve(replace(chosen, model=replace(chosen.model, **model)), dataset)
    towers = build_trainer(chosen, dataset).model
    before = {name: value.clone() for name, value in towers.state_dict().items()}
    assert not begin_with_vectors(towers, chosen, FirstVectors(dataset, chosen.train).of)
    assert all(torch.equal(value, before[name]) for name, value in towers.state_dict().items())


def test_towers_of_a_users_own_begin_as_they_were_made(dataset, recipe):
    class Own(torch.nn.Module):
        item_tower = None

    assert not begin_with_vectors(Own(), normalised(recipe), None)
    model = build_model("youtube_dnn", dataset.num_items, 8)
    model.item_tower = type("Subclass", (type(model.item_tower),), {})(dataset.num_items, 8)
    assert not begin_with_vectors(model, normalised(recipe), None)


def test_an_unknown_beginning_is_refused(recipe):
    with pytest.raises(ConfigError, match=r"model\.init .*got 'spectral'"):
        recipe.changed(["model.init=spectral"])
