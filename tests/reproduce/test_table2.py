"""Table 2 against the run folders, and its figure."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from crossbatch.errors import DataError
from crossbatch.reproduce.folder import GridFolder
from crossbatch.reproduce.tables import write_table2

from .conftest import page_tables

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def grid(make_grid_run, tmp_path):
    for seed in (0, 1):
        make_grid_run("mind", "in_batch", seed, np.full(10, 0.10 + 0.02 * seed))
        make_grid_run("mind", "uniform", seed, np.full(10, 0.9))  # has no bank: not in the table
        make_grid_run("mind", "cross_batch", seed, np.full(10, 0.20), capacity=4)
        make_grid_run("mind", "cross_batch", seed, np.full(10, 0.15 + 0.02 * seed))  # its usual 76
        make_grid_run("mind", "balanced", seed, np.full(10, 0.30))
    return GridFolder(tmp_path / "grid")


def test_rows_by_hand(grid):
    write_table2(grid)
    tables = page_tables((grid.path / "table2.md").read_text())
    published, _, balanced, _ = tables
    assert published[0][:3] == ["M", "#neg", "MIND, Recall@50"]
    values = [line[:3] for line in published[2:]]
    assert values == [
        ["0", "4", "11.00 ± 1.41"],
        ["4", "8", "20.00 ± 0.00"],
        ["76", "80", "16.00 ± 1.41"],
    ]
    assert [line[:3] for line in balanced[2:]] == [values[0], ["76", "80", "30.00 ± 0.00"]]


def test_the_best_of_a_column_is_bold_and_cells_lead_to_runs(grid):
    write_table2(grid)
    page = (grid.path / "table2.md").read_text()
    assert "**20.00 ± 0.00**" in page
    assert "**16.00" not in page
    links = re.findall(r"\]\((runs/[^)]+)\)", page)
    assert "runs/mind-in_batch-s1" in links
    assert "runs/mind-cross_batch-M4-s0" in links
    assert all((grid.path / link).is_dir() for link in links)


def test_numbers_in_json_are_those_of_the_runs(grid):
    write_table2(grid)
    rows = json.loads((grid.path / "table2.json").read_text())["rows"]
    found = {(row["strategy"], row["capacity"]): row for row in rows}
    assert set(found) == {
        ("cross_batch", 0), ("cross_batch", 4), ("cross_batch", 76), ("balanced", 0),
        ("balanced", 76),
    }  # fmt: skip
    row = found["cross_batch", 76]
    results = [json.loads((grid.path / run / "result.json").read_text()) for run in row["runs"]]
    mean = sum(result["test"]["recall@50"] for result in results) / 2
    assert row["metrics"]["recall@50"]["mean"] == pytest.approx(mean)
    assert row["negatives"] == 80


def test_the_papers_column(grid):
    grid.add_facts(paper=True)
    write_table2(grid)
    published = page_tables((grid.path / "table2.md").read_text())[0]
    assert published[0][-1] == "MIND, paper's Recall / NDCG"
    assert published[2][-1] == "6.89 / 11.36"  # M = 0
    assert published[3][-1] == "–"  # no M = 4 in the paper


def test_the_figure_has_named_axes_and_a_line_per_strategy(grid):
    write_table2(grid)
    root = ElementTree.fromstring((grid.path / "figures" / "table2.svg").read_text())
    texts = {element.text for element in root.iter(f"{SVG}text")}
    assert {"MIND", "negatives per row", "Test recall@50, %", "Cross-batch, balanced"} <= texts
    paths = [e.get("d") for e in root.iter(f"{SVG}path") if e.get("class") == "line"]
    assert [path.count("L") + 1 for path in paths] == [3, 2]
    for suffix, signature in ((".png", b"\x89PNG"), (".pdf", b"%PDF-")):
        path = grid.path / "figures" / f"table2{suffix}"
        assert path.read_bytes().startswith(signature)


def test_a_grid_without_banks_says_so(make_grid_run, tmp_path):
    make_grid_run("mind", "in_batch", 0, np.ones(3))
    with pytest.raises(DataError, match="no run with a bank"):
        write_table2(GridFolder(tmp_path / "grid"))
