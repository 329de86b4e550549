"""Write the tables of results/ into the pages that show them, between their marks.

    for data in results/*; do crossbatch reproduce table1 --out $data; done     # and table2, bar
    python tools/result_tables.py

A mark names a table and its arguments, `<!-- results: table1 book-1m -->`; all up to
`<!-- /results -->` is replaced.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PAGES = ("README.md", "docs/results.md", "docs/negatives.md")
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
    "auto": "**Auto**",
    "full": "Full softmax",
    "spared": "In-batch, later items spared",
}
RULES = {
    "drift_limited": "10,112 rows",
    "safe_bank": "2,048 rows",
    "sized_bank": "10,112 rows, no repeats",
}
DATA = {
    "book-1m": "Amazon-Books sample",
    "ml-1m": "MovieLens-1M",
    "beauty": "Amazon-Beauty",
    "electronic-1m": "Amazon-Electronics sample",
}
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
    return pipes(heads, lines)


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
    return pipes(heads, lines)


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
        cells = [percent(values.get((*column, size))) for column in columns]
        lines.append([f"{size:,}", *cells])
    return pipes(heads, lines)


def bar(*names: str) -> str:
    """Auto against the best by hand, over data sets."""
    heads = ["data", "model", "seeds", "auto took", "best by hand", "auto / best, recall@50"]
    heads += ["gain in recall@50", "gain in NDCG@50", "verdict"]
    lines = []
    for data in names or DATA:
        for row in rows("bar", data):
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
    return pipes(heads, lines)


def ceiling(*names: str) -> str:
    """Distances to the full softmax."""
    heads = ["data", "model", "seeds", "full softmax, recall@50", "auto", "best by hand"]
    lines = []
    for data in names or DATA:
        for row in rows("bar", data):
            found = row.get("ceiling")
            if found:
                full = 100 * found["test"]["recall@50"]
                count = str(len(found["seeds"]))
                ends = [gain(found["auto"]), f"{gain(found['best'])} ({row['best']})"]
                lines.append([DATA[data], MODELS[row["model"]], count, f"{full:.2f}", *ends])
    return pipes(heads, lines)


def drift_rule(*names: str) -> str:
    """The drift rule against the best fixed bank."""
    heads = ["data", "model", "bank of the rule", "seeds", "best fixed M", "NDCG@50 at it"]
    heads += ["NDCG@50 by the rule", "gain", "within 1 %", "best M on test", "gain over that"]
    lines = []
    for data in names or DATA:
        for row in rows("bar", data):
            if row["judged"] not in RULES:
                continue
            test, gains = row["test"], row["gains"]
            lines.append(
                [
                    DATA[data],
                    MODELS[row["model"]],
                    RULES[row["judged"]],
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
    return pipes(heads, lines)


TABLES: dict[str, Callable[..., str]] = {
    "table1": table1,
    "spared": spared,
    "table2": table2,
    "bar": bar,
    "ceiling": ceiling,
    "drift-rule": drift_rule,
}


def rows(experiment: str, data: str) -> Rows:
    """What an experiment wrote; nothing where it has not."""
    path = RESULTS / data / f"{experiment}.json"
    found: Rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
    return found


def percent(value: dict[str, Any] | None) -> str:
    """A fraction with its spread, in per cent."""
    if value is None:
        return "–"
    spread = "" if value["sd"] is None else f" ± {100 * value['sd']:.2f}"
    return f"{100 * value['mean']:.2f}{spread}"


def amount(value: dict[str, Any] | None) -> str:
    """Seconds with their spread."""
    if value is None:
        return "–"
    return f"{value['mean']:.1f}" + ("" if value["sd"] is None else f" ± {value['sd']:.1f}")


def gain(value: dict[str, Any] | None, *, mark: bool = False) -> str:
    """A relative change with its interval; marked where it leaves out zero."""
    if value is None:
        return ""
    low, high = value["low"], value["high"]
    text = f"{100 * value['relative']:+.1f} %"
    sign = ""
    if low is not None:
        text += f" [{100 * low:+.1f}, {100 * high:+.1f}]"
        sign = "▲ " if low > 0 else "▼ " if high < 0 else ""
    return (sign if mark else "") + text.replace("-", "−")


def pipes(heads: list[str], lines: list[list[str]]) -> str:
    """A Markdown table."""
    table = [heads, ["---"] * len(heads), *lines]
    return "".join("| " + " | ".join(line) + " |\n" for line in table)


def filled(page: str) -> str:
    """The page with its tables as the records have them."""

    def written(found: re.Match[str]) -> str:
        name, *arguments = found[2].split()
        return found[1] + TABLES[name](*arguments) + found[3]

    return MARKED.sub(written, page)


def main() -> None:
    """Write all pages."""
    for name in PAGES:
        path = ROOT / name
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
