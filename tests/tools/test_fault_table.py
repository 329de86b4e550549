"""The reliability page shows the figures that were counted."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_shows_the_figures_of_the_last_run() -> None:
    spec = importlib.util.spec_from_file_location("fault_table", ROOT / "tools" / "fault_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    figures = json.loads((ROOT / "docs" / "reliability" / "faults.json").read_text())
    assert module.table(figures) in (ROOT / "docs" / "reliability.md").read_text()
    assert all(count["lost"] == 0 for count in figures["kinds"].values())
