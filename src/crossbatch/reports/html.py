"""One self-contained HTML page: no network, no library, light and dark, phone and paper.

    write_html(runs, Path("report.html"))

The page forbids itself every request by a content security policy; its one script is named there
by hash, so a hostile title could not run even if it were not escaped.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape
from typing import TYPE_CHECKING

from crossbatch.files import write_file
from crossbatch.reports import cells, svg
from crossbatch.reports.curves import colors_of, diagnostic_plots, training_plots
from crossbatch.reports.markup import figure, fold, plot_figure
from crossbatch.reports.output import package_file
from crossbatch.reports.results import result_bars, result_tables
from crossbatch.reports.sections import (
    configuration_section,
    environment_section,
    examples_section,
    runs_section,
    summary_section,
)
from crossbatch.reports.tables import Comparison, compare
from crossbatch.reports.variants import group_runs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from crossbatch.reports.runs import Run

OPEN_DIAGNOSTICS = 2  # with more runs than this, their diagnostics start folded

TERMS = {
    "Recall@k": "share of a user's held-out items among the first k, averaged over users.",
    "NDCG@k": "textbook: gain 1 / log2(rank + 1), ideal over min(number of held-out items, k).",
    "NDCG@k (paper)": "the variant behind the paper's tables (ComiRec's): the discount follows the "
    "position in the held-out list and the ideal counts only the hits, so it exceeds recall.",
    "Avg. time": "training seconds per 1000 mini-batches, evaluation left out.",
    "Conv. time": "minutes until the early stop, evaluations on the way included.",
}


def write_html(runs: Sequence[Run], out: Path) -> Path:
    """Write the page; the file appears whole or not at all."""
    return write_file(out, render(runs, out).encode("utf-8"))


def render(runs: Sequence[Run], out: Path) -> str:
    """The whole page as text.

    Args:
        runs: what to show, in this order.
        out: where the page will lie, for the links to the run folders.
    """
    comparison = compare(runs)
    sections = {
        name: (title, lead, inside)
        for name, title, lead, inside in _sections(runs, comparison, out)
        if inside
    }
    style, script = package_file("chart.css") + package_file("page.css"), package_file("page.js")
    links = "".join(
        f'<li><a href="#{name}">{escape(title)}</a></li>'
        for name, (title, _, _) in sections.items()
    )
    body = "".join(
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">'
        f'{escape(title)}</h2><p class="lead">{escape(lead)}</p>{inside}</section>'
        for name, (title, lead, inside) in sections.items()
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">'
        f"<title>{escape(_title(comparison))}</title><style>{style}</style></head><body>"
        '<a class="skip" href="#main">Skip to the report</a><div class="page">'
        f"<header><h1>{escape(_title(comparison))}</h1>"
        '<button type="button" id="theme" hidden>Light / dark</button>'
        f"<p>{escape(_subtitle(runs, comparison))}</p></header>"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav><main id="main">{body}</main>'
        "<footer>Written by <code>crossbatch report</code> from run folders; every number can be "
        "recomputed from them.</footer>"
        f"</div><script>{script}</script></body></html>\n"
    )


def _sections(
    runs: Sequence[Run], comparison: Comparison, out: Path
) -> list[tuple[str, str, str, str]]:
    """Name, title, lead and inside of every section, in the order of the page."""
    variants = group_runs(runs)
    bars = result_bars(comparison, colors_of(variants))
    results = result_tables(comparison)
    if bars:
        results += f'<h3>At a glance</h3><div class="figures pair">{bars}</div>'
    plots = "".join(plot_figure(plot) for plot in training_plots(variants, comparison.headline))
    curves = f'<div class="figures">{plots}</div>' if plots else ""
    return [
        ("summary", "Summary", "", summary_section(comparison, runs)),
        ("results", "Results", "", results),
        ("curves", "Curves", "One line per run; a dot marks its best evaluation.", curves),
        ("diagnostics", "Diagnostics", "What each run wrote about its health.", _health(runs)),
        (
            "examples",
            "Examples",
            "✓ marks what the user really chose next.",
            examples_section(runs),
        ),
        ("configuration", "Configuration", "", configuration_section(variants)),
        ("runs", "Runs", "", runs_section(runs, comparison.headline, out)),
        ("environment", "Environment", "", environment_section(runs)),
        ("terms", "Terms", "", _terms()),
    ]


def _health(runs: Sequence[Run]) -> str:
    parts = []
    variants = group_runs(runs)
    for variant in variants:
        color = colors_of(variants)[variant.sampler_name]
        for run in variant.runs:
            plots = diagnostic_plots(run, color)
            charts = "".join(
                figure(plot.title, plot.note, svg.line_chart(plot, svg.SMALL)) for plot in plots
            )
            if charts:
                inside = f'<div class="multiples">{charts}</div>'
                note = f"{variant.label} · {run.status} · {run.steps:,} steps"
                parts.append(fold(run.name, note, inside, is_open=len(runs) <= OPEN_DIAGNOSTICS))
    return "".join(parts)


def _terms() -> str:
    items = "".join(f"<dt>{escape(key)}</dt><dd>{escape(text)}</dd>" for key, text in TERMS.items())
    return f'<dl class="terms">{items}</dl>'


def _title(comparison: Comparison) -> str:
    names = [name for name in comparison.datasets if name]
    return f"crossbatch · {', '.join(names)}" if names else "crossbatch report"


def _subtitle(runs: Sequence[Run], comparison: Comparison) -> str:
    configurations = sum(row.variant is not None for row in comparison.rows)
    parts = [cells.count(len(runs), "run"), cells.count(configurations, "configuration")]
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
