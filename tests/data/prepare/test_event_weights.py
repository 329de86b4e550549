"""Kinds of events and weights, from a raw log to targets, histories and the sampling law."""

from __future__ import annotations

import csv
from itertools import combinations, islice, pairwise, product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from crossbatch.data import Dataset, PrepareOptions, ReadOptions, open_dataset, open_source, prepare
from crossbatch.data.prepare import sequences, staged_log
from crossbatch.errors import ConfigError, DataError
from crossbatch.negatives import Candidates, sampled_softmax_loss

if TYPE_CHECKING:
    from pathlib import Path

KINDS = {"view": 0.0, "click": 1.0, "buy": 5.0}
LOG = [  # user, item, time, kind
    ("u", "a", 1, "view"),
    ("u", "b", 2, "click"),
    ("u", "c", 3, "buy"),
    ("u", "d", 4, "view"),
    ("v", "a", 1, "click"),
    ("v", "b", 2, "hover"),
    ("v", "c", 3, "click"),
    ("v", "a", 4, "buy"),
    ("w", "b", 1, "click"),
    ("w", "d", 2, "view"),
]


def write_log(path: Path, rows: list[tuple[Any, ...]], *more: str) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("user", "item", "time", *more), *rows])
    return path


def prepared(
    folder: Path,
    rows: list[tuple[Any, ...]] = LOG,
    more: tuple[str, ...] = ("kind",),
    reading: ReadOptions | None = None,
    **options: Any,
) -> Dataset:
    source = open_source(
        write_log(folder / "log.csv", rows, *more), None, reading or ReadOptions(event="kind")
    )
    chosen = {"min_item_count": 1, "min_user_count": 1, "valid_share": 0.0, "test_share": 0.0}
    prepare(source, folder / "data", PrepareOptions(**{**chosen, **options}))
    return open_dataset(folder / "data")


def weights_of(dataset: Dataset) -> dict[str, list[tuple[str, int]]]:
    """Each user's item keys with their weights."""
    assert dataset.weight_offsets is not None
    keys, weights = dataset.item_keys(dataset.items), np.diff(dataset.weight_offsets).tolist()
    both = list(zip(keys, weights, strict=True))
    users = dataset.user_keys(range(dataset.num_users))
    return {user: both[a:b] for user, (a, b) in zip(users, pairwise(dataset.offsets), strict=True)}


@pytest.mark.parametrize("rows", [2, 3, 1 << 20])
def test_events_have_the_weights_of_their_kinds_however_the_log_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(sequences, "BUCKET_ROWS", rows)
    monkeypatch.setattr(staged_log, "CHUNK_ROWS", rows)
    dataset = prepared(tmp_path, event_weights=KINDS)
    dataset.verify()
    assert weights_of(dataset) == {
        "u": [("a", 0), ("b", 1), ("c", 5), ("d", 0)],
        "v": [("a", 1), ("c", 1), ("a", 5)],
        "w": [("b", 1), ("d", 0)],
    }
    assert dataset.manifest["reading"]["other_events"] == 1
    assert dataset.manifest["counts"]["eligible_samples"] == dataset.num_samples() == 4


def test_the_law_is_that_of_the_weights(tmp_path: Path) -> None:
    """By hand: u draws b or c as 1 to 5, v draws c or a as 1 to 5, w has no target."""
    dataset = prepared(tmp_path, event_weights=KINDS)
    for by, expected in (
        ("user", {"a": 5 / 12, "b": 1 / 12, "c": 1 / 2, "d": 0}),
        ("interaction", {"a": 5 / 12, "b": 1 / 12, "c": 6 / 12, "d": 0}),
    ):
        law = dataset.sampling_law(sample_by=by)[dataset.item_ids(list(expected))]
        np.testing.assert_allclose(law, list(expected.values()), rtol=1e-15)
    # with two items before a target, u draws c alone and v the second a
    law = dataset.sampling_law(2)[dataset.item_ids(["a", "b", "c"])]
    np.testing.assert_allclose(law, [0.5, 0, 0.5], rtol=1e-15)


def test_what_is_history_only_is_in_histories_and_never_a_target(tmp_path: Path) -> None:
    dataset = prepared(tmp_path, event_weights=KINDS)
    names = dict(enumerate(dataset.item_keys(range(dataset.num_items + 1))))
    found = set()
    for batch in islice(dataset.batches(2, seed=1), 50):
        for history, item in zip(batch.history.tolist(), batch.item_ids.tolist(), strict=True):
            found.add(("".join(names[each] for each in history if each), names[item]))
    assert found == {("a", "b"), ("ab", "c"), ("a", "c"), ("ac", "a")}


def test_evaluation_asks_for_events_with_a_weight(tmp_path: Path) -> None:
    """The last event with a weight is the test, whatever follows it."""
    rows = [*LOG, *(("x", item, time, "click") for time, item in enumerate("abcd"))]
    dataset = prepared(tmp_path, rows, event_weights=KINDS, split="leave_last_out")
    found = {}
    for split in ("valid", "test"):
        for batch in dataset.eval_batches(split):
            for row, user in enumerate(dataset.user_keys(batch.user_ids.tolist())):
                seen = dataset.item_keys(batch.history[row][batch.history[row] > 0].tolist())
                targets = dataset.item_keys(batch.targets[row].tolist())
                found[split, user] = ("".join(seen), "".join(targets))
    assert found == {
        ("valid", "u"): ("a", "b"),
        ("test", "u"): ("ab", "c"),
        ("valid", "v"): ("a", "c"),
        ("test", "v"): ("ac", "a"),
        ("valid", "x"): ("ab", "c"),
        ("test", "x"): ("abc", "d"),
    }


def test_a_split_by_time_leaves_out_users_without_a_target(tmp_path: Path) -> None:
    rows = [
        *[(user, item, 10, "click") for user in "xyz" for item in "ab"],
        ("x", "c", 90, "view"),
        ("x", "d", 91, "click"),
        ("y", "c", 92, "view"),
    ]
    dataset = prepared(tmp_path, rows, event_weights=KINDS, split="time", test_share=0.35)
    (batch,) = dataset.eval_batches("test")
    assert dataset.user_keys(batch.user_ids.tolist()) == ["x"]
    assert [dataset.item_keys(each.tolist()) for each in batch.targets] == [["d"]]
    assert dataset.manifest["counts"]["test_targets"] == 1
    dataset.verify()


def test_a_column_of_weights_multiplies_that_of_the_kind(tmp_path: Path) -> None:
    rows = [
        ("u", "a", 1, "click", 1),
        ("u", "b", 2, "click", 0.25),
        ("u", "c", 3, "buy", 2),
        ("u", "d", 4, "click", 1e-9),
    ]
    reading = ReadOptions(event="kind", weight="amount")
    dataset = prepared(tmp_path, rows, ("kind", "amount"), reading, event_weights=KINDS)
    # in millionths, the last one the smallest that can still be a target
    assert [weight for _, weight in weights_of(dataset)["u"]] == [10**6, 250_000, 10**7, 1]


@pytest.mark.parametrize("by", ["user", "interaction"])
def test_the_expected_loss_is_the_weighted_one(tmp_path: Path, by: str) -> None:
    """The mean over batches against all batches, weighted by hand in float64."""
    rows = [
        (user, item, time, weight)
        for user, sequence in {
            "u": [("a", 9), ("b", 1), ("c", 12)],
            "v": [("b", 9), ("a", 15), ("d", 2)],
            "w": [("c", 9), ("d", 0), ("b", 20), ("a", 1)],
        }.items()
        for time, (item, weight) in enumerate(sequence)
    ]
    dataset = prepared(tmp_path, rows, ("weight",), ReadOptions(weight="weight"))
    torch.manual_seed(0)
    users, items = torch.randn(3, 4).double(), torch.randn(dataset.num_items + 1, 4).double()
    chances = []  # of every draw: probability, user, item
    log = weights_of(dataset)
    everything = sum(weight for sequence in log.values() for _, weight in sequence[1:])
    q = torch.zeros(dataset.num_items + 1).double()
    for user, sequence in zip(range(3), log.values(), strict=True):
        total = sum(weight for _, weight in sequence[1:])
        for key, weight in sequence[1:]:
            item = int(dataset.item_ids([key])[0])
            chance = weight / total / 3 if by == "user" else weight / everything
            q[item] += chance
            chances.append((chance, user, item))

    def loss(first: tuple[int, int], second: tuple[int, int]) -> float:
        """The mean loss of a batch of two rows by the formula."""
        losses = []
        for (user, own), (_, other) in ((first, second), (second, first)):
            scores = [users[user] @ items[each] - q[each].log() for each in (own, other)]
            columns = scores if own != other else scores[:1]
            losses.append(torch.stack(columns).logsumexp(0) - scores[0])
        return float(sum(losses)) / 2

    expected = weight_of_all = 0.0
    for (p, u, i), (r, v, j) in product(chances, chances):
        if by == "interaction" or u != v:  # by user, the users of a batch are distinct
            expected += p * r * loss((u, i), (v, j))
            weight_of_all += p * r
    log_q = torch.from_numpy(np.array(dataset.sampling_law(sample_by=by))).log()
    found = []
    for batch in islice(dataset.batches(2, seed=3, sample_by=by), 4_000):
        ids = batch.item_ids
        positives = Candidates(items[ids].float(), ids, log_q[ids].float())
        u = users[batch.user_ids].float()
        found.append(float(sampled_softmax_loss(u, positives, positives)))
    spread = np.std(found) / np.sqrt(len(found))
    assert abs(np.mean(found) - expected / weight_of_all) < 4 * spread
    unweighted = [loss((u, i), (v, j)) for (_, u, i), (_, v, j) in combinations(chances, 2)]
    assert abs(np.mean(found) - np.mean(unweighted)) > 10 * spread  # the weights tell


@pytest.mark.parametrize(
    ("reading", "options", "message"),
    [
        (ReadOptions(event="kind"), {}, "need weights"),
        (ReadOptions(), {"event_weights": KINDS}, "name it with --event"),
        (ReadOptions(event="sort"), {"event_weights": KINDS}, "no column 'sort'"),
        (ReadOptions(event="kind"), {"event_weights": {"click": -1.0}}, "must be 0"),
        (ReadOptions(event="kind"), {"event_weights": {"view": 0.0}}, "nothing would be a target"),
    ],
)
def test_a_mistake_is_named(
    tmp_path: Path, reading: ReadOptions, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        prepared(tmp_path, reading=reading, **options)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("weight", ["-1", "nan", "", "2e9", "much"])
def test_a_weight_that_is_none_is_refused(tmp_path: Path, weight: str) -> None:
    rows = [("u", "a", 1, 1), ("u", "b", 2, weight)]
    with pytest.raises(DataError, match="weight missing or not 0 to 1e9"):
        prepared(tmp_path, rows, ("weight",), ReadOptions(weight="weight"))


def test_only_tables_have_columns_of_events(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.csv", LOG, "kind")
    with pytest.raises(ConfigError, match="--event kind"):
        open_source(log, "recbole", ReadOptions(event="kind"))
