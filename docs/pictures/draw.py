"""Draws the pictures of the documentation.

The pipeline, the logits of a batch, item gradients; and quality against processor time from the
records in results/opponents.

    python docs/pictures/draw.py         # writes *.svg beside this file; a test compares them

Each drawing is a list of shapes. It shares the reports' colours and fonts, and so follows the
reader's light or dark setting.
"""

from __future__ import annotations

import json
import math
from html import escape
from pathlib import Path

from crossbatch.reports.baseline_tables import BASELINE_NAMES
from crossbatch.reports.svg import package_file

HERE = Path(__file__).parent
RECORDS = HERE.parents[1] / "results" / "opponents"
SETS = {
    "ml-1m": "MovieLens-1M",
    "beauty": "Amazon-Beauty",
    "book-1m": "Amazon-Books sample",
    "electronic-1m": "Amazon-Electronics sample",
}
# Where a point's name goes: sides, and where it would run into another name.
SIDES = {
    "above": (0, -9, "middle"),
    "below": (0, 18, "middle"),
    "left": (-9, 4, "end"),
    "right": (9, 4, "start"),
}
LABELS = {
    "Popularity": "right",
    "Item k-NN": "right",
    ("MovieLens-1M", "EASE"): "left",
    ("Amazon-Beauty", "EASE"): "right",
    ("Amazon-Books sample", "RP3β"): "left",
    ("Amazon-Books sample", "ALS"): "below",
    ("Amazon-Electronics sample", "ALS"): "below",
}
STYLE = """
.back { fill: var(--card); } .box { fill: var(--paper); stroke: var(--rule); }
.fold { fill: var(--accent-soft); stroke: var(--accent); } .cell { stroke: var(--card); }
.fill { fill: var(--color); } .light { fill: var(--color); fill-opacity: 0.35; }
.gone { fill: var(--grid); } .arrow { stroke: var(--soft); stroke-width: 1.6; fill: none; }
.head { fill: var(--soft); } .force { stroke: var(--color); stroke-width: 7; fill: none; }
.chart .strong { fill: var(--ink); font-weight: 600; } .chart .word { fill: var(--ink); }
.chart .way { fill: var(--accent); font-weight: 600; }
"""


def picture(width: int, height: int, description: str, *shapes: str) -> str:
    """A whole SVG document."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{escape(description)}">\n'
        f"<style>{package_file('chart.css')}{STYLE}</style>\n"
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" markerUnits="userSpaceOnUse" orient="auto"><path class="head" '
        'd="M0 0L8 4L0 8z"/></marker></defs>\n'
        f'<rect class="back" width="{width}" height="{height}" rx="8"/>\n'
        + "\n".join(shapes)
        + "\n</svg>\n"
    )


def word(x: float, y: float, text: str, css: str = "", anchor: str = "middle") -> str:
    """A line of text; `y` is its base line."""
    return f'<text class="{css}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def box(x: float, y: float, width: float, height: float, *lines: str, css: str = "box") -> str:
    """A rectangle with a bold first line."""
    top = y + height / 2 - 8 * (len(lines) - 1) + 4
    texts = [
        word(x + width / 2, top + 17 * place, line, "strong" if place == 0 else "")
        for place, line in enumerate(lines)
    ]
    frame = f'<rect class="{css}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>'
    return frame + "".join(texts)


def arrow(*points: tuple[float, float]) -> str:
    """A line through points with a tip at the last."""
    path = "L".join(f"{x} {y}" for x, y in points)
    return f'<path class="arrow" marker-end="url(#tip)" d="M{path}"/>'


def cells(x: float, y: float, css: list[list[str]], size: int = 18) -> str:
    """A grid of squares, one class each."""
    return "".join(
        f'<rect class="cell {kind}" x="{x + size * j}" y="{y + size * i}" width="{size}" '
        f'height="{size}"/>'
        for i, row in enumerate(css)
        for j, kind in enumerate(row)
    )


def force(css: str, x: float, y: float, length: float) -> str:
    """A vertical arrow from (x, y); negative lengths point upwards."""
    tip = 10 if length > 0 else -10
    return (
        f'<g class="{css}"><path class="force" d="M{x} {y}v{length:g}"/>'
        f'<path class="fill" d="M{x - 9} {y + length:g}h18l-9 {tip}z"/></g>'
    )


def pipeline() -> str:
    """The folders on disk from a log to answers, the packages between them, and a training step."""
    folders = [
        (16, "log, item table", "CSV, Parquet, …"),
        (200, "dataset", "memory-mapped"),
        (384, "run", "config, journal, best"),
        (568, "bundle", "towers, index, ids"),
        (752, "answers", "lists, HTTP, page"),
    ]
    shapes = [box(x, 42, 132, 52, *lines, css="fold") for x, *lines in folders]
    for x, way in zip(
        (148, 332, 516, 700), ("data", "training", "serving", "serving"), strict=True
    ):
        shapes += [arrow((x, 68), (x + 52, 68)), word(x + 25, 34, way, "way")]
    shapes += [
        arrow((450, 94), (450, 138), (568, 138)),
        word(509, 130, "evaluation", "way"),
        box(568, 122, 132, 32, "metrics, intervals"),
        arrow((700, 138), (752, 138)),
        word(726, 114, "reports", "way"),
        box(752, 122, 132, 32, "one HTML page"),
        word(16, 200, "A training step", "strong", "start"),
        box(16, 216, 116, 48, "history"),
        box(168, 216, 104, 48, "user tower"),
        box(16, 314, 116, 48, "batch of items", "id and content"),
        box(168, 314, 104, 48, "item tower"),
        arrow((132, 240), (168, 240)),
        arrow((132, 338), (168, 338)),
        word(320, 244, "u", "strong"),
        arrow((272, 240), (308, 240)),
        arrow((332, 240), (384, 240)),
        word(320, 342, "v", "strong"),
        arrow((272, 338), (308, 338)),
        arrow((320, 326), (320, 302), (446, 302), (446, 282)),
        box(384, 214, 272, 68, "one softmax per row", "u·v / T − log q  ·  own item masked"),
        arrow((332, 338), (496, 338)),
        word(411, 356, "after the step: enqueue"),
        box(496, 314, 160, 48, "memory bank", "the last M item vectors", css="fold"),
        arrow((576, 314), (576, 282)),
        arrow((656, 338), (696, 338)),
        word(704, 342, "oldest out", "", "start"),
        arrow((656, 248), (696, 248)),
        word(704, 244, "gradients of u and v,", "", "start"),
        word(704, 261, "push balanced for the bank", "", "start"),
    ]
    text = "From a log to answers in folders on disk, and a training step with a memory bank"
    return picture(900, 378, text, *shapes)


def logits() -> str:
    """The logits of a batch: rows are users, columns the items of the batch and the bank."""
    batch, bank = 6, 14
    grid = [["c0 light"] * batch + ["c1 light"] * bank for _ in range(batch)]
    for i in range(batch):
        grid[i][i] = "c3 fill"
    for i, j in ((1, 4), (4, 1), (2, 11), (5, 15)):
        grid[i][j] = "gone"
    left, top, size = 112, 66, 24
    edge = left + size * batch
    end = left + size * (batch + bank)
    shapes = [
        cells(left, top, grid, size),
        word(left + size * batch / 2, 34, "the batch: B columns", "strong"),
        word(left + size * batch / 2, 52, "with gradient"),
        word((edge + end) / 2, 34, "the bank: M columns", "strong"),
        word((edge + end) / 2, 52, "cached, no graph: one matrix product"),
        word(100, top + 54, "B users", "strong", "end"),
        word(100, top + 72, "one softmax", "", "end"),
        word(100, top + 88, "a row", "", "end"),
        arrow((left + 6, 228), (end - 10, 228)),
        word(left, 246, "newest", "", "start"),
        word(end, 246, "oldest", "", "end"),
    ]
    legend = [("c3 fill", "own positive"), ("c0 light", "in-batch negative"),
              ("c1 light", "cached negative"), ("gone", "same item: masked")]  # fmt: skip
    for place, (css, text) in enumerate(legend):
        x = 40 + 148 * place
        shapes += [cells(x, 262, [[css]], 14), word(x + 20, 274, text, "word", "start")]
    return picture(640, 292, "The logits of a batch with a memory bank", *shapes)


def forces() -> str:
    """Pull and push on the items of a batch, for three kinds of item gradient."""
    cases = [
        ("in-batch", 1.0, 1.0, "pull = push", "vectors stay spread"),
        ("bank, as published", 1.0, 0.12, "most of the push is gone", "items drift together"),
        ("bank, balanced", 1.0, 1.0, "the rest × (B − 1 + M)/(B − 1)", "pull = push again"),
    ]  # fmt: skip
    shapes = []
    for place, (title, pull, push, first, second) in enumerate(cases):
        x, middle = 110 + 213 * place, 118
        shapes += [
            word(x, 28, title, "strong"),
            force("c3", x - 26, middle, -62 * pull),
            force("c4", x + 26, middle, 62 * push),
            f'<circle class="head" cx="{x}" cy="{middle}" r="6"/>',
            word(x - 38, 82, "pull", "", "end"),
            word(x + 38, middle + (20 if push > 0.5 else 12), "push", "", "start"),
            word(x, 206, first),
            word(x, 224, second, "word"),
        ]
    return picture(640, 240, "Item-side gradient under three item gradients", *shapes)


def quality() -> str:
    """Recall against processor time on four data sets: the defaults, and tuned baselines."""
    shapes = [word(330, 24, "recall@50 of test users, and CPU seconds of one thread", "strong")]
    for place, (name, title) in enumerate(SETS.items()):
        record = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
        points = [
            (row["tuning_cpu_seconds"], row["test"]["recall@50"], label(row["name"]), "c0")
            for row in record["opponents"]
            if "left_out" not in row
        ]
        costs = [sum(run["cpu_seconds"].values()) for run in record["ours"]["runs"]]
        ours = (sum(costs) / len(costs), record["ours"]["means"]["recall@50"][0])
        points.append((*ours, "crossbatch", "c1"))
        left, top = 52 + 318 * (place % 2), 58 + 206 * (place // 2)
        shapes += panel(left, top, title, points)
    shapes.append(word(330, 452, "seconds: race and training, or the whole tuning of a baseline"))
    return picture(660, 466, "Recall against processor time on four data sets", *shapes)


def label(name: str) -> str:
    """A baseline's short name."""
    return BASELINE_NAMES[name].removesuffix(" (implicit)")


def panel(
    left: float, top: float, title: str, points: list[tuple[float, float, str, str]]
) -> list[str]:
    """A chart of (seconds, recall, name, colour); seconds in powers of ten."""
    width, height, decades = 250, 140, (-2, 3)
    best = max(recall for _, recall, _, _ in points)
    most = next(step for step in (0.15, 0.25, 0.4, 0.6, 1.0) if step > 1.1 * best)
    shapes = [word(left, top - 8, title, "strong", "start")]
    for power in range(decades[0], decades[1] + 1):
        x = left + width * (power - decades[0]) / (decades[1] - decades[0])
        shapes.append(line("grid", x, top, x, top + height))
        shapes.append(word(x, top + height + 16, f"{10**power:g}"))
    for part in range(6):
        y = top + height * (1 - part / 5)
        shapes.append(line("axis" if part == 0 else "grid", left, y, left + width, y))
        if part % 2 == 0:
            shapes.append(word(left - 6, y + 4, f"{20 * part * most:.3g} %", "", "end"))
    for seconds, recall, name, color in points:
        share = (math.log10(seconds) - decades[0]) / (decades[1] - decades[0])
        x, y = left + width * min(1, max(0, share)), top + height * (1 - recall / most)
        shapes.append(
            f'<circle class="{color} best" cx="{x:.1f}" cy="{y:.1f}" r="5">'
            f"<title>{name}: {100 * recall:.1f} %, {seconds:.0f} s</title></circle>"
        )
        dx, dy, anchor = SIDES[LABELS.get((title, name), LABELS.get(name, "above"))]
        css = "strong" if color == "c1" else "word"
        shapes.append(word(round(x + dx, 1), round(y + dy, 1), name, css, anchor))
    return shapes


def line(css: str, x1: float, y1: float, x2: float, y2: float) -> str:
    """A straight line."""
    return f'<line class="{css}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


DRAWINGS = {
    "pipeline.svg": pipeline,
    "logits.svg": logits,
    "forces.svg": forces,
    "quality.svg": quality,
}

if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (HERE / name).write_text(draw(), encoding="utf-8")
