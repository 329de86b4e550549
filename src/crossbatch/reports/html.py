"""One self-contained HTML page: no network, no library, light and dark, phone and paper.

    write_html(runs, Path("report.html"))

`templates/report.html` holds the markup and escapes every text; this module prepares what it shows.
The page forbids itself every request by a content security policy; its one script is named there
by hash, so a hostile title could not run even if it were not escaped.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from markupsafe import Markup

from crossbatch.files import write_file
from crossbatch.reports import formatting, plots, summary, svg
from crossbatch.reports.baseline_tables import HEADS, TUNED_NOTE, tuned_tables
from crossbatch.reports.comparison import MARKS_NOTE, Comparison, Row, compare
from crossbatch.reports.formatting import NOTHING, metric_name
from crossbatch.reports.journal import follow, number
from crossbatch.reports.variants import Variant, differing_keys, differing_settings, group_runs

if TYPE_CHECKING:
    from crossbatch.reports.runs import Run

MAX_EXAMPLES = 6
TERMS = {
    "Recall@k": "share of a user's held-out items among the first k, averaged over users.",
    "NDCG@k": "textbook: gain 1 / log2(rank + 1), ideal over min(number of held-out items, k).",
    "NDCG@k (paper)": "the variant behind the paper's tables (ComiRec's): the discount follows the "
    "position in the held-out list and the ideal counts only the hits, so it exceeds recall.",
    "(unseen)": "items that the user has had before are never recommended, and targets that repeat "
    "one of them are dropped; without it, everything may be recommended, as in the paper.",
    "Avg. time": "training seconds per 1000 mini-batches, evaluation left out.",
    "Conv. time": "minutes until the early stop, evaluations included.",
}


def write_html(runs: Sequence[Run], out: Path | str) -> Path:
    """Write the page; the file appears whole or not at all."""
    out = Path(out)
    return write_file(out, render(runs, out).encode("utf-8"))


def render(runs: Sequence[Run], out: Path) -> str:
    """The whole page as text, for the file `out` (links to run folders are relative to it)."""
    names = ("amount", "count", "gain", "percent", "seeds", "verdict")
    page = svg.template_environment(**{name: getattr(formatting, name) for name in names})
    comparison, variants = compare(runs), group_runs(runs)
    differing = differing_keys([variant.options for variant in variants])
    script = svg.package_file("page.js")
    return page.get_template("report.html").render(
        title=_title(comparison),
        subtitle=_subtitle(runs, comparison),
        policy=_policy(script),
        style=Markup(svg.package_file("chart.css") + svg.package_file("page.css")),  # noqa: S704 (ours)
        script=Markup(script),  # noqa: S704 (ours)
        runs=runs,
        comparison=comparison,
        definitions=TERMS,
        facts=summary.facts(comparison, runs),
        caveats=summary.caveats(comparison, runs),
        warnings=summary.warnings(runs),
        table_note=comparison.note,
        marks_note=MARKS_NOTE,
        variants=variants,
        differing=differing_settings(variants),
        shared={key: value for key, value in variants[0].options.items() if key not in differing},
        tuned_tables=tuned_tables(runs),
        baseline_heads=HEADS,
        tuned_note=TUNED_NOTE,
        **_results(comparison),
        **_charts(comparison, variants),
        **_runs(runs, comparison.headline, out),
    )


def _results(comparison: Comparison) -> dict[str, Any]:
    """Rows by data set and model, and the best mean of each column."""
    tables: dict[str, dict[str, list[Row]]] = {name: {} for name in comparison.datasets}
    best: dict[tuple[str, str], float] = {}
    for row in comparison.rows:
        if row.dataset not in tables:
            continue
        model = row.model if row.variant else "Baselines"
        tables[row.dataset].setdefault(model, []).append(row)
        for key, value in row.metrics.items():
            best[row.dataset, key] = max(value.mean, best.get((row.dataset, key), 0.0))
    return {
        "tables": tables,
        "best": best,
        "result_heads": [
            "Seeds",
            "Avg. time\ns / 1000\nsteps",
            "Conv.\ntime\nminutes",
            *(_broken_name(key) for key in comparison.table_metrics),
            *(f"Gain over\nin-batch\n{_broken_name(key)}" for key in comparison.gain_metrics),
        ],
        "metric_heads": [_broken_name(key) for key in comparison.metrics],
    }


def _broken_name(metric: str) -> str:
    return metric_name(metric).replace(" (", "\n(")


def _charts(comparison: Comparison, variants: Sequence[Variant]) -> dict[str, Any]:
    """Bars of the results, curves of all runs, and diagnostics of each."""
    colors = plots.colors_of(variants)
    health = []
    for variant in variants:
        for run in variant.runs:
            found = plots.diagnostic_plots(run, colors[variant.sampler_name])
            if found:
                note = f"{variant.label} · {run.status} · {run.steps:,} steps"
                charts = [_figure(plot, svg.line_chart(plot, svg.SMALL)) for plot in found]
                health.append((run, note, charts))
    return {
        "bars": [
            _figure(chart, svg.bar_chart(chart)) for chart in plots.result_bars(comparison, colors)
        ],
        "charts": [
            _figure(plot, svg.line_chart(plot), {line.label: line.color for line in plot.lines})
            for plot in plots.training_plots(variants, comparison.headline)
        ],
        "health": health,
    }


def _figure(
    chart: plots.Plot | plots.BarChart, drawn: Markup, legend: Mapping[str, int] = {}
) -> dict[str, Any]:
    return {
        "title": chart.title,
        "note": chart.note,
        "svg": drawn,
        "legend": [
            {"label": label, "css": svg.series_class(color), "dash": svg.dash(color)}
            for label, color in legend.items()
        ],
    }


def _runs(runs: Sequence[Run], metric: str, out: Path) -> dict[str, Any]:
    """Every run with its own numbers and a link to its folder, its examples, and its machine."""
    machines: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for run in runs:
        if key := tuple(_environment(run).items()):
            machines.setdefault(key, []).append(run.name)
    return {
        "test_head": f"Test {metric_name(metric)}, %" if metric else "Test",
        "run_rows": [(run, _link(run, out), _run_texts(run, metric)) for run in runs],
        "example_users": [
            (run, [_example(user) for user in run.examples[:MAX_EXAMPLES]])
            for run in runs
            if run.examples
        ],
        "machines": [(names, dict(machine)) for machine, names in machines.items()],
    }


def _link(run: Run, out: Path) -> str:
    relative = os.path.relpath(run.path.resolve(), out.resolve().parent)
    return quote(Path(relative).as_posix()) + "/"


def _run_texts(run: Run, metric: str) -> list[str]:
    start = run.journal.of("start")
    started = str(start[0].get("time") or "")[:16].replace("T", " ") if start else ""
    value, interval = run.metrics().get(metric), run.interval(metric)
    best = number(run.result.get("best_step"))
    test = NOTHING if value is None else f"{100 * value:.2f}"
    if value is not None and interval is not None:
        test += f" [{100 * interval[0]:.2f}, {100 * interval[1]:.2f}]"
    return [
        run.status,
        NOTHING if run.seed is None else str(run.seed),
        started or NOTHING,
        f"{run.steps:,}",
        NOTHING if best is None else f"{best:,.0f}",
        test,
    ]


def _environment(run: Run) -> dict[str, str]:
    start = run.journal.of("start")
    found = run.config.get("environment") or follow(start[0] if start else {}, "environment")
    values = found if isinstance(found, Mapping) else {}
    version = {"crossbatch": str(run.config["version"])} if "version" in run.config else {}
    return version | {
        str(key): NOTHING if value is None else str(value) for key, value in values.items()
    }


def _example(example: Mapping[str, Any]) -> dict[str, Any]:
    """A user's history, list and targets as texts, whatever the file holds."""
    ranked = example.get("recommended")
    entries = ranked if isinstance(ranked, list) else []
    fields = [entry if isinstance(entry, Mapping) else {"title": entry} for entry in entries]
    return {
        "history": _titles(example.get("history")),
        "targets": _titles(example.get("targets")),
        "recommended": [
            (str(field.get("title", "")), number(field.get("score"))) for field in fields
        ],
    }


def _titles(values: object) -> list[str]:
    return [str(value) for value in values] if isinstance(values, list) else []


def _title(comparison: Comparison) -> str:
    names = [name for name in comparison.datasets if name]
    return f"crossbatch · {', '.join(names)}" if names else "crossbatch report"


def _subtitle(runs: Sequence[Run], comparison: Comparison) -> str:
    configurations = sum(row.variant is not None for row in comparison.rows)
    parts = [
        formatting.count(len(runs), "run"),
        formatting.count(configurations, "configuration"),
    ]
    sizes = {
        (run.result.get("num_users"), run.result.get("num_items")) for run in runs if run.finished
    }
    if len(sizes) == 1:
        users, items = sizes.pop()
        if isinstance(users, int) and isinstance(items, int):
            parts.append(f"{users:,} test users, {items:,} items")
    return " · ".join(parts)


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return (
        "default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )
