from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbatch.data import (
    Dataset,
    PrepareOptions,
    Source,
    open_dataset,
    prepare,
)
from crossbatch.data.prepare import sequences, staged_log
from crossbatch.errors import ConfigError, DataError

if TYPE_CHECKING:
    from pathlib import Path

    from crossbatch.data.readers.source import Tally

Maker = Callable[..., Dataset]
SourceOf = Callable[..., Source]
Reader = Callable[[Dataset], dict[str, list[str]]]
Rows = list[tuple[str, str, int]]
logs = st.lists(
    st.tuples(st.sampled_from("uvwxyzUVWXYZ"), st.sampled_from("abcde"), st.integers(0, 9)),
    min_size=60,
    max_size=120,
)


def comirec(rows: Rows, least: int) -> tuple[dict[str, list[str]], list[str]]:
    """ComiRec in plain Python: sequences by user, and items in order of their ids."""
    counts = Counter(item for _, item, _ in rows)
    good = {item for item, count in counts.items() if count >= least}
    by_user: dict[str, list[tuple[int, str]]] = {}
    for user, item, time in rows:
        by_user.setdefault(user, []).append((time, item))
    kept = {}
    for user, events in by_user.items():
        events = [event for event in events if event[1] in good]
        if len(events) >= least:
            kept[user] = [item for _, item in sorted(events, key=lambda event: event[0])]
    by_appearance = [item for item in counts if item in good]
    return kept, sorted(by_appearance, key=lambda item: -counts[item])  # stable: ties keep order


@settings(max_examples=20)
@given(rows=logs, least=st.integers(1, 6))
def test_preparation_is_comirecs(
    make_dataset: Maker, sequences_of: Reader, rows: Rows, least: int
) -> None:
    expected, order = comirec(rows, least)
    if not expected or max(map(len, list(expected.values()))) < 2:
        return
    dataset = make_dataset(
        rows, ties="stable", min_item_count=least, min_user_count=least, valid_share=0, test_share=0
    )
    assert sequences_of(dataset) == expected
    assert dataset.item_keys(range(1, dataset.num_items + 1)) == order


@settings(max_examples=20)
@given(rows=logs, least=st.integers(1, 6), core=st.booleans(), cold=st.sampled_from([0.0, 0.3]))
def test_every_interaction_is_accounted_for(
    make_dataset: Maker, rows: Rows, least: int, core: bool, cold: float
) -> None:
    try:
        dataset = make_dataset(
            rows, min_item_count=least, min_user_count=least, core=core, cold_items=cold
        )
    except DataError as error:
        assert "left" in str(error) or "no training user" in str(error)  # noqa: PT017
        return
    account = dataset.manifest["accounting"]
    dropped = account["dropped_by_item"] + account["dropped_by_user"] + account["dropped_cold"]
    assert account["kept"] + dropped == account["staged"] == len(rows)
    assert account["kept"] == len(dataset.items) == dataset.manifest["counts"]["interactions"]


def test_users_are_shuffled_by_the_seed_and_cut_8_1_1(make_dataset: Maker) -> None:
    rows = [
        (f"u{user:03d}", item, step) for user in range(100) for step, item in enumerate("abcdef")
    ]
    one, same, other = (make_dataset(rows, seed=seed) for seed in (1, 1, 2))
    orders = [dataset.user_keys(range(100)) for dataset in (one, same, other)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == [f"u{user:03d}" for user in range(100)] != orders[0]
    counts = one.manifest["counts"]
    assert [counts[f"{part}_users"] for part in ("train", "valid", "test")] == [80, 10, 10]


def test_cold_items_occur_in_evaluation_only(make_dataset: Maker) -> None:
    rng = np.random.default_rng(0)
    rows = [(f"u{user}", f"i{rng.integers(20)}", step) for user in range(200) for step in range(12)]
    dataset = make_dataset(rows, cold_items=0.25)
    cold = np.flatnonzero(dataset.item_counts[1:] == 0) + 1
    assert len(cold) == 5
    first_valid = dataset.offsets[160]
    assert not np.isin(dataset.items[:first_valid], cold).any()
    assert np.isin(dataset.items[first_valid:], cold).mean() == pytest.approx(0.25, abs=0.05)


def test_the_size_of_pieces_does_not_change_a_byte(
    tmp_path: Path, source_of: SourceOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    rows = [
        (f"u{rng.integers(40)}", f"i{rng.integers(30)}", int(rng.integers(50))) for _ in range(900)
    ]
    whole = prepare(source_of(rows), tmp_path / "whole")
    monkeypatch.setattr(staged_log, "CHUNK_ROWS", 64)
    monkeypatch.setattr(sequences, "BUCKET_ROWS", 100)
    pieces = prepare(source_of(rows, batch=77), tmp_path / "pieces")
    assert whole["checksum"] == pieces["checksum"]
    assert whole == pieces


SYNTH = """
import sys
from crossbatch.data import prepare
from crossbatch.data.synthetic import SynthOptions, synthetic_source
options = SynthOptions(users=300, items=200, interactions=4000, seed=3)
print(prepare(synthetic_source(options), sys.argv[1])["checksum"])
"""


def test_the_number_of_threads_does_not_change_a_byte(tmp_path: Path) -> None:
    sums = []
    for threads in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", SYNTH, str(tmp_path / threads)],
            env={**os.environ, "POLARS_MAX_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        )
        sums.append(run.stdout)
    assert sums[0] == sums[1]
    assert len(sums[0].strip()) == 64


def test_a_changed_file_is_found_out(make_dataset: Maker) -> None:
    dataset = make_dataset(
        [("u", item, step) for step, item in enumerate("abcdef")], split="leave_last_out"
    )
    dataset.verify()
    path = dataset.path / "item_counts.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")
    with pytest.raises(DataError, match=r"item_counts\.npy is missing or was changed"):
        dataset.verify()


def test_an_incomplete_folder_does_not_open(make_dataset: Maker) -> None:
    dataset = make_dataset(
        [("u", item, step) for step, item in enumerate("abcdef")], split="leave_last_out"
    )
    (dataset.path / "items.npy").unlink()
    with pytest.raises(DataError, match=r"items\.npy cannot be read"):
        open_dataset(dataset.path)


def test_a_split_that_the_source_gives_is_kept(make_dataset: Maker) -> None:
    def batches(_tally: Tally) -> list[pl.DataFrame]:
        log = {"a": 0, "b": 2, "c": 0, "d": 1}
        return [
            pl.DataFrame(
                {"user": [user] * 5, "item": list("vwxyz"), "time": range(5)}
            ).with_columns(pl.lit(part, dtype=pl.Int8).alias("split"))
            for user, part in log.items()
        ]

    source = Source(
        format="test", files=(), batches=lambda tally: iter(batches(tally)), time_unit="order"
    )
    dataset = make_dataset(source)
    assert dataset.user_keys(range(4)) == ["a", "c", "d", "b"]
    assert [len(next(dataset.eval_batches(split)).user_ids) for split in ("valid", "test")] == [
        1,
        1,
    ]
    assert dataset.manifest["counts"]["train_users"] == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "random"}, "user, leave_last_out, time"),
        ({"ties": "random"}, "shuffle, stable, item"),
        ({"min_item_count": 0}, "min_item_count must be at least 1"),
        ({"cold_items": 1.0}, "cold_items"),
        ({"cold_items": 0.1, "split": "time"}, "split by users"),
        ({"seed": -1}, "seed"),
        ({"valid_share": 0.9, "test_share": 0.1}, "shares"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PrepareOptions(**options)  # type: ignore[arg-type]


def test_given_options_win_over_a_formats_own() -> None:
    merged = PrepareOptions.merged(
        {"min_item_count": 1, "ties": "stable"}, {"ties": "item", "seed": None}
    )
    assert (merged.min_item_count, merged.ties, merged.seed) == (1, "item", 1230)
    with pytest.raises(ConfigError, match="unknown options"):
        PrepareOptions.merged({}, {"min_items": 3})
