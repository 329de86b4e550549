"""The tables as Markdown, for a pull request, a README or a notebook.

write_markdown(runs, Path("report.md"))
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from crossbatch.files import write_file
from crossbatch.printing import printable
from crossbatch.reports import formatting, summary
from crossbatch.reports.baseline_tables import HEADS, TUNED_NOTE, tuned_tables
from crossbatch.reports.comparison import Comparison, Row, compare
from crossbatch.reports.formatting import metric_name
from crossbatch.reports.variants import Variant, differing_settings, group_runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from crossbatch.reports.runs import Run

SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def write_markdown(runs: Sequence[Run], out: Path | str) -> Path:
    """Write the report; the file appears whole or not at all."""
    return write_file(Path(out), render(runs).encode("utf-8"))


def render(runs: Sequence[Run]) -> str:
    """Summary, results, settings that differ, and the list of runs."""
    comparison = compare(runs)
    names = ", ".join(name for name in comparison.datasets if name)
    parts = [
        f"# crossbatch report{f': {literal(names)}' if names else ''}",
        _bullets(
            f"**{literal(fact.title)}:** {literal(fact.value)} ({literal(fact.detail)})"
            for fact in summary.facts(comparison, runs)
        ),
    ]
    parts += _titled("Before you quote these numbers", summary.caveats(comparison, runs))
    parts += _titled("Warnings during training", summary.warnings(runs))
    parts.append("## Results")
    for dataset in comparison.datasets:
        if len(comparison.datasets) > 1:
            parts.append(f"### {literal(dataset)}")
        parts.append(
            _results([row for row in comparison.rows if row.dataset == dataset], comparison)
        )
    parts.append(comparison.note)
    parts += _baselines(runs)
    parts += _settings(group_runs(runs))
    parts += ["## Runs", _runs(runs, comparison.headline)]
    return "\n\n".join(part for part in parts if part) + "\n"


def literal(text: str) -> str:
    """Text that Markdown shows as it is: markup and control characters escaped, one line."""
    return SPECIAL.sub(r"\\\1", printable(" ".join(text.split())))


def _results(rows: Sequence[Row], comparison: Comparison) -> str:
    gains = comparison.gain_metrics
    heads = [
        "Model",
        "Negatives",
        "Seeds",
        "s / 1000 steps",
        "Conv. min",
        *(metric_name(key) for key in comparison.table_metrics),
        *(f"Gain, {metric_name(key)}" for key in gains),
    ]
    lines = [
        [
            row.model,
            row.sampler or formatting.NOTHING,
            formatting.seeds(row),
            formatting.amount(row.seconds_per_1000_steps),
            formatting.amount(row.convergence_minutes),
            *(formatting.percent(row.metrics.get(key)) for key in comparison.table_metrics),
            *(formatting.gain(row.gains.get(key)) for key in gains),
        ]
        for row in rows
    ]
    return _table(heads, lines, words=2)


def _baselines(runs: Sequence[Run]) -> list[str]:
    tables = tuned_tables(runs)
    parts = [TUNED_NOTE] if tables else []
    for table in tables:
        parts.append(f"**Tuned baselines, {literal(table.title)}**")
        parts.append(_table(HEADS, table.rows, words=2))
        parts.append(_bullets(literal(text) for text in table.sentences))
    return ["## Baselines", *parts] if parts else []


def _settings(variants: Sequence[Variant]) -> list[str]:
    keys = differing_settings(variants)
    if not keys:
        return []
    lines = [
        [variant.label, *(variant.options.get(key, formatting.NOTHING) for key in keys)]
        for variant in variants
    ]
    return ["## Settings that differ", _table(["Configuration", *keys], lines, words=1 + len(keys))]


def _runs(runs: Sequence[Run], metric: str) -> str:
    lines = []
    for run in runs:
        value = run.metrics().get(metric)
        test = formatting.NOTHING if value is None else f"{100 * value:.2f}"
        seed = formatting.NOTHING if run.seed is None else str(run.seed)
        lines.append([run.name, run.status, seed, f"{run.steps:,}", test])
    heads = ["Run", "State", "Seed", "Steps", f"Test {metric_name(metric)}" if metric else "Test"]
    return _table(heads, lines, words=2)


def _titled(title: str, sentences: Sequence[str]) -> list[str]:
    return [f"**{title}**", _bullets(literal(text) for text in sentences)] if sentences else []


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def pipe_table(heads: Sequence[str], lines: Sequence[Sequence[str]], *, words: int) -> str:
    """A table of Markdown cells; columns after the first `words` are numbers, to the right."""
    rule = ["---" if index < words else "---:" for index in range(len(heads))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, rule, *lines))


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]], *, words: int) -> str:
    """A table of plain text."""
    texts = [[literal(text) for text in line] for line in (heads, *lines)]
    return pipe_table(texts[0], texts[1:], words=words)
