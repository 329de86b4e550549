"""The model card of a bundle, as Markdown: use, data, quality, checks, limits."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crossbatch.serving.bundle import Bundle

SHOWN_METRICS = ("recall@20", "recall@50", "hit_rate@50", "ndcg@50", "cold_recall@50")


def model_card(bundle: Bundle, facts: dict[str, Any]) -> str:
    """Return the card of a bundle; `facts` becomes its manifest."""
    sections = (_head, _use, _data, _quality, _checks, _limits)
    return "\n".join(section(bundle, facts) for section in sections)


def _head(bundle: Bundle, facts: dict[str, Any]) -> str:
    origin, items = facts["origin"], facts["items"]
    added = items["count"] - items["trained"]
    later = f", {added:,} of them added by their content after training" if added else ""
    return f"""# {facts["name"]}

A two-tower recommender: a history of items in, a ranked list of items out.

| | |
|---|---|
| user tower | `{facts["model"]}`, {facts["interests"]} vector(s) of {facts["dim"]} numbers a user |
| negatives | `{origin["sampler"]}` |
| items | {items["count"]:,}{later} |
| history | the {bundle.history_length} most recent items |
| item features | {_names(bundle.config.item_features)} |
| user features | {_names(tuple(bundle.user_features))} |
| best step | {origin["best_step"]:,} |
| made | {facts["created"]} by crossbatch {facts["made_by"]["crossbatch"]} |
"""


def _use(bundle: Bundle, facts: dict[str, Any]) -> str:
    keys = bundle.item_keys(range(1, min(3, bundle.num_items + 1)))
    return f"""## Use

```
crossbatch recommend THIS_FOLDER --history {quote(",".join(keys))} -k 10
```

```python
from crossbatch.serving import open_bundle
open_bundle("THIS_FOLDER").recommend([{keys!r}], k=10)
```
"""


def _data(bundle: Bundle, facts: dict[str, Any]) -> str:
    data = facts["origin"].get("dataset")
    if data is None:
        return ""
    counts = data["counts"]
    return f"""## Training data

{counts["train_interactions"]:,} interactions of {counts["train_users"]:,} users with
{counts["items"]:,} items, from {", ".join(f"`{name}`" for name in data["files"]) or "a log"}
(split `{data["split"]}`; checksum of the prepared data `{data["checksum"][:12]}`).
"""


def _quality(bundle: Bundle, facts: dict[str, Any]) -> str:
    test, intervals = bundle.metrics.get("test", {}), bundle.metrics.get("test_ci", {})
    if not test:
        return "## Quality\n\nThe run was not finished: no test metrics were measured.\n"
    popular = bundle.metrics.get("baselines", {}).get("popularity", {}).get("test", {})
    lines = ["| test metric | model | 95 % interval | popularity |", "|---|---|---|---|"]
    for metric in SHOWN_METRICS:
        if metric not in intervals:  # no interval: no user had such a target
            continue
        interval = " to ".join(_percent(bound) for bound in intervals[metric])
        baseline = _percent(popular[metric]) if popular.get(metric) is not None else ""
        lines.append(f"| {metric} | {_percent(test[metric])} | {interval} | {baseline} |")
    table = "\n".join(lines)
    return f"""## Quality

Held-out users against the whole catalogue, per cent; intervals over users.

{table}
"""


def _checks(bundle: Bundle, facts: dict[str, Any]) -> str:
    index, parity = facts["index"], dict(facts["parity"])
    users, tolerance = parity.pop("users"), parity.pop("tolerance")
    differences = "\n".join(f"| {name} | {value:.1e} |" for name, value in parity.items())
    return f"""## Checked at export

Against the trained model on {users:,} users; largest difference relative to the largest number
(at most {tolerance:g} is accepted):

| part | difference |
|---|---|
{differences}

Index: `{index["name"]}`; recall@{index["k"]} against exact search {index["recall"]:.4f};
{index["milliseconds"]:.2f} ms a user on the exporting machine, exact search
{index["exact_milliseconds"]:.2f} ms.
"""


def _limits(bundle: Bundle, facts: dict[str, Any]) -> str:
    new = "The item tower reads ids only: items cannot be added without training again."
    if bundle.config.item_features:
        new = "Items added later are encoded by their content alone, and count in a history too."
        if bundle.config.history == "id":
            new = (
                "Items added later are encoded by their content alone. Histories are read through "
                "ids, so these items can be recommended, but are skipped in histories."
            )
    return f"""## Limits

- It learned from one log and repeats its biases, popularity among them; the metrics above hold for
  that log, not for other catalogues, times or ways of showing items.
- A user without a known item and without features gets the most popular items.
- {new}
"""


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def _percent(share: float) -> str:
    return f"{100.0 * share:.2f}"  # a float: text in its place raises TypeError, it is not repeated
