"""From the records of `quality.py` to its tables; needs no training and no peer."""

import json
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from crossbatch.evaluation import Interval, paired_difference

METRICS = ("recall@20", "recall@50", "ndcg@50", "hit_rate@50")
SHOWN = METRICS[:3]
BASELINE = "baseline"

Record = dict[str, Any]


def as_list(interval: Interval) -> list[float]:
    return [interval.value, interval.low, interval.high]


def summarise(out: Path) -> dict[str, Any]:
    """The chosen training of each kind and budget, and ours minus the others, user by user."""
    best: dict[tuple[Any, ...], Record] = {}
    for path in sorted((out / "records").glob("*.json")):
        record = json.loads(path.read_text()) | {"name": path.stem}
        kind = tuple(record.get(key) for key in ("steps", "model", "library", "variant"))
        if kind not in best or record["valid"] > best[kind]["valid"]:
            best[kind] = record
    rows = list(best.values())
    per_user = {row["name"]: np.load(out / "per_user" / f"{row['name']}.npz") for row in rows}
    ours = [r for r in rows if r["library"] == "crossbatch" and r["variant"] != BASELINE]
    differences = [
        {"ours": a["name"], "other": b["name"], "metric": metric, "difference": as_list(difference)}
        for a, b in product(ours, rows)
        if _comparable(a, b)
        for metric in METRICS
        for difference in [
            paired_difference(per_user[a["name"]][metric], per_user[b["name"]][metric])
        ]
    ]
    summary = {"rows": rows, "differences": differences}
    (out / "summary.json").write_text(json.dumps(summary, indent=1))
    return summary


def markdown(summary: dict[str, Any]) -> str:
    """For each budget one row a model, then ours minus the others; percent, 95 % intervals."""
    budgets = sorted({row["steps"] for row in summary["rows"] if "steps" in row}, reverse=True)
    return "\n\n".join(_section(summary, steps) for steps in budgets)


def _section(summary: dict[str, Any], steps: int) -> str:
    rows = {r["name"]: r for r in summary["rows"] if r.get("steps", steps) == steps}
    order = sorted(rows.values(), key=lambda r: (r["variant"] != BASELINE, r["model"]))
    lines = [f"{steps:,} batches", ""]
    lines += _header("model", "library", "variant", "lr", "best step", *SHOWN)
    for row in order:
        lr, step = (f"{row[key]:,}" if key in row else "–" for key in ("lr", "best_step"))
        cells = [row["model"], row["library"], row["variant"], lr, step]
        lines.append(_row([*cells, *(_percent(row["test"][metric]) for metric in SHOWN)]))
    lines += ["", *_header("model", "ours", "minus", *SHOWN)]
    found = {(d["ours"], d["other"], d["metric"]): d["difference"] for d in summary["differences"]}
    for ours, other in dict.fromkeys((a, b) for a, b, _ in found if a in rows):
        a, b = rows[ours], rows[other]
        label = b["model"] if b["variant"] == BASELINE else f"{b['library']}: {b['variant']}"
        values = (_percent(found[ours, other, metric], "+") for metric in SHOWN)
        lines.append(_row([a["model"], a["variant"], label, *values]))
    return "\n".join(lines)


def _comparable(ours: Record, other: Record) -> bool:
    if other["variant"] == BASELINE:
        return True
    same = all(ours[key] == other[key] for key in ("model", "steps"))
    return same and other["library"] != "crossbatch"


def _header(*names: str) -> list[str]:
    return [_row(names), "|---" * len(names) + "|"]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _percent(values: list[float], sign: str = "") -> str:
    value, low, high = (f"{100 * v:{sign}.2f}".replace("-", "−") for v in values)
    return f"{value} ({low} … {high})"
