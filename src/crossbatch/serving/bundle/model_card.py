"""The model card of a bundle, as Markdown: use, data, quality, checks, limits."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from crossbatch.serving.bundle import Bundle

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
            keys=bundle.item_keys(range(1, min(3, bundle.num_items + 1))),
            measured=bool(test),
            quality=[(m, test[m], intervals[m], popular.get("test", {}).get(m)) for m in shown],
            names=_names,
            percent=_percent,
            quote=quote,
        )
    except UndefinedError as error:
        raise LookupError(str(error)) from None


def _names(names: Iterable[str], none: str = "none") -> str:
    return ", ".join(f"`{name}`" for name in names) or none


def _percent(share: float) -> str:
    return f"{100.0 * share:.2f}"  # a float: text in its place raises TypeError, it is not repeated
