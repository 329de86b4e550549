"""The tables of the pages are those of the records."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def load():
    path = ROOT / "tools" / "result_tables.py"
    spec = importlib.util.spec_from_file_location("result_tables", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_show_what_the_records_say():
    tables = load()
    marks = 0
    for name in tables.PAGES:
        page = (ROOT / name).read_text(encoding="utf-8")
        marks += len(tables.MARKED.findall(page))
        assert tables.filled(page) == page, f"{name} is older than results/: run the tool"
    assert marks


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
    monkeypatch.setitem(tables.TABLES, "bar", lambda *names: f"({'+'.join(names)})\n")
    page = "a\n<!-- results: bar x y -->\nold\n<!-- /results -->\nb\n"
    assert tables.filled(page) == ("a\n<!-- results: bar x y -->\n(x+y)\n<!-- /results -->\nb\n")
