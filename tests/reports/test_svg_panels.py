from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

from crossbatch.reports.journal import Curve
from crossbatch.reports.plots import Line, Plot
from crossbatch.reports.svg import PANEL, write_panels

if TYPE_CHECKING:
    from pathlib import Path

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</text><script>alert(1)</script>&"


def plot(title: str, *labels: str) -> Plot:
    lines = [Line(x, "", Curve((0.0, 1.0), (1.0, 2.0)), i) for i, x in enumerate(labels)]
    return Plot("p", title, "step", "Recall@50, %", lines)


def test_a_figure_is_one_document_with_titles_axes_and_one_legend(tmp_path: Path) -> None:
    plots = [plot("MIND", "Uniform", "In-batch"), plot("GRU4Rec", "In-batch", "Mixed")]
    root = ElementTree.fromstring(write_panels(plots, tmp_path / "f.svg", columns=2).read_text())
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert [text for text in texts if text in {"MIND", "GRU4Rec"}] == ["MIND", "GRU4Rec"]
    assert texts.count("step") == texts.count("Recall@50, %") == 2
    assert texts[-3:] == ["Uniform", "In-batch", "Mixed"]
    style = root.find(f"{SVG}style")
    assert style is not None
    assert "prefers-color-scheme: dark" in (style.text or "")
    assert root.get("aria-label") == "MIND; GRU4Rec"


def test_panels_fill_rows_and_stay_inside(tmp_path: Path) -> None:
    plots = [plot(str(i), "Uniform") for i in range(5)]
    root = ElementTree.fromstring(write_panels(plots, tmp_path / "f.svg", columns=3).read_text())
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    places = [(float(e.get("x", "0")), float(e.get("y", "0"))) for e in root.findall(f"{SVG}svg")]
    assert len({x for x, _ in places}) == 3
    assert len({y for _, y in places}) == 2
    assert all(x + PANEL.width <= width and y + PANEL.height <= height for x, y in places)


def test_a_long_legend_takes_more_lines(tmp_path: Path) -> None:
    panel = plot("a", *(f"a rather long label {index}" for index in range(6)))
    root = ElementTree.fromstring(write_panels([panel], tmp_path / "f.svg", columns=1).read_text())
    labels = [e for e in root.iter(f"{SVG}text") if (e.text or "").startswith("a rather")]
    assert len(labels) == 6
    assert len({e.get("y") for e in labels}) > 1
    assert all(float(e.get("x", "0")) < float(root.get("width", "0")) for e in labels)


def test_hostile_titles_and_labels_stay_text(tmp_path: Path) -> None:
    text = write_panels([plot(HOSTILE, HOSTILE)], tmp_path / "f.svg", columns=1).read_text()
    root = ElementTree.fromstring(text)
    assert not list(root.iter(f"{SVG}script"))
    assert sum(element.text == HOSTILE for element in root.iter(f"{SVG}text")) == 2
