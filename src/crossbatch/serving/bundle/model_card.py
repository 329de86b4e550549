"""The model card of a bundle, as Markdown: use, data, quality, checks, limits."""

from __future__ import annotations

import re
from shlex import quote
from typing import TYPE_CHECKING, Any

from crossbatch.printing import printable
from crossbatch.reports.markdown import literal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from crossbatch.serving.bundle import Bundle

PLAIN_KEY = re.compile(r"[\w.:-]{1,80}\Z", re.ASCII)
SHOWN_METRICS = ("recall@20", "recall@50", "hit_rate@50", "ndcg@50", "cold_recall@50")


def model_card(bundle: Bundle, facts: dict[str, Any]) -> str:
    """Return the card of a bundle; `facts` becomes its manifest."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, UndefinedError

    items = facts["items"]
    metrics = [bundle.metrics.get(key, {}) for key in ("test", "test_ci", "baselines")]
    test, intervals, popular = metrics[0], metrics[1], metrics[2].get("popularity", {})
    shown = [metric for metric in SHOWN_METRICS if metric in intervals]  # else no user had a target
    environment = Environment(  # noqa: S701 - Markdown, not HTML
        loader=PackageLoader("crossbatch.serving.bundle"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    try:
        return environment.get_template("model_card.md").render(
            bundle=bundle,
            facts=facts,
            index=facts["index"],
            data=facts["origin"].get("dataset"),
            added=items["count"] - items["trained"],
            keys=_example_keys(bundle),
            measured=bool(test),
            quality=[(m, test[m], intervals[m], popular.get("test", {}).get(m)) for m in shown],
            code=_code,
            literal=literal,
            names=_names,
            percent=_percent,
            quote=quote,
        )
    except UndefinedError as error:
        raise LookupError(str(error)) from None


def _example_keys(bundle: Bundle) -> list[str]:
    """The first two items, if their keys are words: others would need quoting, or end the block."""
    keys = bundle.item_keys(range(1, min(3, bundle.num_items + 1)))
    return keys if all(PLAIN_KEY.match(key) for key in keys) else ["ITEM"]


def _names(names: Iterable[str], none: str = "none") -> str:
    return ", ".join(_code(name) for name in names) or none


def _code(text: object) -> str:
    """Text that Markdown shows as it is, in a line or a cell of a table."""
    plain = printable(" ".join(str(text).split())).replace("`", "'").replace("|", "\\|")
    return f"`{plain or ' '}`"


def _percent(share: float) -> str:
    return f"{100.0 * share:.2f}"  # a float: text in its place raises TypeError, it is not repeated
