from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from crossbatch.data import Dataset
from crossbatch.data.dataset import samples as module
from crossbatch.data.dataset.samples import Samples, item_totals
from crossbatch.errors import ConfigError

Maker = Callable[..., Dataset]
OPTIONS = [(least, by) for least in (1, 2, 4) for by in ("user", "interaction")]


def brute_force(sequences: list[list[int]], least: int, by: str, num_items: int) -> list[Fraction]:
    """Add up the probability of every single draw."""
    able = [items[least:] for items in sequences if len(items) > least]
    pairs = sum(len(targets) for targets in able)
    probabilities = [Fraction(0)] * (num_items + 1)
    for targets in able:
        for item in targets:
            each = (
                Fraction(1, pairs) if by == "interaction" else Fraction(1, len(able) * len(targets))
            )
            probabilities[item] += each
    return probabilities


def probability_of(drawn: Any, expected: Any) -> float:
    """That of counts as far from the expected ones as these, by Pearson's chi-square test."""
    drawn, expected = torch.as_tensor(drawn).double(), torch.as_tensor(expected).double()
    distance = ((drawn - expected) ** 2 / expected).sum()
    freedom = torch.tensor(len(drawn) - 1.0)
    return float(torch.special.gammaincc(freedom.double() / 2, distance / 2))


def training_sequences(dataset: Dataset) -> list[list[int]]:
    """Those of a split by users, from the public arrays alone: the first 80 % of the users."""
    bounds = dataset.offsets[: int(0.8 * dataset.num_users) + 1]
    return [dataset.items[a:b].tolist() for a, b in pairwise(bounds)]


def samples_of(sequences: list[list[int]], least: int, by: str) -> tuple[np.ndarray, Samples]:
    lengths = np.array([len(items) for items in sequences])
    ends = np.cumsum(lengths)
    able = np.flatnonzero(lengths > least)
    starts = (ends - lengths)[able]
    items = np.array([item for sequence in sequences for item in sequence], dtype=np.int32)
    return items, Samples(able, starts, starts + least, ends[able], by)


@given(
    st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=9), min_size=1, max_size=12).filter(
        lambda sequences: max(map(len, sequences)) > 5
    ),
    st.integers(1, 5),
    st.sampled_from(module.SAMPLE_BY),
    st.sampled_from([1, 7, 10**6]),
)
def test_the_law_is_the_exact_sum_over_all_draws(
    sequences: list[list[int]], least: int, by: str, rows: int
) -> None:
    """Also of users with one item, repeats, and pieces of any size."""
    items, samples = samples_of(sequences, least, by)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SUMMED_ROWS", rows)
        found = samples.law(items, 6)
    expected = [float(q) for q in brute_force(sequences, least, by, 6)]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert found.dtype == np.float64


@given(
    st.lists(st.lists(st.integers(1, 6), max_size=9), min_size=1, max_size=12),
    st.sampled_from([1, 7, 10**6]),
)
def test_counts_are_those_of_a_loop(sequences: list[list[int]], rows: int) -> None:
    ends = np.cumsum([len(items) for items in sequences])
    starts = ends - [len(items) for items in sequences]
    items = np.array([item for sequence in sequences for item in sequence], dtype=np.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SUMMED_ROWS", rows)
        found = item_totals(items, starts, ends, 6)
    counts = Counter(items.tolist())
    assert found.tolist() == [counts[item] for item in range(7)]


def test_heavy_users_weigh_more_by_interaction_alone() -> None:
    # one user with 100 × item 1 after the first four, one with a single item 2
    sequences = [[3] * 4 + [1] * 100, [3] * 4 + [2]]
    laws = [
        samples.law(items, 3)
        for by in module.SAMPLE_BY
        for items, samples in [samples_of(sequences, 4, by)]
    ]
    assert laws[0] == pytest.approx(np.array([0.0, 0.5, 0.5, 0.0]))
    assert laws[1].tolist() == [0.0, 100 / 101, 1 / 101, 0.0]


@pytest.fixture(scope="module")
def dataset(make_dataset: Maker) -> Dataset:
    rng = np.random.default_rng(0)
    rows = [
        (f"u{user}", f"i{min(int(rng.zipf(1.6)), 12)}", step)
        for user in range(75)
        for step in range(int(rng.integers(1, 15)))
    ]
    return make_dataset(rows)


@pytest.mark.parametrize(("least", "by"), [*OPTIONS, (12, "user"), (12, "interaction")])
def test_a_dataset_has_the_law_of_any_options(dataset: Dataset, least: int, by: str) -> None:
    sequences = training_sequences(dataset)
    expected = brute_force(sequences, least, by, dataset.num_items)
    found = dataset.sampling_law(least, by)
    np.testing.assert_allclose(found, [float(q) for q in expected], atol=1e-12)
    assert dataset.sampling_law(least, by) is found  # computed once
    assert dataset.num_samples(least) == sum(max(len(items) - least, 0) for items in sequences)


def test_the_plain_names_are_those_of_default_batches(dataset: Dataset) -> None:
    expected = brute_force(training_sequences(dataset), 1, "user", dataset.num_items)
    np.testing.assert_allclose(dataset.sampler_law, [float(q) for q in expected], atol=1e-12)
    counts = dataset.manifest["counts"]
    assert dataset.eligible_samples == dataset.num_samples() == counts["eligible_samples"]
    assert len(dataset.train_users) == counts["train_users"] < 60  # 60 have one item or more


@pytest.mark.parametrize(("least", "by"), OPTIONS)
def test_batches_draw_by_the_law(dataset: Dataset, least: int, by: str) -> None:
    """Pearson's test of the targets, and of the pairs (user, target position) themselves."""
    drawn, pairs = np.zeros(dataset.num_items + 1), Counter[tuple[int, int]]()
    options: dict[str, Any] = {"min_history": least, "sample_by": by}
    for batch in islice(dataset.batches(20, seed=7, history_length=20, **options), 1_500):
        drawn += np.bincount(batch.item_ids.numpy(), minlength=len(drawn))
        positions = (batch.history > 0).sum(dim=1)  # no history here is longer than 20
        pairs.update(zip(batch.user_ids.tolist(), positions.tolist(), strict=True))
    q = np.array(
        [float(p) for p in brute_force(training_sequences(dataset), least, by, dataset.num_items)]
    )
    assert not drawn[q == 0].any()
    assert probability_of(drawn[q > 0], q[q > 0] * drawn.sum()) > 0.001
    able = {u: len(s) for u, s in enumerate(training_sequences(dataset)) if len(s) > least}
    weights = {
        (user, k): 1.0 if by == "interaction" else 1 / (length - least)
        for user, length in able.items()
        for k in range(least, length)
    }
    assert set(pairs) <= set(weights)
    share = drawn.sum() / sum(weights.values())
    seen, expected = zip(*((pairs[pair], share * w) for pair, w in weights.items()), strict=True)
    assert probability_of(seen, expected) > 0.001


@pytest.mark.parametrize("by", module.SAMPLE_BY)
@pytest.mark.parametrize("start", [1, 63, 64, 500])
def test_a_resumed_draw_is_the_same(dataset: Dataset, by: str, start: int) -> None:
    options: dict[str, Any] = {"seed": 5, "min_history": 2, "sample_by": by, "later": True}
    resumed = next(dataset.batches(16, start=start, **options))
    reached = next(islice(dataset.batches(16, **options), start, None))
    for one, other in zip(_tensors(resumed), _tensors(reached), strict=True):
        assert torch.equal(one, other)


def _tensors(batch: Any) -> list[torch.Tensor]:
    return [batch.user_ids, batch.history, batch.item_ids, *batch.later]


def test_by_interaction_a_batch_may_be_larger_than_the_users(dataset: Dataset) -> None:
    batch = next(dataset.batches(500, seed=0, sample_by="interaction"))
    assert len(batch.user_ids) == 500 > len(set(batch.user_ids.tolist()))
    with pytest.raises(
        ConfigError, match=r"training users with more than min_history = 4 items.*500"
    ):
        dataset.batches(500, seed=0, min_history=4)


def test_items_only_seen_early_are_never_positive(make_dataset: Maker) -> None:
    rows = [(f"u{user}", item, step) for user in range(10) for step, item in enumerate("abcdz")]
    dataset = make_dataset(rows)
    early = dataset.item_ids(["a", "b", "c", "d"])
    for by in module.SAMPLE_BY:
        assert dataset.sampling_law(4, by)[early].sum() == 0.0
        assert (dataset.sampling_law(1, by)[early] > 0).tolist() == [False, True, True, True]
    assert (dataset.item_counts[early] > 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_history": 0}, "min_history must be at least 1, got 0"),
        ({"min_history": -3}, "min_history must be at least 1, got -3"),
        ({"min_history": 99}, "no training user has more than min_history = 99 items.* 14: lower"),
        ({"sample_by": "item"}, "sample_by must be one of user, interaction, got 'item'"),
    ],
)
def test_impossible_options_are_refused(
    dataset: Dataset, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        dataset.sampling_law(**options)
    with pytest.raises(ConfigError, match=message):
        dataset.batches(4, seed=0, **options)


def test_targets_of_the_newest_days(make_dataset: Maker) -> None:
    day = 86_400
    rows = [("u", "a", 0), ("u", "b", day), ("u", "c", 3 * day), ("u", "d", 3 * day + 60)]
    rows += [("v", "a", 2 * day), ("v", "d", 3 * day + 1), ("w", "a", 1), ("w", "b", 2)]
    dataset = make_dataset(rows, split="time", valid_share=0.0, test_share=0.0, ties="stable")
    assert dataset.last_training_time == (3 * day + 60) * 1_000_000
    ids = dict(zip("abcd", dataset.item_ids(list("abcd")).tolist(), strict=True))
    # the last day: c and d of u, d of v; all of w is older
    law = dataset.sampling_law(1, "interaction", 1.0)
    expected = {"a": 0.0, "b": 0.0, "c": 1 / 3, "d": 2 / 3}
    assert {key: law[row] for key, row in ids.items()} == pytest.approx(expected)
    assert dataset.num_samples(newest_days=1.0) == 3
    # 59 s: d of u, and d of v, which came 59 s before it, does not count
    assert dataset.num_samples(newest_days=59 / day) == 1
    assert dataset.num_samples(newest_days=60 / day) == 2
    drawn = next(dataset.batches(64, seed=0, sample_by="interaction", newest_days=1.0))
    assert set(drawn.item_ids.tolist()) == {ids["c"], ids["d"]}
    first = drawn.history[drawn.item_ids == ids["c"]][0]
    assert first[first > 0].tolist() == [ids["a"], ids["b"]]  # histories reach further back


@pytest.mark.parametrize("days", [-1.0, float("inf"), float("nan")])
def test_impossible_days_are_refused(make_dataset: Maker, days: float) -> None:
    dataset = make_dataset([("u", "a", 1), ("u", "b", 2), ("v", "a", 1), ("v", "b", 3)])
    with pytest.raises(ConfigError, match="newest_days must be"):
        dataset.samples(newest_days=days)


weighted_sequences = st.lists(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 4)), min_size=1, max_size=7),
    min_size=1,
    max_size=9,
)


def weighted(
    sequences: list[list[tuple[int, int]]], least: int, by: str
) -> tuple[np.ndarray, Samples]:
    items, samples = samples_of([[item for item, _ in each] for each in sequences], least, by)
    sums = np.cumsum([0, *(weight for each in sequences for _, weight in each)])
    return items, replace(samples, weight_offsets=sums).with_targets()


@given(weighted_sequences, st.integers(1, 3), st.sampled_from(module.SAMPLE_BY))
def test_the_weighted_law_is_the_exact_sum_over_all_draws(
    sequences: list[list[tuple[int, int]]], least: int, by: str
) -> None:
    targets = [each[least:] for each in sequences]
    able = [each for each in targets if sum(weight for _, weight in each)]
    assume(able)
    items, samples = weighted(sequences, least, by)
    expected = [Fraction(0)] * 7
    everything = sum(weight for each in able for _, weight in each)
    for each in able:
        total = sum(weight for _, weight in each)
        for item, weight in each:
            of_all = everything if by == "interaction" else len(able) * total
            expected[item] += Fraction(weight, of_all)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SUMMED_ROWS", 3)
        law = samples.law(items, 6)
        assert samples.count() == sum(weight > 0 for each in able for _, weight in each)
    np.testing.assert_allclose(law, [float(each) for each in expected], rtol=1e-12, atol=0)


@given(weighted_sequences, st.sampled_from(module.SAMPLE_BY), st.integers(0, 99))
def test_an_event_of_weight_two_is_drawn_as_two_events(
    sequences: list[list[tuple[int, int]]], by: str, seed: int
) -> None:
    """The same random numbers draw the same items from a log that has each event that often."""
    assume(any(weight for each in sequences for _, weight in each[1:]))
    items, samples = weighted(sequences, 1, by)
    repeated = [
        [each[0][0], *(item for item, weight in each[1:] for _ in range(weight))]
        for each in sequences
    ]
    plain_items, plain = samples_of(repeated, 1, by)
    np.testing.assert_array_equal(samples.users, plain.users)
    shape = (40, 1) if by == "user" else (10, 4)
    rows, positions = samples.draw(np.random.default_rng(seed), shape)
    plain_rows, plain_positions = plain.draw(np.random.default_rng(seed), shape)
    np.testing.assert_array_equal(rows, plain_rows)
    np.testing.assert_array_equal(items[positions], plain_items[plain_positions])
    np.testing.assert_allclose(samples.law(items, 6), plain.law(plain_items, 6), rtol=1e-12)
