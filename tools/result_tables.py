"""Rebuild results/ from its records, and the tables of the pages that show them.

    python tools/result_tables.py

Each data set has one file of records, `results/<set>/records.tar.xz`; its tables and figures are
written anew from it, the figures that the documentation shows are copied to docs/results/, and the
tables are written into the pages between their marks. A mark names a table and its arguments,
`<!-- results: table1 book-1m -->`; all up to `<!-- /results -->` is replaced.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossbatch.reports import formatting
from crossbatch.reports.baseline_tables import BASELINE_NAMES
from crossbatch.reports.comparison import Estimate, Gain
from crossbatch.reports.journal import Curve
from crossbatch.reports.markdown import pipe_table
from crossbatch.reports.plots import Line, Plot
from crossbatch.reports.svg import write_panels
from crossbatch.reproduce.experiments import WRITERS
from crossbatch.reproduce.folder import GridFolder
from crossbatch.reproduce.tables import PAPER_TABLE1

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
sys.path.append(str(ROOT / "benchmarks"))

from auto_quality import write_judgement  # noqa: E402 (a script outside the package)
from bank_map import RULES, TOWERS, equivalent_batch, measured_cells  # noqa: E402
from bank_rule import judged, read_cells  # noqa: E402
from tower_study import DEFAULT, measured, recorded  # noqa: E402

PAGES = (
    "README.md",
    "docs/results.md",
    "docs/negatives.md",
    "docs/evaluation.md",
    "docs/settings.md",
    "docs/comparison.md",
    "docs/concepts/when-a-bank-pays.md",
)
FIGURES = {  # of docs/results/
    "book-1m": ("curves", "gain", "table2"),
    "book-1m/short-6000": ("drift", "lemma"),
}
KEPT = (".md", ".csv", ".json", ".svg")  # no PNG and PDF, which differ from version to version
MARKED = re.compile(r"(<!-- results: ([^>]+) -->\n).*?(<!-- /results -->)", re.DOTALL)
MODELS = {
    "youtube_dnn": "YouTube DNN",
    "gru4rec": "GRU4REC",
    "mind": "MIND",
}
STRATEGIES = {
    "uniform": "Uniform (1,280)",
    "in_batch": "In-batch",
    "mixed": "Mixed (1,152)",
    "cross_batch": "Cross-batch, as published",
    "balanced": "Cross-batch, balanced",
    "deferred": "Cross-batch, deferred",
    "auto": "**Auto**",
    "full": "Full softmax",
    "spared": "In-batch, later items spared",
}
BANKS = {
    "drift_limited": "10,112 rows",
    "safe_bank": "2,048 rows",
    "sized_bank": "10,112 rows, no repeats",
}
DATA = {
    "book-1m": "Amazon-Books sample",
    "ml-1m": "MovieLens-1M",
    "beauty": "Amazon-Beauty",
    "electronic-1m": "Amazon-Electronics sample",
    "globo": "Globo.com news",
    "generated": "generated log",
    "generated-large": "larger generated log",
}
BANK_DATA, BANK_SIZE = ("book-1m", "beauty"), 2432  # of the figure
VERDICTS = {"better": "better", "worse": "**worse**", "unclear": "level"}
Rows = list[dict[str, Any]]


def table1(data: str, *models: str) -> str:
    """Quality, cost and gains of every model and strategy of a data set, or of some models."""
    heads = ["model", "negatives", "seeds", "CPU s / 1000 steps", "recall@20", "recall@50"]
    heads += ["NDCG@50", "NDCG@50 (paper's)", "gain in recall@50 over in-batch"]
    lines = []
    for row in rows("table1", data):
        strategy = str(row.get("strategy", ""))
        if models and strategy and row["model"] not in models:
            continue
        metrics = row["metrics"]
        lines.append(
            [
                MODELS.get(row["model"], str(row["model"])),
                STRATEGIES.get(strategy, "–"),
                str(len(row["seeds"])) if strategy else "",
                amount(row.get("cpu_seconds_per_1000_steps")),
                *(percent(metrics.get(key)) for key in ("recall@20", "recall@50", "ndcg@50")),
                percent(metrics.get("ndcg_comirec@50")),
                gain((row.get("gains") or {}).get("recall@50"), mark=True),
            ]
        )
    return table(heads, lines)


def strong_table1(*names: str) -> str:
    """Every model and strategy with the strong recipe, and gains with the paper's settings."""
    heads = ["data", "model", "negatives", "seeds", "recall@50", "NDCG@50"]
    heads += ["gain in recall@50", "gain in NDCG@50", "with the paper's settings", "in the paper"]
    lines = []
    for name in names:
        known = {(r["model"], r.get("strategy")): r for r in rows("table1", name)}
        for row in rows("table1", f"{name}/strong"):
            key = model, strategy = row["model"], row.get("strategy")
            if strategy is None:  # a baseline
                continue
            line = [DATA[name], MODELS[model], STRATEGIES[strategy], str(len(row["seeds"]))]
            line += [percent(row["metrics"][metric]) for metric in ("recall@50", "ndcg@50")]
            gains = row.get("gains") or {}
            line += [gain(gains.get(metric), mark=True) for metric in ("recall@50", "ndcg@50")]
            line.append(gain((known.get(key, {}).get("gains") or {}).get("recall@50"), mark=True))
            paper, base = PAPER_TABLE1.get(key), PAPER_TABLE1[model, "in_batch"]["recall@50"]
            if paper is None or strategy == "in_batch":
                lines.append([*line, ""])
            else:
                lines.append([*line, _relative([paper["recall@50"]], [base])])
    return table(heads, lines)


def spared(data: str) -> str:
    """In-batch sampling with and without the user's later items among the negatives."""
    heads = ["model", "seeds", "recall@50", "later items spared", "gain", "NDCG@50"]
    heads += ["later items spared", "gain"]
    lines = []
    found = rows("table1", data)
    for row in found:
        if row.get("strategy") != "spared":
            continue
        plain = next(
            r for r in found if (r["model"], r.get("strategy")) == (row["model"], "in_batch")
        )
        line = [MODELS[row["model"]], str(len(row["seeds"]))]
        for metric in ("recall@50", "ndcg@50"):
            line += [percent(r["metrics"].get(metric)) for r in (plain, row)]
            line.append(gain(row["gains"].get(metric), mark=True))
        lines.append(line)
    return table(heads, lines)


def table2(data: str, metric: str, *strategies: str) -> str:
    """A metric by bank size, a column for each model and strategy."""
    wanted = strategies or tuple(STRATEGIES)
    found = [row for row in rows("table2", data) if row["strategy"] in wanted]
    columns = list(dict.fromkeys((row["model"], row["strategy"]) for row in found))
    heads = ["M"]
    for model, strategy in columns:
        mine = [row for row in found if (row["model"], row["strategy"]) == (model, strategy)]
        seeds = max(len(row["seeds"]) for row in mine)
        kind = "as published" if strategy == "cross_batch" else strategy
        heads.append(f"{MODELS[model]}, {kind} ({seeds} seed{'s' if seeds > 1 else ''})")
    values = {(r["model"], r["strategy"], r["capacity"]): r["metrics"].get(metric) for r in found}
    lines = []
    for size in sorted({row["capacity"] for row in found}):
        values_at = [percent(values.get((*column, size))) for column in columns]
        lines.append([f"{size:,}", *values_at])
    return table(heads, lines)


def auto(*names: str) -> str:
    """Auto against the best by hand, over data sets."""
    heads = ["data", "model", "seeds", "auto took", "best by hand", "auto / best, recall@50"]
    heads += ["gain in recall@50", "gain in NDCG@50", "verdict"]
    lines = []
    for data in names or DATA:
        for row in rows("auto", data):
            if row["judged"] != "auto":
                continue
            test = row["test"]
            pair = (100 * test[name]["recall@50"] for name in ("auto", row["best"]))
            lines.append(
                [
                    DATA[data],
                    MODELS[row["model"]],
                    str(len(row["seeds"])),
                    ", ".join(row["chosen"]),
                    STRATEGIES[row["best"]],
                    " / ".join(f"{value:.2f}" for value in pair),
                    gain(row["gains"]["recall@50"]),
                    gain(row["gains"]["ndcg@50"]),
                    VERDICTS[row["verdict"]],
                ]
            )
    return table(heads, lines)


def full_softmax(*names: str) -> str:
    """Distances to the full softmax."""
    heads = ["data", "model", "seeds", "full softmax, recall@50", "auto", "best by hand"]
    lines = []
    for data in names or DATA:
        for row in rows("auto", data):
            found = row.get("ceiling")
            if found:
                full = 100 * found["test"]["recall@50"]
                count = str(len(found["seeds"]))
                ends = [gain(found["auto"]), f"{gain(found['best'])} ({row['best']})"]
                lines.append([DATA[data], MODELS[row["model"]], count, f"{full:.2f}", *ends])
    return table(heads, lines)


def bank_rules(*names: str) -> str:
    """Bank size rules against the best fixed bank."""
    heads = ["data", "model", "bank of the rule", "seeds", "best fixed M", "NDCG@50 at it"]
    heads += ["NDCG@50 by the rule", "gain", "within 1 %", "best M on test", "gain over that"]
    lines = []
    for data in names or DATA:
        for row in rows("auto", data):
            if row["judged"] not in BANKS:
                continue
            test, gains = row["test"], row["gains"]
            lines.append(
                [
                    DATA[data],
                    MODELS[row["model"]],
                    BANKS[row["judged"]],
                    str(len(row["seeds"])),
                    f"{row['best']:,}",
                    f"{100 * test['best']:.2f}",
                    f"{100 * test['rule']:.2f}",
                    gain(gains["best"]),
                    "yes" if row["within"] else "**no**",
                    f"{row['best_on_test']:,}",
                    gain(gains["best_on_test"]),
                ]
            )
    return table(heads, lines)


def opponents(*names: str) -> str:
    """Runs with default settings against tuned baselines, seen items left out."""
    heads = ["data", "", "recall@50", "NDCG@50", "recall@50 of tail items", "CPU s"]
    heads += ["default − this, recall@50", "default − this, NDCG@50"]
    lines = []
    for name in names:
        record = json.loads((RESULTS / "opponents" / f"{name}.json").read_text())
        runs, means = record["ours"]["runs"], record["ours"]["means"]
        tail = sum(run["test"]["tail_recall@50"] for run in runs) / len(runs)
        costs = [sum(run["cpu_seconds"].values()) for run in runs]
        towers = ", ".join(sorted({f"`{run['model']}`" for run in runs}))
        lines.append(
            [
                DATA[name],
                f"**crossbatch, defaults** ({towers}; {len(runs)} seeds)",
                *(f"**{100 * v:.2f}** ± {100 * sd:.2f}" for v, sd in _values(means)),
                f"{100 * tail:.1f}",
                f"{sum(costs) / len(costs):.0f}",
                "",
                "",
            ]
        )
        for row in record["opponents"]:
            if "left_out" in row:
                continue
            test, gaps = row["test"], row["difference"]
            lines.append(
                [
                    "",
                    BASELINE_NAMES[row["name"]],
                    *(f"{100 * test[key]:.2f}" for key in ("recall@50", "ndcg@50")),
                    f"{100 * test['tail_recall@50']:.1f}",
                    f"{row['fit_cpu_seconds']:.1f} ({row['tuning_cpu_seconds']:.0f})",
                    *(_difference(gaps[key]) for key in ("recall@50", "ndcg@50")),
                ]
            )
    return table(heads, lines)


def tower_study(*names: str) -> str:
    """The default tower with one change at a time: validation metrics, gains in brackets."""
    heads = ["data", "passes", "change", "recall@50", "NDCG@50", "recall@50 of tail items", "time"]
    lines = []
    for name in names:
        for row in measured(recorded(RESULTS / "towers" / f"{name}.json")):
            change = f"**{row['change']}**" if row["change"] == DEFAULT else row["change"]
            cells = [DATA[name], f"{row['passes']:g}", change]
            for metric in ("recall@50", "ndcg@50", "tail_recall@50"):
                value, gain = f"{100 * row[metric]:.2f}", row.get(f"gain in {metric}")
                plain = gain is None or row["change"] == DEFAULT
                cells.append(value if plain else f"{value} ({signed(100 * gain)})")
            lines.append([*cells, f"{row['time']:.2f} ×" if row["time"] else ""])
    return table(heads, lines)


def signed(points: float) -> str:
    """A difference in percentage points."""
    return f"{points:+.2f}".replace("-", "−")


def same_data(*names: str) -> str:
    """TFRS on the samples of our defaults, against runs of our defaults."""
    heads = ["data", "", "optimiser", "recall@50", "NDCG@50", "recall@50 of tail items", "CPU s"]
    heads += ["default − this, recall@50", "default − this, NDCG@50"]
    lines = []
    for name in names:
        record = json.loads((RESULTS / "peers" / f"{name}.json").read_text())
        runs, means = record["ours"]["runs"], record["ours"]["means"]
        tail = statistics.fmean(run["test"]["tail_recall@50"] for run in runs)
        steps = statistics.fmean(run["cpu_seconds"]["steps"] for run in runs)
        seeds = f"{len(runs)} seeds" if len(runs) > 1 else "1 seed"
        line = [DATA[name], f"**crossbatch, defaults** ({seeds})", "Adam 0.002"]
        line += [f"**{100 * v:.2f}** ± {100 * sd:.2f}" for v, sd in _values(means)]
        lines.append([*line, f"{100 * tail:.1f}", f"{steps:.0f}", "", ""])
        for row in record["tfrs"]:
            rate = f"{row['optimizer'].capitalize()} {row['lr']:g}"
            line = ["", f"TFRS, {MODELS[row['model']]}", rate]
            line += [f"{100 * row['test'][key]:.2f}" for key in ("recall@50", "ndcg@50")]
            line += [f"{100 * row['test']['tail_recall@50']:.1f}", f"{row['cpu_seconds']:.0f}"]
            gaps = [_difference(row["difference"][key]) for key in ("recall@50", "ndcg@50")]
            lines.append(line + gaps)
    return table(heads, lines)


def bank(*names: str) -> str:
    """Kinds of negatives over batch sizes, each at its own best learning rate."""
    heads = ["data", "tower", "samples", "batch", "negatives", "rate", "seeds"]
    heads += ["recall@50", "gain", "NDCG@50", "gain", "tail recall@50", "CPU s"]
    lines = []
    for name in names:
        cells = [cell for cell in bank_cells(name) if not _reads_text(cell)]
        for cell in cells:
            base = next(
                (
                    other
                    for other in cells
                    if other["rule"] == "in-batch"
                    and all(other[key] == cell[key] for key in ("tower", "samples", "batch"))
                ),
                None,
            )
            line = [DATA[name], *_bank_line(cell, base)]
            tail = 100 * statistics.fmean(cell["tail_recall@50"])
            lines.append([*line, f"{tail:.1f}", f"{cell['cpu_seconds']:.0f}"])
    return table(heads, lines)


def bank_text(*names: str) -> str:
    """Towers that encode titles: quality and time, beside in-batch negatives of the least rows."""
    heads = ["data", "tower", "samples", "batch", "negatives", "rate", "seeds"]
    heads += ["recall@50", "gain", "NDCG@50", "gain", "on validation users", "CPU s", "time"]
    lines = []
    for name in names:
        cells = [cell for cell in bank_cells(name) if _reads_text(cell)]
        for cell in cells:
            same = [c for c in cells if all(c[key] == cell[key] for key in ("tower", "samples"))]
            base = min((c for c in same if c["rule"] == "in-batch"), key=lambda c: c["batch"])
            own = cell is base
            valid = "" if own else _relative(cell["valid"], base["valid"])
            time = "" if own else f"{cell['cpu_seconds'] / base['cpu_seconds']:.1f} ×"
            line = [DATA[name], *_bank_line(cell, base), valid]
            lines.append([*line, f"{cell['cpu_seconds']:.0f}", time])
    return table(heads, lines)


def _reads_text(cell: dict[str, Any]) -> bool:
    """Whether an encoder of text is a part of the cell's item tower."""
    return "item_tower" in TOWERS[cell["tower"]]


def _bank_line(cell: dict[str, Any], base: dict[str, Any] | None) -> list[str]:
    """What a cell is, and its quality beside that of another one."""
    size = f" ({cell['size']:,})" if cell["size"] else ""
    samples = f"{cell['samples'] // 1000:,} k"
    line = [cell["tower"], samples, str(cell["batch"]), cell["rule"] + size]
    line += [f"{cell['lr']:g}", str(cell["seeds"])]
    for metric in ("recall@50", "ndcg@50"):
        line.append(_mean_and_spread(cell[metric]))
        line.append("" if base in (None, cell) else _relative(cell[metric], base[metric]))
    return line


def delayed_push(name: str, rule: str) -> str:
    """The item-side gradient of a bank against that of a true batch, at a constant rate."""
    heads = ["tower", "weights", "bank", "stay of a row", "cosine", "length over the true one"]
    heads += ["of single steps", "left over of a step's pull"]
    record = json.loads((RESULTS / "delayed-push" / f"{name}.json").read_text(encoding="utf-8"))
    lines = []
    for row in record["rows"]:
        if (row["rule"], row["schedule"]) != (rule, "constant"):
            continue
        for part, weights in (("shared", "which items share"), ("ids", "a table of ids")):
            if f"{part}: cosine" in row:
                line = [row["tower"], weights, f"{row['size']:,}"]
                line.append(f"{row['size'] // row['batch']} steps")
                values = ("cosine", "length", "length of a step")
                line += [f"{row[f'{part}: {value}']:.2f}".replace("-", "−") for value in values]
                lines.append([*line, f"{row['left over']:.2f}"])
    return table(heads, lines)


def bank_equivalent(*names: str) -> str:
    """The batch size with which in-batch negatives are as good as a bank."""
    heads = ["data", "tower", "samples", "batch with a bank", "bank"]
    heads += ["as good as in-batch with, by recall@50", "by NDCG@50"]
    lines = []
    for name in names:
        cells = [cell for cell in bank_cells(name) if not _reads_text(cell)]
        for cell in cells:
            if cell["rule"] not in ("balanced", "deferred") or not _has_larger_batch(cells, cell):
                continue
            line = [DATA[name], cell["tower"], f"{cell['samples'] // 1000:,} k", str(cell["batch"])]
            line.append(f"{cell['rule']} ({cell['size']:,})")
            for metric in ("recall@50", "ndcg@50"):
                batch, above = equivalent_batch(cells, cell, metric)
                line.append(f"none up to {batch:,.0f}" if above else f"{batch:,.0f}")
            lines.append(line)
    return table(heads, lines)


def _has_larger_batch(cells: Rows, cell: dict[str, Any]) -> bool:
    return any(
        other["rule"] == "in-batch"
        and other["batch"] > cell["batch"]
        and all(other[key] == cell[key] for key in ("tower", "samples"))
        for other in cells
    )


def bank_rule(*names: str) -> str:
    """What the rule of `auto` chooses in each cell, its limits being those of the other data."""
    cells = read_cells([RESULTS / "bank" / f"{name}.json" for name in names])
    heads = ["data", "tower", "samples", "batch", "equally likely items"]
    heads += ["bank's gain on validation users"]
    heads += ["rule of the other data", "best by hand", "lost, recall@50", "lost, NDCG@50"]
    lines = []
    for cell, limits in judged(cells):
        choice = limits.choose(cell)
        line = [DATA[cell.data], cell.tower, f"{cell.samples // 1000:,} k", str(cell.batch)]
        line.append(f"{cell.likely_items:,.0f}")
        line += [_signed_percent(cell.gain), choice, cell.best]
        for metric in ("recall@50", "ndcg@50"):
            ratio = cell.test(choice, metric) / cell.test(cell.best, metric)
            line.append(_signed_percent(ratio - 1))
        lines.append(line)
    return table(heads, lines)


def bank_cells(name: str) -> Rows:
    """The cells of one data set's map, and of towers that read its titles."""
    found = [RESULTS / "bank" / f"{name}{kind}.json" for kind in ("", "-text")]
    known = [json.loads(path.read_text(encoding="utf-8")) for path in found if path.is_file()]
    return measured_cells([run for document in known for run in document["runs"]])


def draw_bank(path: Path, tower: str, *names: str) -> None:
    """Draw quality over batch size and over processor time, a panel for each data set."""
    plots = []
    for metric, label in (("recall@50", "test recall@50, %"), ("ndcg@50", "test NDCG@50, %")):
        for name in names:
            cells = [cell for cell in bank_cells(name) if cell["tower"] == tower]
            cells = [cell for cell in cells if cell["size"] in (0, BANK_SIZE)]
            usual = statistics.mode(cell["samples"] for cell in cells)
            for x, x_label in (("batch", "batch size"), ("cpu_seconds", "CPU seconds of steps")):
                # Over time, a longer training is a point like any other.
                shown = [cell for cell in cells if x != "batch" or cell["samples"] == usual]
                lines = _bank_lines(shown, x, metric)
                title = f"{DATA[name]}: {metric} by {x_label}"
                plots.append(Plot("bank", title, x_label, label, lines, log_x=True))
    write_panels(plots, path, columns=2)


def _bank_lines(cells: Rows, x: str, metric: str) -> list[Line]:
    lines = []
    for color, rule in enumerate(RULES):
        mine = sorted((cell for cell in cells if cell["rule"] == rule), key=lambda c: float(c[x]))
        if mine:
            points = Curve(
                tuple(float(cell[x]) for cell in mine),
                tuple(100 * statistics.fmean(cell[metric]) for cell in mine),
            )
            lines.append(Line(rule, "", points, color))
    return lines


def _mean_and_spread(values: list[float]) -> str:
    spread = f" ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.2f}{spread}"


def _relative(values: list[float], base: list[float]) -> str:
    return _signed_percent(statistics.fmean(values) / statistics.fmean(base) - 1)


def _signed_percent(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "−")


def _values(means: dict[str, list[float]]) -> list[list[float]]:
    return [means["recall@50"], means["ndcg@50"]]


def _difference(gap: list[float]) -> str:
    value, low, high = (100 * number for number in gap)
    mark = "▲ " if low > 0 else "▼ " if high < 0 else ""
    return f"{mark}{value:+.2f} [{low:+.2f}, {high:+.2f}]".replace("-", "−")


TABLES: dict[str, Callable[..., str]] = {
    "opponents": opponents,
    "tower-study": tower_study,
    "same-data": same_data,
    "bank": bank,
    "bank-equivalent": bank_equivalent,
    "bank-rule": bank_rule,
    "bank-text": bank_text,
    "delayed-push": delayed_push,
    "table1": table1,
    "strong-table1": strong_table1,
    "spared": spared,
    "table2": table2,
    "auto": auto,
    "full-softmax": full_softmax,
    "bank-rules": bank_rules,
}


def rows(experiment: str, data: str) -> Rows:
    """What an experiment wrote; nothing where it has not."""
    path = RESULTS / data / f"{experiment}.json"
    found: Rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
    return found


def percent(value: dict[str, Any] | None) -> str:
    """A fraction with its spread, in per cent."""
    return formatting.percent(Estimate(value["mean"], value["sd"]) if value else None)


def amount(value: dict[str, Any] | None) -> str:
    """Seconds with their spread."""
    if value is None:
        return formatting.NOTHING
    return f"{value['mean']:.1f}" + ("" if value["sd"] is None else f" ± {value['sd']:.1f}")


def gain(value: dict[str, Any] | None, *, mark: bool = False) -> str:
    """A relative change with its interval; marked where it leaves out zero."""
    if value is None:
        return ""
    interval = None if value["low"] is None else (value["low"], value["high"])
    found = Gain(value["relative"], interval)
    marks = {"better": "▲ ", "worse": "▼ "} if mark else {}
    return marks.get(formatting.verdict(found), "") + formatting.gain(found)


def table(heads: list[str], lines: list[list[str]]) -> str:
    """A Markdown table."""
    return pipe_table(heads, lines, words=len(heads)) + "\n"


def filled(page: str) -> str:
    """The page with its tables as the records have them."""

    def written(found: re.Match[str]) -> str:
        name, *arguments = found[2].split()
        return found[1] + TABLES[name](*arguments) + found[3]

    return MARKED.sub(written, page)


def rebuild(source: Path, out: Path) -> None:
    """Write the tables and figures of one folder of records.

    Args:
        source: Holds `records.tar.xz` and the small files beside it, among them the tables to write
            anew: `table1.json`, `drift.json` and so on.
        out: Where they go; may be `source`.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = GridFolder(Path(temporary) / source.name)
        folder.path.mkdir()
        for path in source.iterdir():
            if path.is_file():
                shutil.copy(path, folder.path)
        kept = {path.stem for path in source.glob("*.json")}
        written = [path for name in WRITERS if name in kept for path in WRITERS[name](folder)]
        if "auto" in kept:
            written += write_judgement(folder)
        for path in written:
            if path.suffix in KEPT:
                target = out / path.relative_to(folder.path)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)


def main() -> None:
    """Rebuild everything."""
    for records in sorted(RESULTS.rglob("records.tar.xz")):
        rebuild(records.parent, records.parent)
    for data, names in FIGURES.items():
        for name in names:
            shutil.copy(RESULTS / data / "figures" / f"{name}.svg", ROOT / "docs" / "results")
    draw_bank(ROOT / "docs" / "results" / "bank.svg", "recency pooling", *BANK_DATA)
    for name in PAGES:
        path = ROOT / name
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
