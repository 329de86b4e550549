import itertools
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbatch.kernels import switched_off
from crossbatch.negatives import Candidates, known_positives_mask
from crossbatch.negatives.masks import MASKS


def columns(ids, *, cached=False):
    return Candidates(
        torch.zeros(len(ids), 1), torch.tensor(ids), torch.zeros(len(ids)), cached=cached
    )


def dropped(mask, own_ids, candidates):
    row_keys, column_keys = MASKS[mask](torch.tensor(own_ids), candidates)
    return (row_keys.unsqueeze(1) == column_keys).int().tolist()


OWN = [5, 6, 5]
NEGATIVES = columns(OWN) + columns([6, 9], cached=True) + columns([9, 5])


def test_both_compares_every_column():
    assert dropped("both", OWN, NEGATIVES) == [
        [1, 0, 1, 0, 0, 0, 1],
        [0, 1, 0, 1, 0, 0, 0],
        [1, 0, 1, 0, 0, 0, 1],
    ]


def test_batch_leaves_the_bank_alone():
    assert dropped("batch", OWN, NEGATIVES) == [
        [1, 0, 1, 0, 0, 0, 1],
        [0, 1, 0, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0, 1],
    ]


def test_none_drops_the_diagonal_alone():
    assert dropped("none", OWN, NEGATIVES) == [
        [1, 0, 0, 0, 0, 0, 0],
        [0, 1, 0, 0, 0, 0, 0],
        [0, 0, 1, 0, 0, 0, 0],
    ]


def test_none_drops_nothing_where_the_batch_is_no_column():
    assert dropped("none", [5, 6], columns([6, 5]) + columns([5, 6], cached=True)) == [[0] * 4] * 2


IDS = st.lists(st.integers(-3, 6), min_size=1, max_size=12)


@settings(deadline=None, max_examples=60)
@given(
    known=st.lists(st.lists(st.integers(-1, 6), min_size=3, max_size=3), min_size=1, max_size=5),
    column_ids=st.lists(st.integers(0, 6), max_size=12),
)
def test_known_positives_against_a_loop(known, column_ids):
    got = known_positives_mask(torch.tensor(known), torch.tensor(column_ids, dtype=torch.int64))
    assert got.tolist() == [[i in row for i in column_ids] for row in known]


@settings(deadline=None, max_examples=100)
@given(
    known=st.lists(st.lists(st.integers(0, 6), max_size=5), min_size=1, max_size=5),
    column_ids=st.lists(st.integers(0, 6), max_size=12),
    compiled=st.booleans(),
)
def test_known_positives_end_to_end_against_a_loop(known, column_ids, compiled):
    ids = torch.tensor([i for row in known for i in row], dtype=torch.int64)
    offsets = torch.tensor([0, *itertools.accumulate(map(len, known))])
    with nullcontext() if compiled else switched_off():
        columns_ = torch.tensor(column_ids, dtype=torch.int64)
        got = known_positives_mask(ids, columns_, offsets)
    assert got.tolist() == [[i in row for i in column_ids] for row in known]


def test_padding_marks_nothing():
    assert not known_positives_mask(torch.tensor([[-1, -1]]), torch.tensor([0, -1, 3])).any()


@pytest.mark.parametrize("known", [torch.tensor([1, 2]), torch.tensor([[1, 2]]).int()])
def test_bad_known_positives_are_refused(known):
    with pytest.raises(ValueError, match=r"known positives must be int64 of shape \[B, P\].*pad"):
        known_positives_mask(known, torch.tensor([1]))
