import copy
import gc
import pickle
import weakref

import pytest
import torch

from crossbatch.negatives import Candidates, Corpus


def columns(ids, *, start=0.0, cached=False):
    ids = torch.tensor(ids)
    vectors = torch.arange(2 * len(ids), dtype=torch.float32).reshape(-1, 2) + start
    return Candidates(vectors, ids, -ids.float(), cached=cached)


def test_sum_keeps_order_and_repeats():
    union = columns([3, 1]) + columns([1, 2], start=10.0)
    assert union.item_ids.tolist() == [3, 1, 1, 2]
    assert union.embeddings.tolist() == [[0, 1], [2, 3], [10, 11], [12, 13]]
    assert union.log_q.tolist() == [-3, -1, -1, -2]
    assert (len(union), union.dim) == (4, 2)


def test_sum_of_sums_is_flat():
    a, b, c = columns([1]), columns([2, 3]), columns([4], cached=True)
    union = (a + b) + c
    assert union.parts == (a, b, c)
    assert a.parts == (a,)
    assert (a + (b + c)).item_ids.tolist() == union.item_ids.tolist() == [1, 2, 3, 4]
    assert repr(union) == "Candidates(1 + 2 + 1 columns, dim=2)"


@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True)])
def test_a_sum_is_cached_only_if_all_of_it_is(first, second):
    union = columns([1], cached=first) + columns([2], cached=second)
    assert union.cached is (first and second)


def test_gradient_flows_through_a_sum():
    v = torch.ones(2, 2, requires_grad=True)
    live = Candidates(v, torch.tensor([1, 2]), torch.zeros(2))
    (live + columns([3], cached=True)).embeddings.sum().backward()
    assert v.grad.tolist() == [[1, 1], [1, 1]]


def test_detached_is_constant_and_cached():
    v = torch.ones(2, 2, requires_grad=True)
    constant = (Candidates(v, torch.tensor([1, 2]), torch.zeros(2)) + columns([3])).detached()
    assert constant.cached
    assert not constant.embeddings.requires_grad
    assert constant.item_ids.tolist() == [1, 2, 3]


def test_empty_columns_add_nothing():
    nothing = Candidates(torch.empty(0, 2), torch.empty(0, dtype=torch.int64), torch.empty(0))
    assert (columns([1, 2]) + nothing).item_ids.tolist() == [1, 2]


def test_freed_without_the_garbage_collector():
    """A value that refers to itself would hold the towers' graph until the collector runs."""
    gc.disable()
    try:
        vectors = torch.ones(2, 2)
        alive = weakref.ref(vectors)
        single = Candidates(vectors, torch.tensor([1, 2]), torch.zeros(2))
        union = single + single
        assert union.embeddings.shape == (4, 2)
        del vectors, single, union
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_are_whole(copied):
    union = columns([1, 2]) + columns([3], cached=True)
    again = copied(union)
    assert again.item_ids.tolist() == [1, 2, 3]
    assert [part.cached for part in again.parts] == [False, True]
    assert torch.equal(again.embeddings, union.embeddings)


V, IDS, Q = torch.ones(2, 3), torch.tensor([1, 2]), torch.zeros(2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.ones(3), IDS, Q), r"embeddings .*\[N, d\].*\[3\]"),
        ((torch.ones(2, 3, 4), IDS, Q), r"embeddings .*\[2, 3, 4\]"),
        ((V.long(), IDS, Q), "embeddings .*floating-point.*int64"),
        ((V, IDS.int(), Q), r"item_ids must be int64, got torch.int32.*\.long\(\)"),
        ((V, IDS.float(), Q), "item_ids must be int64, got torch.float32"),
        ((V, torch.tensor([1]), Q), r"item_ids must hold one entry per embedding, \[2\].*\[1\]"),
        ((V, IDS.unsqueeze(1), Q), r"item_ids .*\[2, 1\]"),
        ((V, IDS, torch.zeros(3)), r"log_q must hold one entry per embedding, \[2\].*\[3\]"),
        ((V, IDS, IDS), "log_q must be floating point, got torch.int64"),
    ],
)
def test_bad_columns_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Candidates(*arguments)


def test_columns_of_two_dimensions_do_not_add():
    with pytest.raises(ValueError, match=r"dimension 2 and 3 cannot be added.*same item tower"):
        columns([1]) + Candidates(V, IDS, Q)


def test_corpus_knows_its_number_of_items():
    assert Corpus(torch.tensor([0, 5, 0, 7]), dim=8).num_items == 3


@pytest.mark.parametrize(
    ("counts", "dim", "message"),
    [
        (torch.ones(2, 2), 4, r"item_counts .*\[num_items \+ 1\].*\[2, 2\]"),
        (torch.ones(1), 4, r"item_counts .*row 0 for padding.*\[1\]"),
        (torch.tensor([0.0, 1.0, -2.0]), 4, "item_counts must be finite and not negative, got -2"),
        (torch.tensor([0.0, float("nan")]), 4, "item_counts .*got nan"),
        (torch.tensor([9, 0, 0]), 4, "item_counts are all zero; count"),
        (torch.tensor([0, 1]), 0, "dim must be at least 1, got 0"),
        ([0, 1, 2], 4, "item_counts must be a tensor, got list.*as_tensor"),
    ],
)
def test_bad_corpus_is_refused(counts, dim, message):
    with pytest.raises(ValueError, match=message):
        Corpus(counts, dim)
