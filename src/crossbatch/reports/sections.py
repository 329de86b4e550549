"""The sections of the page beside results and curves: summary, runs, settings, machine, examples.

Every function returns escaped HTML; an empty string leaves the section out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from crossbatch.reports import cells, summary
from crossbatch.reports.journal import number
from crossbatch.reports.markup import box, bullets, data_cells, fold, head_cells, pairs, table
from crossbatch.reports.tables import Comparison, metric_name
from crossbatch.reports.variants import Variant, differing_keys, telling_settings

if TYPE_CHECKING:
    from crossbatch.reports.runs import Run

MAX_EXAMPLES = 6


def summary_section(comparison: Comparison, runs: Sequence[Run]) -> str:
    """Headline numbers, what to be careful about, and what the runs warned of."""
    facts = "".join(
        f'<div><dt>{escape(fact.title)}</dt><dd class="value">{escape(fact.value)}</dd>'
        f'<dd class="detail">{escape(fact.detail)}</dd></div>'
        for fact in summary.facts(comparison, runs)
    )
    return (
        f'<dl class="facts">{facts}</dl>'
        + box("Before you quote these numbers", summary.caveats(comparison, runs))
        + box("Warnings during training", summary.warnings(runs))
    )


def runs_section(runs: Sequence[Run], metric: str, out: Path) -> str:
    """Every run with its state and its own numbers, linked to its folder."""
    test = f"Test {metric_name(metric)}, %" if metric else "Test"
    head = head_cells(["Run", "State", "Seed", "Started", "Steps", "Best step", test])
    body = "".join(
        f'<tr><th scope="row"><a href="{escape(_link(run, out))}">{escape(run.name)}</a></th>'
        f"{data_cells(_run_texts(run, metric))}</tr>"
        for run in runs
    )
    return table("Runs", head, body)


def configuration_section(variants: Sequence[Variant]) -> str:
    """What differs between configurations as a table, what they share folded away."""
    if not any(variant.options for variant in variants):
        return ""
    keys = telling_settings(variants)
    parts = []
    if keys:
        body = "".join(
            f'<tr><th scope="row" class="stick">{escape(variant.label)}</th>'
            f"{data_cells((variant.options.get(key, cells.NOTHING) for key in keys), 'mono')}</tr>"
            for variant in variants
        )
        head = head_cells(["Configuration"], "stick") + head_cells(keys, "mono")
        parts.append(table("Settings that differ", head, body))
    elif len(variants) > 1:
        parts.append("<p>The configurations differ in model and sampler alone.</p>")
    differing = differing_keys([variant.options for variant in variants])
    shared = {k: value for k, value in variants[0].options.items() if k not in differing}
    if shared:
        title = "Shared by all configurations" if len(variants) > 1 else "All settings"
        note = cells.count(len(shared), "setting")
        parts.append(fold(title, note, pairs(title, shared), is_open=len(variants) == 1))
    return "".join(parts)


def environment_section(runs: Sequence[Run]) -> str:
    """Versions and hardware, once per distinct machine."""
    machines: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for run in runs:
        if key := tuple(_environment(run).items()):
            machines.setdefault(key, []).append(run.name)
    parts = []
    for machine, names in machines.items():
        if len(machines) > 1:
            rest = f" and {cells.count(len(names) - 1, 'other run')}" if len(names) > 1 else ""
            parts.append(f"<h3>{escape(names[0])}{rest}</h3>")
        parts.append(pairs("Environment", dict(machine)))
    return "".join(parts)


def examples_section(runs: Sequence[Run]) -> str:
    """Recommendations for a few users, where a run folder holds `examples.json`."""
    parts: list[str] = []
    for run in runs:
        articles = "".join(_example(example) for example in run.examples[:MAX_EXAMPLES])
        if articles:
            inside = f'<div class="examples">{articles}</div>'
            parts.append(fold(run.name, "", inside, is_open=not parts))
    return "".join(parts)


def _link(run: Run, out: Path) -> str:
    relative = os.path.relpath(run.path.resolve(), out.resolve().parent)
    return quote(Path(relative).as_posix()) + "/"


def _run_texts(run: Run, metric: str) -> list[str]:
    start = run.journal.of("start")
    started = str(start[0].get("time") or "")[:16].replace("T", " ") if start else ""
    value, interval, best = (
        run.metrics().get(metric),
        run.interval(metric),
        number(run.result.get("best_step")),
    )
    test = cells.NOTHING if value is None else f"{100 * value:.2f}"
    if value is not None and interval is not None:
        test += f" [{100 * interval[0]:.2f}, {100 * interval[1]:.2f}]"
    return [
        run.status,
        cells.NOTHING if run.seed is None else str(run.seed),
        started or cells.NOTHING,
        f"{run.steps:,}",
        cells.NOTHING if best is None else f"{best:,.0f}",
        test,
    ]


def _environment(run: Run) -> dict[str, str]:
    start = run.journal.of("start")
    found = run.config.get("environment") or (start[0].get("environment") if start else None)
    values = found if isinstance(found, Mapping) else {}
    version = {"crossbatch": str(run.config["version"])} if "version" in run.config else {}
    return version | {
        str(key): cells.NOTHING if value is None else str(value) for key, value in values.items()
    }


def _example(example: Mapping[str, Any]) -> str:
    history, targets = _titles(example.get("history")), _titles(example.get("targets"))
    ranked = example.get("recommended")
    items = [_recommended(entry, targets) for entry in ranked] if isinstance(ranked, list) else []
    return (
        f"<article><h4>History</h4>{bullets(history)}<h4>Recommended</h4><ol>{''.join(items)}</ol>"
        f"<h4>What came next</h4>{bullets(targets)}</article>"
    )


def _recommended(entry: object, targets: Sequence[str]) -> str:
    fields = entry if isinstance(entry, Mapping) else {"title": entry}
    title, score = str(fields.get("title", "")), number(fields.get("score"))
    text = f'<span class="hit-item">{escape(title)} ✓</span>' if title in targets else escape(title)
    tail = "" if score is None else f' <span class="score">{score:.3f}</span>'
    return f"<li>{text}{tail}</li>"


def _titles(values: object) -> list[str]:
    return [str(value) for value in values] if isinstance(values, list) else []
