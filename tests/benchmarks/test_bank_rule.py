"""The map of banks: equivalent batches and limits of the rule by hand, and `auto` against both."""

import json
from pathlib import Path

import pytest

from bank_map import equivalent_batch, measured_cells
from bank_rule import BANK, IN_BATCH, Limits, fit, judged, mistakes, read_cells
from crossbatch.training import auto_sampler

RECORDS = Path(__file__).parents[2] / "results" / "bank"


def run(rule, batch, recall, *, seed=0, lr=0.1, tower="recency pooling"):
    metrics = {"recall@50": recall, "ndcg@50": recall / 2, "tail_recall@50": 0.0}
    size = 0 if rule == IN_BATCH else 2432
    return {
        "tower": tower, "samples": 1000, "batch": batch, "rule": rule, "size": size, "lr": lr,
        "seed": seed, "valid": metrics, "test": metrics, "cpu_seconds": 1.0,
    }  # fmt: skip


def write_map(folder, name, likely_items, runs):
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"dataset": name, "likely_items": likely_items, "runs": runs}))
    return path


@pytest.mark.parametrize(
    ("recall", "batch", "above"),
    [
        (0.10, 32, False),  # no better than the same batch without a bank
        (0.12, 64, False),  # half of the way from 32 to 128 on a logarithmic scale
        (0.14, 128, False),
        (0.15, 256, False),
        (0.17, 512, True),
    ],
)
def test_the_equivalent_batch_is_interpolated_between_measured_ones(recall, batch, above):
    known = [run(IN_BATCH, size, value) for size, value in ((32, 0.10), (128, 0.14), (512, 0.16))]
    cells = measured_cells([*known, run(BANK, 32, recall)])
    bank = next(cell for cell in cells if cell["rule"] == BANK)
    found, larger = equivalent_batch(cells, bank, "recall@50")
    assert found == pytest.approx(batch)
    assert larger == above


def test_the_rate_of_a_cell_is_the_best_of_seed_0():
    runs = [run(BANK, 32, 0.1, lr=1.0), run(BANK, 32, 0.2, lr=2.0), run(BANK, 32, 0.4, lr=2.0)]
    runs[2]["seed"] = 1
    (cell,) = measured_cells([*runs, run(BANK, 32, 0.9, lr=1.0, seed=1)])
    assert (cell["lr"], cell["seeds"], cell["recall@50"]) == (2.0, 2, [0.2, 0.4])


@pytest.fixture
def three_maps(tmp_path):
    """A bank pays for small batches on two sets with many likely items, and nowhere on a third."""

    def cells(gain):
        pairs = [((8, 1 + gain), (32, 1 + gain), (128, 1.01))]
        return [
            each
            for batch, factor in pairs[0]
            for each in (run(IN_BATCH, batch, 0.2), run(BANK, batch, 0.2 * factor))
        ]

    return [
        write_map(tmp_path, "books", 12_000, cells(0.1)),
        write_map(tmp_path, "beauty", 4_000, cells(0.05)),
        write_map(tmp_path, "news", 500, cells(0.0)),
    ]


def test_the_limit_makes_the_fewest_mistakes(three_maps):
    cells = read_cells(three_maps)
    assert len(cells) == 9
    limits = fit(cells)
    assert limits == Limits(32, 2432)
    assert mistakes(limits, cells) == 0
    assert mistakes(Limits(128), cells) == 2
    assert mistakes(Limits(32, 0), cells) == 2  # a bank for the news


def test_a_data_set_is_judged_by_the_others_alone(three_maps):
    chosen = {(cell.data, cell.batch): limits.choose(cell) for cell, limits in judged(
        read_cells(three_maps)
    )}  # fmt: skip
    assert chosen["books", 8] == chosen["books", 32] == BANK
    assert chosen["books", 128] == IN_BATCH
    assert chosen["beauty", 32] == BANK
    assert chosen["news", 32] == IN_BATCH


def test_towers_that_share_weights_get_no_bank(tmp_path):
    titles = "recency pooling, titles"
    runs = [run(IN_BATCH, 32, 0.2, tower=titles), run(BANK, 32, 0.3, tower=titles)]
    (cell,) = read_cells([write_map(tmp_path, "books", 12_000, runs)])
    assert Limits(32, 0).choose(cell) == IN_BATCH


def test_auto_has_the_limits_of_the_records():
    """Its rounder numbers choose in every measured cell what the fitted limits choose."""
    cells = read_cells(sorted(RECORDS.glob("*.json")))
    limits = fit(cells)
    auto = Limits(auto_sampler.BANK_BATCH, auto_sampler.BANK_ROWS)
    assert [auto.choose(cell) for cell in cells] == [limits.choose(cell) for cell in cells]
