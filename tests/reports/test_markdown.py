from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from crossbatch.reports.markdown import literal, render, write_markdown
from crossbatch.reports.runs import read_runs

from .conftest import MakeRun, run_config

if TYPE_CHECKING:
    from pathlib import Path


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def table_after(text: str, heading: str) -> list[list[str]]:
    lines = text.split(f"{heading}\n\n", 1)[1].split("\n\n", 1)[0].splitlines()
    return [cells(line) for line in lines]


def test_results_table_by_hand(make_run: MakeRun) -> None:
    paths = [
        make_run("b0", seed=0, test={"recall@50": 0.10, "ndcg@50": 0.05}),
        make_run("b1", seed=1, test={"recall@50": 0.12, "ndcg@50": 0.05}),
        make_run("m0", sampler="mixed", test={"recall@50": 0.09, "ndcg@50": 0.05}),
    ]
    head, rule, base, mixed = table_after(render(read_runs(paths)), "## Results")
    assert head == [
        "Model", "Negatives", "Seeds", "s / 1000 steps", "Conv. min", "Recall@50", "NDCG@50",
        "Gain, Recall@50",
    ]  # fmt: skip
    assert rule == ["---"] * 2 + ["---:"] * 6
    assert base[1:3] == ["In-batch", "2"]
    assert base[5:] == ["11.00 ± 1.41", "5.00 ± 0.00", "–"]
    assert mixed[1:3] == ["Mixed (MNS)", "1"]
    assert mixed[5:] == ["9.00", "5.00", "−10.0 %"]  # against seed 0 alone, the one both have


def test_hostile_names_break_no_table(make_run: MakeRun) -> None:
    hostile = "a|b\n| c <b>*x*</b> `y`"
    settings = run_config(hostile, {"name": "in_batch", "k|ey": "v|al"}, 0)
    paths = [make_run("ru|n", model=hostile, config=settings), make_run("other")]
    text = render(read_runs(paths))
    for heading in ("## Results", "## Settings that differ", "## Runs"):
        widths = {len(line) for line in table_after(text, heading)}
        assert len(widths) == 1
    assert "<b>" not in re.sub(r"\\<", "", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("plain", "plain"), ("a_b", r"a\_b"), ("x\ny", "x y"), ("<i>|", r"\<i\>\|")],
)
def test_literal(text: str, expected: str) -> None:
    assert literal(text) == expected


def test_unfinished_run(make_run: MakeRun, tmp_path: Path) -> None:
    out = write_markdown(read_runs([make_run("a", finished=False)]), tmp_path / "r.md")
    text = out.read_text()
    assert table_after(text, "## Runs")[2] == ["a", "converged", "0", "300", "–"]
    assert "no result yet" in text
