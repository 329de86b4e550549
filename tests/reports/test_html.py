from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

from crossbatch.errors import ConfigError, DataError
from crossbatch.reports.html import render, write_html
from crossbatch.reports.runs import read_runs

from .conftest import MakeRun, run_config, toy_journal

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&</title></style>"


class Page(HTMLParser):
    """Every element with its attributes, and the text outside script and style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            while self.open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture
def runs(make_run: MakeRun) -> list[Path]:
    baselines = {"popularity": {"test": {"recall@50": 0.02}}}
    base, ours = [0.1, 0.2, 0.3, 0.2] * 20, [0.2, 0.3, 0.3, 0.2] * 20
    cross = {"item_gradient": "balanced", "capacity": 8}
    return [
        make_run("base", per_user={"recall@50": base}, result={"baselines": baselines}),
        make_run("ours", sampler="cross_batch", options=cross, per_user={"recall@50": ours}),
    ]


@pytest.fixture
def text(runs: list[Path], tmp_path: Path) -> str:
    return render(read_runs(runs), tmp_path / "report.html")


def test_sections_and_numbers(text: str) -> None:
    page = Page(text)
    ids = [attributes["id"] for attributes in page.all("section")]
    assert ids == [
        "summary", "results", "curves", "diagnostics", "configuration", "runs", "environment",
        "terms",
    ]  # fmt: skip
    for words in ("Popularity", "Cross-batch, balanced", "▲ +25.0 %", "20.00", "25.00"):
        assert words in page.text
    assert "sampler.capacity" in page.text  # a setting that differs
    assert "c0ffee" not in page.text  # where the data lay is no setting


def test_links_lead_to_the_run_folders(runs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "pages" / "report.html"
    page = Page(write_html(read_runs(runs), out).read_text())
    links = [a["href"] or "" for a in page.all("a") if not (a["href"] or "").startswith("#")]
    assert links == ["../base/", "../ours/"]
    assert all((out.parent / link).is_dir() for link in links)


def test_page_asks_nothing_of_the_network(text: str) -> None:
    page = Page(text)
    for tag, attributes in page.elements:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "form"}
        assert not {"src", "srcset", "xlink:href", "action"} & attributes.keys()
    assert not re.search(r"url\(|@import|https?:|//[a-z]+\.", text)


def test_policy_allows_the_one_script_and_nothing_else(text: str) -> None:
    policy = next(m["content"] or "" for m in Page(text).all("meta") if "http-equiv" in m)
    scripts = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert len(scripts) == 1
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy


def test_hostile_texts_stay_texts(make_run: MakeRun, tmp_path: Path) -> None:
    settings = run_config(HOSTILE, {"name": HOSTILE, HOSTILE: HOSTILE}, 0)
    settings["dataset"] = {"path": f"data/{HOSTILE.replace('/', '')}", "checksum": HOSTILE}
    settings["environment"] = {HOSTILE: HOSTILE}
    metric = f"{HOSTILE}@50"
    events = [
        {"event": "start", "step": 0, "time": HOSTILE},
        {"event": "warning", "step": 1, "message": HOSTILE},
        {"event": "train", "step": 1, "loss": 1.0, "diagnostics": {HOSTILE: 1.0}},
        {"event": "eval", "step": 1, "seconds": 1.0, "metrics": {metric: 0.5, "recall@50": 0.5}},
        {"event": "stop", "step": 1, "reason": HOSTILE},
    ]
    folder = make_run(
        "a<b>&\"'",
        model=HOSTILE,
        sampler=HOSTILE,
        config=settings,
        journal=events,
        test={metric: 0.1, "recall@50": 0.2},
        result={"baselines": {HOSTILE: {"test": {"recall@50": 0.1}}}},
    )
    example = {"history": [HOSTILE], "targets": [HOSTILE], "recommended": [{"title": HOSTILE}]}
    (folder / "examples.json").write_text(json.dumps([example]))
    page = Page(render(read_runs([folder]), tmp_path / "r.html"))
    assert len(page.all("script")) == 1
    assert page.all("img") == []
    assert all(not key.startswith("on") for _, attributes in page.elements for key in attributes)
    assert page.text.count("<script>alert(1)</script>") >= 10


def test_unfinished_run_alone_makes_a_page(make_run: MakeRun, tmp_path: Path) -> None:
    path = make_run("going", finished=False, journal=toy_journal([0.05], stop=None))
    page = Page(render(read_runs([path]), tmp_path / "r.html"))
    assert "unfinished" in page.text
    assert "0 of 1" in page.text
    assert any(svg.get("role") == "img" for svg in page.all("svg"))


def test_result_alone_makes_a_page(make_run: MakeRun, tmp_path: Path) -> None:
    path = make_run("a", journal=None)
    (path / "config.json").unlink()
    ids = [
        section["id"] for section in Page(render(read_runs([path]), tmp_path / "r")).all("section")
    ]
    assert ids == ["summary", "results", "runs", "terms"]


def test_examples_mark_the_hits(make_run: MakeRun, tmp_path: Path) -> None:
    path = make_run("a")
    ranked = [{"title": "Heat", "score": 0.5}, {"title": "Alien", "score": None}, "Plain", 7]
    examples = [{"history": ["Up"], "targets": ["Heat"], "recommended": ranked}, 3, {}]
    (path / "examples.json").write_text(json.dumps(examples))
    text = render(read_runs([path]), tmp_path / "r.html")
    assert "Heat ✓" in text
    assert "Alien ✓" not in text
    assert "0.500" in text


def test_two_data_sets_get_a_table_each(make_run: MakeRun, tmp_path: Path) -> None:
    other = run_config("mind", {"name": "in_batch"}, 0)
    other["dataset"] = {"path": "data/else", "checksum": "1"}
    text = render(read_runs([make_run("a"), make_run("b", config=other)]), tmp_path / "r.html")
    assert text.count('aria-label="Results"') == 2
    assert "<h3>toy</h3>" in text
    assert "<h3>else</h3>" in text


def test_page_can_be_read_without_seeing_it(text: str) -> None:
    page = Page(text)
    assert page.all("html")[0]["lang"] == "en"
    assert len(page.all("h1")) == 1
    assert all(th.get("scope") in {"col", "row", "rowgroup"} for th in page.all("th"))
    for svg in page.all("svg"):
        assert svg.get("aria-label") or svg.get("aria-hidden") == "true"
    for region in (div for div in page.all("div") if div.get("role") == "region"):
        assert region.get("aria-label")
        assert region.get("tabindex") == "0"


def test_same_runs_same_page(runs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    assert render(read_runs(runs), out) == render(read_runs(runs), out)


def test_writing_leaves_no_partial_file(runs: list[Path], tmp_path: Path) -> None:
    out = write_html(read_runs(runs), tmp_path / "new" / "deep" / "r.html")
    assert [path.name for path in out.parent.iterdir()] == ["r.html"]


def test_a_folder_is_no_place_for_the_page(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        write_html(read_runs(runs), tmp_path)


def test_a_file_is_no_folder_for_the_page(runs: list[Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="cannot write"):
        write_html(read_runs(runs), tmp_path / "file" / "r.html")


def _palette(css: str, start: str) -> dict[str, str]:
    block = css[css.index(start) :].split("}")[0]
    return dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{3,6})", block))


def _luminance(color: str) -> float:
    digits = color[1:] if len(color) == 7 else "".join(2 * digit for digit in color[1:])
    channels = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [":root {", ':root[data-theme="dark"] {'])
def test_colours_can_be_told_from_the_ground(text: str, theme: str) -> None:
    """WCAG: 4.5 for text, 3 for lines."""
    colors = _palette(text, theme)

    def contrast(one: str, two: str) -> float:
        a, b = sorted((_luminance(colors[one]), _luminance(colors[two])), reverse=True)
        return (a + 0.05) / (b + 0.05)

    for name in ("ink", "soft", "accent", "good", "bad"):
        assert contrast(name, "paper") >= 4.5
        assert contrast(name, "card") >= 4.5
    assert contrast("warn", "warn-soft") >= 4.5
    assert contrast("accent", "accent-soft") >= 4.5
    assert contrast("soft", "accent-soft") >= 4.5
    for index in range(8):
        assert contrast(f"c{index}", "card") >= 3
