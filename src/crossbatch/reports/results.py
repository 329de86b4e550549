"""The results of the page: one table per data set, and bars for the headline metric."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from crossbatch.reports import cells, svg
from crossbatch.reports.markup import figure, fold, head_cells, table
from crossbatch.reports.tables import TABLE_NOTE, Comparison, Row, metric_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from crossbatch.reports.gains import Gain

MARKS_NOTE = "▲ and ▼ mark intervals that leave out zero. Bold: best of the column."
GAIN_REACH = (-1.0, 1.0)  # per cent: less is noise and must look small
VERDICT_CLASSES = {"better": "good", "worse": "bad", "unclear": "unclear", "": ""}
VERDICT_MARKS = {"better": "▲ ", "worse": "▼ ", "unclear": "", "": ""}


def result_tables(comparison: Comparison) -> str:
    """One row per configuration: cost, metrics, and gain over in-batch."""
    parts = []
    for dataset in comparison.datasets:
        if len(comparison.datasets) > 1:
            parts.append(f"<h3>{escape(dataset)}</h3>")
        rows = [row for row in comparison.rows if row.dataset == dataset]
        parts.append(_table(comparison, rows))
        parts.append(f'<p class="footnote">{escape(TABLE_NOTE)} {MARKS_NOTE}</p>')
        inside = _all_metrics(comparison, rows)
        note = "each with its gain over in-batch, in %"
        parts.append(fold("All metrics", note, inside, is_open=False))
    return "".join(parts)


def result_bars(comparison: Comparison, colors: Mapping[str, int]) -> str:
    """Bars of the headline metric, and of its gain over in-batch, per data set and model."""
    metric = comparison.headline
    figures = []
    for dataset in comparison.datasets:
        rows = [row for row in comparison.rows if row.dataset == dataset and metric in row.metrics]
        baselines = [row for row in rows if row.variant is None]
        for model in dict.fromkeys(row.model for row in rows if row.variant):
            own = [row for row in rows if row.variant and row.model == model]
            place = " · ".join(
                filter(None, [model, dataset if len(comparison.datasets) > 1 else ""])
            )
            figures.append(_metric_bars(metric, place, [*baselines, *own], colors))
            figures.append(_gain_bars(metric, place, own, colors))
    return "".join(figures)


def _table(comparison: Comparison, rows: Sequence[Row]) -> str:
    gains = comparison.gain_metrics
    best = {
        key: max((row.metrics[key].mean for row in rows if key in row.metrics), default=0.0)
        for key in comparison.table_metrics
    }
    numbers = [
        "Seeds",
        "Avg. time\ns / 1000\nsteps",
        "Conv.\ntime\nminutes",
        *(metric_name(key).replace(" (", "\n(") for key in comparison.table_metrics),
        *(f"Gain over\nin-batch\n{metric_name(key).replace(' (', chr(10) + '(')}" for key in gains),
    ]
    head = head_cells(["Negatives"], "stick") + head_cells(numbers, "number")
    bodies = [
        _group(name, 1 + len(numbers)) + "".join(_row(row, best, gains) for row in group)
        for name, group in _by_model(rows).items()
    ]
    return table("Results", head, *bodies, css="results")


def _all_metrics(comparison: Comparison, rows: Sequence[Row]) -> str:
    """Every metric the runs wrote, each with its gain."""
    keys = comparison.metrics
    names = [metric_name(key).replace(" (", "\n(") for key in keys]
    head = head_cells(["Negatives"], "stick") + head_cells(names, "number")
    bodies = []
    for name, group in _by_model(rows).items():
        body = _group(name, 1 + len(keys))
        for row in group:
            values = "".join(_metric_and_gain(row, key) for key in keys)
            body += f'<tr><th scope="row" class="stick">{escape(_name(row))}</th>{values}</tr>'
        bodies.append(body)
    return table("All metrics", head, *bodies, css="results")


def _by_model(rows: Sequence[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.model if row.variant else "Baselines", []).append(row)
    return groups


def _name(row: Row) -> str:
    return row.sampler or row.model


def _group(name: str, width: int) -> str:
    head = f'<th scope="rowgroup" colspan="{width}"><span>{escape(name)}</span></th>'
    return f'<tr class="group">{head}</tr>'


def _row(row: Row, best: Mapping[str, float], gains: Sequence[str]) -> str:
    parts = [
        f'<th scope="row" class="stick">{escape(_name(row))}</th>',
        _number(cells.seeds(row)),
        _number(cells.amount(row.seconds_per_1000_steps)),
        _number(cells.amount(row.convergence_minutes)),
    ]
    for key, top in best.items():
        value = row.metrics.get(key)
        parts.append(_number(cells.percent(value), bold=value is not None and value.mean == top))
    parts += [_gain(row.gains.get(key)) for key in gains]
    return f"<tr>{''.join(parts)}</tr>"


def _metric_and_gain(row: Row, key: str) -> str:
    value, gain = row.metrics.get(key), row.gains.get(key)
    tail = f'<span class="interval">{escape(cells.gain(gain))}</span>' if gain else ""
    return f'<td class="number">{escape(cells.percent(value))}{tail}</td>'


def _number(text: str, *, bold: bool = False) -> str:
    value, sign, spread = escape(text).partition(" ± ")
    tail = f' <span class="spread">± {spread}</span>' if sign else ""
    return f'<td class="number{" top" if bold else ""}">{value}{tail}</td>'


def _gain(gain: Gain | None) -> str:
    if gain is None:
        return _number(cells.NOTHING)
    value, _, interval = cells.gain(gain).partition(" [")
    word = cells.verdict(gain)
    tail = f'<span class="interval">[{escape(interval)}</span>' if interval else ""
    return (
        f'<td class="number"><span class="{VERDICT_CLASSES[word]}">{VERDICT_MARKS[word]}'
        f"{escape(value)}</span>{tail}</td>"
    )


def _metric_bars(metric: str, place: str, rows: Sequence[Row], colors: Mapping[str, int]) -> str:
    bars = []
    for row in rows:
        value = row.metrics[metric]
        interval = None
        if value.spread is not None:
            interval = (100 * (value.mean - value.spread), 100 * (value.mean + value.spread))
        elif len(row.runs) == 1 and (users := row.runs[0].interval(metric)):
            interval = (100 * users[0], 100 * users[1])
        label = row.sampler or row.model
        bars.append(
            svg.Bar(label, 100 * value.mean, cells.percent(value), colors.get(label), interval)
        )
    title = f"Test {metric_name(metric)}, % · {place}"
    note = "Whiskers: ± one standard deviation over seeds; of a single seed, 95 % over users."
    return figure(title, note, svg.bar_chart(bars, _describe(title, bars)))


def gain_bars(metric: str, rows: Sequence[Row], colors: Mapping[str, int]) -> list[svg.Bar]:
    """A bar for each row that has a gain in the metric, in per cent."""
    return [
        svg.Bar(
            row.sampler,
            100 * gain.relative,
            f"{cells.signed(gain.relative)} %",
            colors.get(row.sampler),
            (100 * gain.interval[0], 100 * gain.interval[1]) if gain.interval else None,
        )
        for row in rows
        if (gain := row.gains.get(metric))
    ]


def _gain_bars(metric: str, place: str, rows: Sequence[Row], colors: Mapping[str, int]) -> str:
    bars = gain_bars(metric, rows, colors)
    if not bars:
        return ""
    title = f"Gain over in-batch, {metric_name(metric)} · {place}"
    note = "Whiskers: 95 % paired bootstrap over users and seeds."
    return figure(title, note, svg.bar_chart(bars, _describe(title, bars), reach=GAIN_REACH))


def _describe(title: str, bars: Sequence[svg.Bar]) -> str:
    return f"{title}. " + "; ".join(f"{bar.label}: {bar.text}" for bar in bars)
