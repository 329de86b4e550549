"""Tables, figures and pages are those of the records, to the byte."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def load():
    path = ROOT / "tools" / "result_tables.py"
    spec = importlib.util.spec_from_file_location("result_tables", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FOLDERS = [path.parent for path in sorted((ROOT / "results").rglob("records.tar.xz"))]
REBUILT = ("auto", "curves", "drift", "lemma", "table1", "table2")


def marks(folder):
    """The two largest sets take a while."""
    return pytest.mark.slow if folder.name in ("book-1m", "ml-1m") else ()


@pytest.mark.parametrize(
    "folder",
    [pytest.param(folder, marks=marks(folder)) for folder in FOLDERS],
    ids=lambda folder: str(folder.relative_to(ROOT)),
)
def test_records_rebuild_all_tables_and_figures(folder, tmp_path):
    load().rebuild(folder, tmp_path)
    files = [*folder.glob("*.*"), *(folder / "figures").iterdir()]
    wanted = {path.relative_to(folder) for path in files if path.parent != folder}
    wanted |= {path.relative_to(folder) for path in files if path.stem in REBUILT}
    found = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == wanted
    for name in sorted(found):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name


def test_the_documentation_shows_the_figures_of_the_records(tmp_path):
    shown = {path.name for path in (ROOT / "docs" / "results").iterdir()}
    copied = {f"{name}.svg" for names in load().FIGURES.values() for name in names}
    assert shown == copied | {"bank.svg", "daily.svg"}  # of benchmarks/daily.py
    tables = load()
    tables.draw_bank(tmp_path / "bank.svg", "recency pooling", *tables.BANK_DATA)
    drawn = (ROOT / "docs" / "results" / "bank.svg").read_bytes()
    assert drawn == (tmp_path / "bank.svg").read_bytes()
    for data, names in load().FIGURES.items():
        for name in names:
            ours = ROOT / "results" / data / "figures" / f"{name}.svg"
            assert (ROOT / "docs" / "results" / ours.name).read_bytes() == ours.read_bytes()


def test_pages_show_what_the_records_say():
    tables = load()
    marks = 0
    for name in tables.PAGES:
        page = (ROOT / name).read_text(encoding="utf-8")
        marks += len(tables.MARKED.findall(page))
        assert tables.filled(page) == page, f"{name} is older than results/: run the tool"
    assert marks


def test_towers_that_read_titles_stand_beside_the_smallest_batch(tmp_path, monkeypatch):
    def run(batch, rule, recall, seconds, tower="title transformer"):
        metrics = {"recall@50": recall, "ndcg@50": recall / 2, "tail_recall@50": 0.0}
        known = {"tower": tower, "samples": 64_000, "batch": batch, "rule": rule, "lr": 0.001}
        known |= {"size": 0 if rule == "in-batch" else 32, "seed": 0, "cpu_seconds": seconds}
        return known | {"valid": metrics, "test": metrics}

    tables, folder = load(), tmp_path / "bank"
    folder.mkdir()
    ids = run(32, "in-batch", 0.4, 1.0, "recency pooling")
    known = {"beauty": [run(32, "in-batch", 0.1, 10.0), ids]}
    known["beauty-text"] = [run(256, "in-batch", 0.11, 5.0), run(256, "cached softmax", 0.09, 20.0)]
    for name, runs in known.items():
        (folder / f"{name}.json").write_text(json.dumps({"runs": runs}))
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    rows = [line.split(" | ")[3:] for line in tables.bank_text("beauty").splitlines()[2:]]
    shown = [[row[0], row[1], row[5], row[8], row[9], row[10].rstrip(" |")] for row in rows]
    assert shown == [
        ["32", "in-batch", "", "", "10", ""],
        ["256", "in-batch", "+10.0 %", "+10.0 %", "5", "0.5 ×"],
        ["256", "cached softmax (32)", "−10.0 %", "−10.0 %", "20", "2.0 ×"],
    ]
    assert len(tables.bank("beauty").splitlines()) == 3  # the tower of ids alone


def test_numbers_in_print():
    tables = load()
    assert tables.percent({"mean": 0.1234, "sd": 0.001}) == "12.34 ± 0.10"
    assert tables.percent({"mean": 0.5, "sd": None}) == "50.00"
    assert tables.percent(None) == tables.amount(None) == "–"
    assert tables.amount({"mean": 3.25, "sd": 0.5}) == "3.2 ± 0.5"
    loss = {"relative": -0.143, "low": -0.194, "high": -0.086}
    assert tables.gain(loss, mark=True) == "▼ −14.3 % [−19.4, −8.6]"
    assert tables.gain({"relative": 0.02, "low": -0.01, "high": 0.05}, mark=True) == (
        "+2.0 % [−1.0, +5.0]"
    )
    assert tables.gain(None) == ""


def test_a_mark_keeps_its_place(monkeypatch):
    tables = load()
    monkeypatch.setitem(tables.TABLES, "auto", lambda *names: f"({'+'.join(names)})\n")
    page = "a\n<!-- results: auto x y -->\nold\n<!-- /results -->\nb\n"
    assert tables.filled(page) == ("a\n<!-- results: auto x y -->\n(x+y)\n<!-- /results -->\nb\n")
