import copy
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossbatch.models import FEATURE_ENCODERS, FeatureTable
from crossbatch.models.features import KINDS, FeatureEncoder


def bags_table(rows: list[list[int]], num_values: int = 20) -> FeatureTable:
    values = torch.tensor([value for row in rows for value in row], dtype=torch.int32)
    offsets = torch.tensor([0, *np.cumsum([len(row) for row in rows])])
    return FeatureTable("multi_valued", values, offsets, num_values)


@given(st.lists(st.lists(st.integers(1, 19), max_size=5), min_size=1, max_size=8), st.data())
def test_multi_valued_is_the_mean_of_the_values_vectors(rows, data):
    ids = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10))
    encoder = FEATURE_ENCODERS["multi_valued"](bags_table(rows), 3)
    vectors = encoder(torch.tensor(ids, dtype=torch.long))
    weight = encoder.embedding.weight
    assert vectors.shape == (len(ids), 3)
    for vector, row in zip(vectors, ids, strict=True):
        members = [weight[value] for value in rows[row]]
        expected = torch.stack(members).mean(0) if members else torch.zeros(3)
        torch.testing.assert_close(vector, expected)


def test_categorical_has_a_vector_per_value_and_one_for_unknown():
    table = FeatureTable("categorical", torch.tensor([0, 2, 0, 1], dtype=torch.int32), num_values=3)
    encoder = FEATURE_ENCODERS["categorical"](table, 5)
    vectors = encoder(torch.tensor([1, 3, 2]))
    assert torch.equal(vectors, encoder.embedding.weight[[2, 1, 0]])
    vectors.sum().backward()
    assert encoder.embedding.weight.grad.to_dense().ne(0).any(dim=1).all()


def test_numeric_passes_through_or_through_a_layer():
    table = FeatureTable("numeric", torch.tensor([[0.0, 1.0], [0.5, 0.0]]))
    plain = FEATURE_ENCODERS["numeric"](table, None)
    assert plain.dim == 2
    assert plain(torch.tensor([1, 0])).tolist() == [[0.5, 0.0], [0.0, 1.0]]
    assert not list(plain.parameters())
    wide = FEATURE_ENCODERS["numeric"](table, 6)
    expected = 0.5 * wide.layer.weight[:, 0] + wide.layer.bias
    torch.testing.assert_close(wide(torch.tensor([1]))[0], expected)


def test_dense_goes_through_a_layer():
    table = FeatureTable("dense", torch.rand(4, 3).half())
    encoder = FEATURE_ENCODERS["dense"](table, None)
    vectors = encoder(torch.tensor([2]))
    expected = table.values[2].float() @ encoder.layer.weight.T + encoder.layer.bias
    assert vectors.shape == (1, encoder.dim)
    torch.testing.assert_close(vectors[0], expected)


def test_every_kind_has_an_encoder():
    assert tuple(FEATURE_ENCODERS) == KINDS


def test_features_stand_side_by_side_in_the_order_of_names():
    year = FeatureTable("numeric", torch.tensor([[1.0], [2.0]]))
    age = FeatureTable("numeric", torch.tensor([[3.0], [4.0]]))
    for features in ({"year": year, "age": age}, {"age": age, "year": year}):
        encoder = FeatureEncoder(features, {})
        assert encoder.dim == 2
        assert encoder(torch.tensor([1])).tolist() == [[4.0, 2.0]]


def test_tables_are_no_part_of_state_and_copies_share_them():
    table = FeatureTable("dense", torch.rand(4, 3))
    encoder = FEATURE_ENCODERS["dense"](table, 2)
    assert sorted(encoder.state_dict()) == ["layer.bias", "layer.weight"]
    assert copy.deepcopy(encoder).table is table


def test_memory_mapped_arrays_are_not_copied(tmp_path):
    path = tmp_path / "values.npy"
    np.save(path, np.arange(12, dtype=np.float32).reshape(6, 2))
    mapped = np.load(path, mmap_mode="r")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = FeatureTable.from_arrays("numeric", mapped)
    assert table.values.data_ptr() == mapped.ctypes.data
    assert len(table) == 6
    assert table.rows(torch.tensor([5, 1])).tolist() == [[10.0, 11.0], [2.0, 3.0]]


def test_from_arrays_takes_multi_valued_features():
    offsets, values = np.array([0, 2, 2, 3]), np.array([4, 5, 6], dtype=np.int32)
    table = FeatureTable.from_arrays("multi_valued", values, offsets, 7)
    assert len(table) == 3
    found, begins = table.bags(torch.tensor([2, 1, 0]))
    assert (found.tolist(), begins.tolist()) == ([6, 4, 5], [0, 1, 1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("text", torch.zeros(2)), "kind must be one of categorical, .*, got 'text'"),
        (("multi_valued", torch.zeros(2).int(), None, 3), "offsets belong to multi_valued"),
        (
            ("categorical", torch.zeros(2).int(), torch.zeros(3), 3),
            "offsets belong to multi_valued",
        ),
        (("categorical", torch.zeros(2).int()), "num_values must be at least 1, got 0"),
        (("dense", torch.zeros(2)), r"values of a dense feature must be .*, got shape \[2\]"),
    ],
)
def test_rejects_impossible_tables(arguments, message):
    with pytest.raises(ValueError, match=message):
        FeatureTable(*arguments)


def test_rejects_widths_of_unknown_features():
    table = FeatureTable("numeric", torch.zeros(2, 1))
    with pytest.raises(ValueError, match=r"feature_dims names \['yaer'\], but .* \['year'\]"):
        FeatureEncoder({"year": table}, {"yaer": 4})
    with pytest.raises(ValueError, match="feature_dims must be at least 1"):
        FeatureEncoder({"year": table}, {"year": 0})


def test_hidden_context_is_what_a_request_without_it_sends(monkeypatch):
    """A hidden value is encoded as a missing one, each feature by itself; only in training."""
    tables = {
        "device": FeatureTable("categorical", torch.tensor([1, 2, 0]), num_values=3),
        "price": FeatureTable("numeric", torch.tensor([[0.5, 0.0], [2.0, 0.0], [0.0, 1.0]])),
        "words": bags_table([[3, 4], [5], []]),
    }
    encoder = FeatureEncoder(tables, {"device": 4, "words": 4}, of_events=tables, dropout=0.5)
    ids, missing = torch.tensor([0, 1]), torch.tensor([2, 2])
    whole, nothing = encoder.eval()(ids, ids), encoder(missing, missing)
    draws = iter([[0.4, 0.6], [0.5, 0.1], [0.0, 0.0]])  # device, price, words: in order of names
    monkeypatch.setattr(torch, "rand", lambda size, device: torch.tensor(next(draws)))
    found = encoder.train()(ids, ids)
    hidden = torch.tensor([[True, False], [False, True], [True, True]])  # below one half
    parts = [slice(0, 4), slice(4, 6), slice(6, 10)]
    for part, rows in zip(parts, hidden, strict=True):
        expected = torch.where(rows.unsqueeze(1), nothing[:, part], whole[:, part])
        torch.testing.assert_close(found[:, part], expected)
