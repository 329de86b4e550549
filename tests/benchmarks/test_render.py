"""The performance page is rendered from benchmark results, but not from quick runs."""

import json

import pytest

import render

PAGE = "before\n<!-- memory -->\nold\n<!-- /memory -->\nafter\n"
MEMORY = {
    "quick": False,
    "opening_seconds": 0.0012,
    "training": {"mind": {"peak_mb": 1234.5, "seconds": 60.0}},
}


def run(tmp_path, monkeypatch, document):
    (tmp_path / "memory.json").write_text(json.dumps(document))
    (tmp_path / "page.md").write_text(PAGE)
    words = ["render.py", "--results", str(tmp_path), "--page", str(tmp_path / "page.md")]
    monkeypatch.setattr("sys.argv", words)
    render.main()
    return (tmp_path / "page.md").read_text()


def test_sections_are_replaced_and_the_rest_is_kept(tmp_path, monkeypatch):
    page = run(tmp_path, monkeypatch, MEMORY)
    assert page.startswith("before\n<!-- memory -->\n")
    assert page.endswith("<!-- /memory -->\nafter\n")
    assert "old" not in page
    assert "| mind | 1,234 | ≤ 1,200 | missed |" in page
    assert "opens in 1.2 ms" in page


def test_quick_runs_are_ignored(tmp_path, monkeypatch):
    assert run(tmp_path, monkeypatch, MEMORY | {"quick": True}) == PAGE


def test_a_missing_section_is_an_error(tmp_path):
    with pytest.raises(SystemExit, match="no section memory"):
        render.rendered("nothing here", {"memory": MEMORY})


def test_the_real_page_has_every_section():
    page = render.PAGE.read_text()
    for section in render.SECTIONS:
        assert f"<!-- {section} -->" in page
        assert f"<!-- /{section} -->" in page
