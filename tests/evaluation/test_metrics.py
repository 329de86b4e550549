"""Metrics against the worked vectors, hand values and a literal per-user loop."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbatch.evaluation import metrics
from crossbatch.evaluation import metrics as hits_module

a, b, c, d, x, y = 1, 2, 3, 4, 5, 6
ALL = (
    metrics.recall,
    metrics.hit_rate,
    metrics.precision,
    metrics.mrr,
    metrics.average_precision,
    metrics.ndcg,
    metrics.ndcg_comirec,
    metrics.ndcg_comirec_master,
)


def one(metric, ranked, targets, k):
    (value,) = metric(torch.tensor([ranked]), [targets], k).tolist()
    return value


def gain(position):
    return 1 / math.log2(position + 2)


def literal(name, ranked, targets, k):
    """Each metric as its definition reads, for one user."""
    top = [item for item in ranked[:k] if item != 0]
    occurrences = [i for i, item in enumerate(targets) if item in top]
    distinct_ranks = [top.index(item) for item in dict.fromkeys(targets) if item in top]
    if not targets:
        return math.nan
    if name == "recall":
        return len(occurrences) / len(targets)
    if name == "hit_rate":
        return float(bool(occurrences))
    if name == "precision":
        return sum(item in targets for item in top) / k
    if name == "mrr":
        return next((1 / rank for rank, item in enumerate(top, 1) if item in targets), 0.0)
    if name == "average_precision":
        held_out, found = set(targets), 0.0
        for rank, item in enumerate(top, 1):
            if item in held_out:
                found += len(held_out & set(top[:rank])) / rank
        return found / min(len(held_out), k)
    if name == "ndcg":
        ideal = sum(gain(j) for j in range(min(len(set(targets)), k)))
        return sum(map(gain, distinct_ranks)) / ideal
    positions = occurrences if name == "ndcg_comirec" else distinct_ranks
    ideal = sum(gain(j) for j in range(len(positions)))
    return sum(map(gain, positions)) / ideal if positions else 0.0


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (metrics.recall, 0.5),
        (metrics.hit_rate, 1.0),
        (metrics.precision, 0.5),
        (metrics.mrr, 0.5),
        (metrics.average_precision, (1 / 2 + 2 / 4) / 4),
        (metrics.ndcg_comirec, 0.919721),
        (metrics.ndcg_comirec_master, 0.650921),
        (metrics.ndcg, 0.414430),
    ],
)
def test_pitfall_24_worked_vector_tells_the_three_ndcgs_apart(metric, expected):
    value = one(metric, [x, c, y, a], [a, b, c, d], 4)
    assert value == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize("k", [1, 4])
def test_worked_vector_with_a_repeated_target(k):
    assert one(metrics.recall, [a], [a, a, b], k) == pytest.approx(2 / 3)
    assert one(metrics.ndcg_comirec, [a], [a, a, b], k) == 1.0
    assert one(metrics.ndcg_comirec_master, [a], [a, a, b], k) == 1.0


def test_pitfall_24_rank_matters_to_the_textbook_and_not_to_comirec():
    early, late = [a, x, y, d], [x, y, d, a]
    assert one(metrics.ndcg, early, [a], 4) > one(metrics.ndcg, late, [a], 4)
    assert one(metrics.ndcg_comirec, early, [a], 4) == one(metrics.ndcg_comirec, late, [a], 4)
    assert one(metrics.ndcg_comirec, late, [b, a], 4) == pytest.approx(gain(1))  # index in targets


def test_perfect_list_scores_one_also_with_repeats_and_few_places():
    assert one(metrics.ndcg, [a, b, x], [a, b], 3) == 1.0
    assert one(metrics.ndcg, [b, a, x], [a, a, b], 3) == 1.0
    assert one(metrics.ndcg, [b, d], [a, b, c, d], 2) == 1.0


@pytest.mark.parametrize("metric", ALL)
def test_user_without_targets_is_undefined(metric):
    values = metric(torch.tensor([[a, b], [a, b]]), [[], [a]], 2)
    assert math.isnan(values[0])
    assert values[1] == (0.5 if metric is metrics.precision else 1.0)


@pytest.mark.parametrize("metric", ALL)
def test_empty_slots_are_never_hits(metric):
    assert one(metric, [0, 0, 0], [0, a], 3) == 0.0


@pytest.mark.parametrize("metric", ALL)
def test_k_beyond_the_list_uses_what_is_there(metric):
    assert one(metric, [x, a], [a], 10) == one(metric, [x, a, 0, 0], [a], 10) > 0
    assert one(metric, [x, y], [a], 10) == 0.0


@pytest.mark.parametrize("metric", ALL)
def test_only_the_first_k_places_count(metric):
    assert one(metric, [x, y, a], [a], 2) == 0.0


@pytest.mark.parametrize("metric", ALL)
def test_no_users_give_no_values(metric):
    assert metric(torch.zeros(0, 5, dtype=torch.long), [], 5).shape == (0,)


def test_inputs_may_be_lists_arrays_or_tensors():
    rows = [[x, c, y, a], [a, b, c, d]]
    targets = [torch.tensor([a, b]), np.array([d])]
    expected = metrics.recall(torch.tensor(rows), [[a, b], [d]], 4)
    assert torch.equal(metrics.recall(rows, targets, 4), expected)
    assert torch.equal(metrics.recall(np.array(rows, dtype=np.int32), targets, 4), expected)
    assert expected.dtype == torch.float64


id_lists = st.lists(st.integers(1, 12), max_size=9)
users = st.lists(
    st.tuples(st.lists(st.integers(1, 12), unique=True, min_size=7, max_size=7), id_lists),
    min_size=1,
    max_size=12,
)


@settings(deadline=None)
@given(users=users, k=st.integers(1, 9), comparisons=st.integers(1, 40))
def test_every_metric_equals_its_literal_definition(users, k, comparisons):
    ranked, targets = [r for r, _ in users], [t for _, t in users]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hits_module, "COMPARISONS", comparisons)  # any chunking, one result
        for metric in ALL:
            expected = [literal(metric.__name__, r, t, k) for r, t in users]
            values = metric(torch.tensor(ranked), targets, k)
            assert values.tolist() == pytest.approx(expected, nan_ok=True)


@settings(deadline=None)
@given(users=users, k=st.integers(1, 9))
def test_hit_rate_bounds_recall_and_both_comirec_ndcgs(users, k):
    ranked, targets = torch.tensor([r for r, _ in users]), [t or [1] for _, t in users]
    bound = metrics.hit_rate(ranked, targets, k) + 1e-12
    for metric in ALL:
        values = metric(ranked, targets, k)
        assert (values >= 0).all()
        assert (values <= bound).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.recall(torch.tensor([1, 2]), [[1]], 2), "ranked must be"),
        (lambda: metrics.recall(torch.tensor([[1, 2]]), [[1], [2]], 2), "ranked must be"),
        (lambda: metrics.recall(torch.tensor([[1, 2]]), [[1]], 0), "k must be"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_table_names_the_public_functions():
    names = [metric.__name__.replace("average_precision", "map") for metric in ALL]
    assert list(metrics.METRICS) == names
