"""Items that were shown with each event: kept with it, and negatives of its row alone."""

from __future__ import annotations

from functools import partial
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
import torch

from crossbatch.config import Recipe
from crossbatch.data import Dataset, PrepareOptions, ReadOptions, open_dataset, open_source, prepare
from crossbatch.data.prepare import sequences, staged_log
from crossbatch.errors import ConfigError
from crossbatch.training.build import build_trainer, draw_batches, resolve

if TYPE_CHECKING:
    from pathlib import Path

# user, item, seconds, shown; "x" is never chosen, and "z" is no item of the dataset
LOG = [
    ("u", "a", 1, ["a", "b", "x"]),
    ("v", "b", 5, ["z", "a"]),
    ("u", "b", 3, ["c", " x ", "b"]),
    ("u", "x", 2, None),
    ("v", "c", 6, []),
    ("u", "c", 4, ["a", "", "d"]),
    ("v", "d", 9, ["a", "b", "c"]),
    ("w", "a", 1, ["b"]),
    ("w", "d", 2, ["a", "x"]),
]


def prepared(folder: Path, *, text: bool = False) -> Dataset:
    table = pl.DataFrame(
        {name: [row[i] for row in LOG] for i, name in enumerate(["user", "item", "time", "shown"])}
    )
    if text:
        table = table.with_columns(pl.col("shown").list.join("|"))
    table.write_parquet(folder / "log.parquet")
    options = PrepareOptions(
        min_item_count=1, min_user_count=1, split="time", valid_share=0.0, test_share=0.0
    )
    reading = ReadOptions(impressions="shown", time_unit="s")
    prepare(open_source(folder / "log.parquet", "table", reading), folder / "data", options)
    dataset = open_dataset(folder / "data")
    dataset.verify()
    return dataset


def lists_of(dataset: Dataset) -> dict[tuple[str, int], list[str]]:
    assert dataset.shown is not None
    found = {}
    items, offsets = dataset.shown
    users = dataset.user_keys(range(dataset.num_users))
    for user, (first, last) in zip(users, pairwise(dataset.offsets.tolist()), strict=True):
        for row in range(first, last):
            own = dataset.item_keys(items[offsets[row] : offsets[row + 1]])
            found[user, int(dataset.times[row]) // 10**6] = own
    return found


@pytest.mark.parametrize(("rows", "text"), [(2, False), (1 << 20, False), (3, True)])
def test_every_event_keeps_what_was_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, text: bool
) -> None:
    monkeypatch.setattr(sequences, "BUCKET_ROWS", rows)
    monkeypatch.setattr(staged_log, "CHUNK_ROWS", rows)
    kept = {item for _, item, *_ in LOG}
    expected = {
        (user, time): [item.strip() for item in shown or [] if item.strip() in kept]
        for user, _, time, shown in LOG
    }
    assert lists_of(prepared(tmp_path, text=text)) == expected


def test_batches_have_what_was_shown_with_their_targets(tmp_path: Path) -> None:
    dataset = prepared(tmp_path)
    lists = lists_of(dataset)
    targets = {
        (user, item): lists[user, time] for user, item, time, _ in LOG
    }  # an item occurs once a user
    for batch in islice(dataset.batches(3, seed=0), 20):
        assert batch.shown is not None
        ids, offsets = batch.shown
        users = dataset.user_keys(batch.user_ids.tolist())
        items = dataset.item_keys(batch.item_ids.tolist())
        for row, key in enumerate(zip(users, items, strict=True)):
            shown = dataset.item_keys(ids[offsets[row] : offsets[row + 1]].tolist())
            assert shown == targets[key]


def _corrected(scores: torch.Tensor, item: int, correction: float) -> torch.Tensor:
    return scores[item] - correction


@pytest.mark.parametrize("sampler", ["in_batch", "uniform"])
@pytest.mark.parametrize("mask", ["both", "none"])
def test_the_loss_is_that_of_the_definition(tmp_path: Path, sampler: str, mask: str) -> None:
    """A softmax of each row over its columns, in float64, with a column for each shown item."""
    dataset = prepared(tmp_path)
    options: dict[str, Any] = {
        "model": {"name": "youtube_dnn", "dim": 4, "history_dropout": 0.0},
        "sampler": {"name": sampler},
        "loss": {"mask": mask, "temperature": 0.5},
        "train": {"batch_size": 3, "max_steps": 1, "eval_every": 1, "threads": 1},
    }
    recipe = resolve(Recipe.from_dict(options), dataset)
    trainer = build_trainer(recipe, dataset)
    trainer.model.train()  # type: ignore[attr-defined]
    law = torch.from_numpy(dataset.sampling_law(1, "interaction"))
    differ, every = 0, torch.arange(dataset.num_items + 1)
    for batch in islice(draw_batches(recipe.train, dataset), 12):
        u, positives, negatives, loss = trainer.forward(batch)
        assert isinstance(u, torch.Tensor)
        assert batch.shown is not None
        ids, offsets = batch.shown
        log_q = trainer.sampler.log_q
        losses, plain = [], []
        for row, own in enumerate(batch.item_ids.tolist()):
            scores = trainer.model.items(every).detach().double() @ u[row].detach().double() / 0.5
            score = partial(_corrected, scores)
            first = score(own, float(log_q(torch.tensor([own]))))
            columns = [first]
            for place, item in enumerate(negatives.item_ids.tolist()):
                same = item == own if mask == "both" else place == row and sampler == "in_batch"
                if not same:
                    columns.append(score(item, float(negatives.log_q[place])))
            plain.append(torch.stack(columns).logsumexp(0) - first)
            for item in sorted(set(ids[offsets[row] : offsets[row + 1]].tolist()) - {own}):
                q = float(torch.exp(log_q(torch.tensor([item])))) if law[item] > 0 else 0.0
                correction = torch.log(torch.tensor(q + 1 / len(negatives)))
                columns.append(score(item, float(correction)))
            losses.append(torch.stack(columns).logsumexp(0) - first)
        assert float(loss.detach()) == pytest.approx(float(torch.stack(losses).mean()), rel=1e-4)
        differ += abs(float(torch.stack(plain).mean()) - float(loss.detach())) > 1e-3
    assert differ > 6  # what was shown tells
    (found,) = torch.autograd.grad(loss, [positives.embeddings], allow_unused=True)
    assert found is not None
    off = Recipe.from_dict(options | {"loss": options["loss"] | {"impressions": False}})
    assert build_trainer(resolve(off, dataset), dataset).targets is None


def second_file(folder: Path, *, one_item_a_row: bool, suffix: str) -> Path:
    """The lists of `LOG` by request, in another order, with a list that no event belongs to."""
    rows = [(f"r{number}", row[3] or []) for number, row in enumerate(LOG)]
    rows = [*rows[4:], ("unused", ["a"]), *rows[:4]]
    table = pl.DataFrame(
        rows, schema={"request": pl.String, "items": pl.List(pl.String)}, orient="row"
    )
    if one_item_a_row:
        table = table.explode("items").drop_nulls("items")
    path = folder / f"shown{suffix}"
    if suffix == ".jsonl":
        table.write_ndjson(path)
    elif suffix == ".csv":
        if not one_item_a_row:
            table = table.with_columns(pl.col("items").list.join("|"))
        table.write_csv(path)
    else:
        table.write_parquet(path)
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
@pytest.mark.parametrize("one_item_a_row", [False, True])
def test_lists_of_a_second_file_are_those_of_a_column(
    tmp_path: Path, suffix: str, one_item_a_row: bool
) -> None:
    shown = second_file(tmp_path, one_item_a_row=one_item_a_row, suffix=suffix)
    log = [(*row[:3], f"r{number}") for number, row in enumerate(LOG)]
    log.append(("w", "a", 3, None))  # an event without a request, and one of an unknown request
    log.append(("w", "b", 4, "r99"))
    names = ["user", "item", "time", "request"]
    pl.DataFrame(log, schema=names, orient="row").write_parquet(tmp_path / "log.parquet")
    options = PrepareOptions(
        min_item_count=1, min_user_count=1, split="time", valid_share=0.0, test_share=0.0
    )
    reading = ReadOptions(
        impressions="items", impressions_file=str(shown), request="request", time_unit="s"
    )
    prepare(open_source(tmp_path / "log.parquet", "table", reading), tmp_path / "data", options)
    dataset = open_dataset(tmp_path / "data")
    dataset.verify()
    kept = {item for _, item, *_ in LOG}
    expected = {
        (user, time): [item.strip() for item in shown or [] if item.strip() in kept]
        for user, _, time, shown in LOG
    }
    assert lists_of(dataset) == expected | {("w", 3): [], ("w", 4): []}
    assert shown.name in dataset.manifest["source"]["files"]


def test_a_second_file_needs_its_columns(tmp_path: Path) -> None:
    shown = second_file(tmp_path, one_item_a_row=False, suffix=".csv")
    pl.DataFrame({"user": ["u"], "item": ["a"], "time": [1], "request": ["r"]}).write_csv(
        tmp_path / "log.csv"
    )
    with pytest.raises(ConfigError, match="got no request"):
        ReadOptions(impressions="items", impressions_file=shown)
    for wrong in ({"impressions": "seen"}, {"request": "visit"}):
        columns = {"impressions": "items", "request": "request"} | wrong
        reading = ReadOptions(impressions_file=shown, **columns)
        with pytest.raises(ConfigError, match=f"no column '{next(iter(wrong.values()))}' for --"):
            open_source(tmp_path / "log.csv", "table", reading)


def test_lists_of_json_lines(tmp_path: Path) -> None:
    """A list in a JSON line is a list, also where another line is broken."""
    lines = [
        '{"user": "u", "item": "a", "time": 1, "shown": ["a", "b"]}',
        '{"user": "u", "item": "b", "time": 2, "shown": [null, 7]}',
        '{"user": "u", "item": "7", "time": 3}',
    ]
    for name, more in (("whole", []), ("broken", ["{"])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join([*lines, *more]) + "\n")
        reading = ReadOptions(impressions="shown", time_unit="s")
        source = open_source(tmp_path / f"{name}.jsonl", "table", reading)
        options = PrepareOptions(
            min_item_count=1, min_user_count=1, split="time", valid_share=0.0, test_share=0.0,
            max_bad_lines=1,
        )  # fmt: skip
        prepare(source, tmp_path / name, options)
        found = lists_of(open_dataset(tmp_path / name))
        assert found == {("u", 1): ["a", "b"], ("u", 2): ["7"], ("u", 3): []}
