from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from crossbatch.data import Dataset, PrepareOptions, open_dataset, open_source, prepare
from crossbatch.data.readers.source import Tally
from crossbatch.data.synthetic import SynthOptions, log, synthetic_source, write_raw
from crossbatch.data.synthetic.catalogue import (
    made_up_words,
    permuted,
    places_in_group,
    spread_repeats,
)
from crossbatch.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    path = tmp_path_factory.mktemp("synth") / "dataset"
    prepare(synthetic_source(SynthOptions()), path, PrepareOptions(cold_items=0.05))
    return open_dataset(path)


@pytest.mark.parametrize(
    "shape", [(6_000, 3_000, 120_000), (10, 20, 200), (500, 1_000, 6_000), (2_000, 30, 11_111)]
)
def test_the_shape_is_exactly_as_asked(tmp_path: Path, shape: tuple[int, int, int]) -> None:
    counts = prepare(synthetic_source(SynthOptions(*shape)), tmp_path / "out")["counts"]
    assert (counts["users"], counts["items"], counts["interactions"]) == shape


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    sums = [
        prepare(synthetic_source(SynthOptions(200, 100, 2_000, seed)), tmp_path / name)["checksum"]
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert sums[0] == sums[1] != sums[2]


def test_blocks_do_not_lose_or_add_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "BLOCK_USERS", 64)
    options = SynthOptions(500, 100, 5_000)
    frames = list(synthetic_source(options).batches(Tally()))
    assert len(frames) == 8
    counts = Counter(pl.concat(frames)["item"].to_list())
    assert (len(counts), sum(counts.values())) == (100, 5_000)
    assert min(counts.values()) >= 5


def test_the_raw_log_prepares_to_the_same_sequences(tmp_path: Path) -> None:
    options = SynthOptions(300, 100, 3_000)
    write_raw(options, tmp_path / "raw")
    source = open_source(tmp_path / "raw")
    raw = prepare(source, tmp_path / "a")
    direct = prepare(synthetic_source(options), tmp_path / "b")
    assert raw["files"]["items.npy"] == direct["files"]["items.npy"]
    assert raw["features"] == direct["features"]


def test_popularity_is_heavy_tailed_and_lengths_are_skewed(dataset: Dataset) -> None:
    counts = np.sort(np.bincount(dataset.items)[1:])[::-1]
    top = counts[: len(counts) // 10].sum() / counts.sum()
    assert 0.3 < top < 0.7
    ranks = np.arange(1, 301)
    slope = np.polyfit(np.log(ranks), np.log(counts[:300]), 1)[0]
    assert -1.2 < slope < -0.3
    lengths = np.diff(dataset.offsets[:])
    assert np.mean(lengths) > 1.2 * np.median(lengths)


def test_days_tie_as_often_as_in_real_logs(dataset: Dataset) -> None:
    owner = np.repeat(np.arange(dataset.num_users), np.diff(dataset.offsets))
    same = (dataset.times[1:] == dataset.times[:-1])[owner[1:] == owner[:-1]]
    assert 0.24 < same.mean() < 0.47  # what the Amazon sets show
    assert (dataset.times % 86_400_000_000 == 0).all()


@given(st.lists(st.integers(1, 300), min_size=1, max_size=5), st.integers(0, 9))
def test_assigned_places_are_a_permutation_of_each_topic(sizes: list[int], key: int) -> None:
    numbers = np.concatenate([np.arange(size) for size in sizes])
    ranges = np.repeat(sizes, sizes)
    keys = np.repeat(np.arange(len(sizes)) + key, sizes)
    dealt = permuted(numbers, ranges, keys)
    for topic in range(len(sizes)):
        assert sorted(dealt[keys == topic + key].tolist()) == list(range(sizes[topic]))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_places_in_group_count_equals_before(groups: list[int]) -> None:
    expected = [groups[:n].count(group) for n, group in enumerate(groups)]
    assert places_in_group(np.array(groups)).tolist() == expected


def test_swapping_repeats_keeps_every_topic_s_items() -> None:
    rng = np.random.default_rng(0)
    users, topics = rng.integers(50, size=2_000), rng.integers(4, size=2_000)
    items = topics * 40 + rng.integers(40, size=2_000)
    swapped = spread_repeats(rng, users, items, topics)
    assert (np.sort(swapped) == np.sort(items)).all()
    assert (swapped // 40 == topics).all()

    def repeats(held: np.ndarray) -> int:
        return len(held) - len(np.unique(users * 1_000 + held))

    assert repeats(swapped) < repeats(items) / 3


def test_made_up_words_are_distinct() -> None:
    assert (
        len(set(made_up_words(30_000).tolist()) | set(made_up_words(5_000, salt=1).tolist()))
        == 35_000
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((5, 100, 1000), "users"), ((100, 100, 599), "at least 600"), ((10, 20, 200, -1), "seed")],
)
def test_impossible_shapes_are_refused(arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SynthOptions(*arguments)


class Items(nn.Module):
    """Item vectors from an id, or from the words of the title."""

    def __init__(self, dataset: Dataset, *, content: bool) -> None:
        super().__init__()
        title = dataset.item_features["title"]
        assert title.offsets is not None
        self.words = torch.from_numpy(title.values.astype(np.int64))
        self.starts = torch.from_numpy(title.offsets[:-1].astype(np.int64))
        size = title.num_values if content else dataset.num_items + 1
        self.content = content
        self.table = nn.EmbeddingBag(size, 32, mode="mean")
        nn.init.normal_(self.table.weight, std=0.1)

    def forward(self) -> Tensor:  # [N + 1, d]
        return self.table(self.words, self.starts) if self.content else self.table.weight


def train(dataset: Dataset, *, content: bool, steps: int) -> Callable[[Tensor], Tensor]:
    """A mean-pooled two-tower model; returns the scores of a history."""
    torch.manual_seed(0)
    items, project = Items(dataset, content=content), nn.Linear(32, 32)
    optimiser = torch.optim.Adam([*items.parameters(), *project.parameters()], lr=5e-3)
    log_q = torch.from_numpy(np.log(np.maximum(dataset.sampler_law, 1e-12))).float()

    def users(history: Tensor, vectors: Tensor) -> Tensor:
        mask = (history > 0).float().unsqueeze(2)
        return project((vectors[history] * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1))

    for batch in islice(dataset.batches(256, seed=1), steps):
        vectors = items()
        logits = users(batch.history, vectors) @ vectors[batch.item_ids].T - log_q[batch.item_ids]
        same = batch.item_ids[:, None] == batch.item_ids[None, :]
        logits = logits.masked_fill(same & ~torch.eye(256, dtype=torch.bool), -torch.inf)
        loss = functional.cross_entropy(logits, torch.arange(256))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    vectors = items().detach()
    return lambda history: users(history, vectors).detach() @ vectors.T


def recall(dataset: Dataset, score: Callable[[Tensor], Tensor], chosen: Tensor) -> float:
    """Share of the chosen items' occurrences among targets that are in the top 50."""
    hits = total = 0
    for batch in dataset.eval_batches("test"):
        top = score(batch.history)[:, 1:].topk(50, dim=1).indices + 1
        for row, targets in zip(top, batch.targets, strict=True):
            wanted = targets[chosen[targets]]
            hits, total = hits + int(torch.isin(wanted, row).sum()), total + len(wanted)
    return hits / total


@pytest.mark.slow
def test_a_sequence_model_beats_popularity_and_content_finds_cold_items(dataset: Dataset) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    counts = torch.from_numpy(np.array(dataset.item_counts))
    everything, cold = torch.ones(len(counts), dtype=torch.bool), counts == 0
    popular = recall(dataset, lambda history: counts.float().expand(len(history), -1), everything)
    by_id, by_title = (train(dataset, content=content, steps=400) for content in (False, True))
    torch.set_num_threads(threads)
    assert recall(dataset, by_id, everything) > 1.5 * popular
    assert recall(dataset, by_title, cold) > 0.05 + 2 * recall(dataset, by_id, cold)
