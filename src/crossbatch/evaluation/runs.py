"""Evaluation of runs: what training calls, and the models of `crossbatch evaluate`.

evaluator = RunEvaluator(dataset, recipe)
evaluator.validate(model).means()["recall@50"]
evaluate_runs([Path("runs/first")], "test")["runs/first"]["unseen"]["metrics"]
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from crossbatch.errors import ConfigError
from crossbatch.evaluation.baselines import evaluate_baselines
from crossbatch.evaluation.evaluator import evaluate
from crossbatch.evaluation.list_measures import ContentDiversity, ListMeasure
from crossbatch.evaluation.recommenders import OnItems, encode_items, evaluation_mode, repeat_share
from crossbatch.evaluation.result import Evaluation, by_segment, user_labels
from crossbatch.files import write_document
from crossbatch.queries import feature_rows
from crossbatch.retrieval import ExactIndex
from crossbatch.training.build import pick_device
from crossbatch.training.journal import without_nan
from crossbatch.training.run_folder import open_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from crossbatch.config import Recipe
    from crossbatch.data import Dataset
    from crossbatch.training.distributed.ranks import Ranks

PAPER_METRICS = ("recall", "hit_rate", "ndcg", "ndcg_comirec")
CHOOSING = (*PAPER_METRICS, "precision", "mrr", "map")  # metrics that may choose the best model
MOST_PLACES = 1_000  # of a list
KS = (20, 50)  # list lengths of `result.json`
NUM_EXAMPLES, NUM_RECOMMENDED, NUM_SHOWN = 5, 10, 8  # users, and items of each


# Below this share of repeats among the validation targets, "auto" leaves seen items out.
FEW_REPEATS = 0.01


@dataclass(frozen=True)
class RunEvaluator:
    """Full-corpus evaluation of a run's towers as they are; an `Evaluator` for `train_run`.

    Attributes:
        dataset: What the towers are trained on.
        recipe: How; history length, device and metric are read.
        ranks: The processes that share the work, or None.
        on_items: Called with the number of items encoded so far, and with that of all.

    Raises:
        ConfigError: If `train.metric` is not a metric that is measured.
    """

    dataset: Dataset
    recipe: Recipe
    ranks: Ranks | None = None
    on_items: OnItems | None = None

    def __post_init__(self) -> None:
        metric = self.recipe.train.metric
        name, _, k = metric.partition("@")
        if name not in CHOOSING or not (k.isdecimal() and 0 < int(k) <= MOST_PLACES):
            raise ConfigError(
                f"train.metric must be one of {', '.join(CHOOSING)} at a length of 1 to "
                f"{MOST_PLACES:,}, such as recall@50, got {metric!r}"
            )

    @cached_property
    def repeat_share(self) -> float:
        """Share of the validation targets that their user has had before."""
        return repeat_share(self.dataset.eval_batches("valid", batch_size=8192, history_length=1))

    @property
    def exclude_seen(self) -> bool:
        """Whether the metric that chooses the best model leaves out what a user has had."""
        wanted = self.recipe.train.exclude_seen
        if wanted == "yes" and self.repeat_share == 1:
            raise ConfigError(
                'train.exclude_seen="yes" leaves nothing to find: every validation target repeats '
                'an item that its user has had; set it to "no"'
            )
        return wanted == "yes" or (wanted == "auto" and self.repeat_share < FEW_REPEATS)

    def decision(self) -> dict[str, Any]:
        """What chooses the best model: metric, protocol, and the share that "auto" looks at."""
        return {
            "name": self.recipe.train.metric,
            "exclude_seen": self.exclude_seen,
            "repeat_share": self.repeat_share,
        }

    @property
    def ks(self) -> tuple[int, ...]:
        """List lengths that training measures: 20, 50 and that of its metric."""
        return tuple(sorted({*KS, int(self.recipe.train.metric.partition("@")[2])}))

    def evaluate(
        self,
        model: object,
        split: str,
        *,
        max_users: int | None = None,
        ks: Sequence[int] | None = None,
        measures: Mapping[str, ListMeasure] | None = None,
    ) -> Evaluation:
        """Metrics on "valid" or "test".

        Args:
            model: Towers.
            split: Which users.
            max_users: How many of them, always the same ones; None for all.
            ks: List lengths; None for those of training.
            measures: Further measures of lists, by name.
        """
        train = self.recipe.train
        batches = self.dataset.eval_batches(
            split,
            history_length=train.history_length,
            max_users=max_users,
            histories=train.histories,
        )
        return evaluate(
            cast("Any", model),
            batches,
            item_counts=np.array(self.dataset.item_counts),
            device=pick_device(self.recipe.train.device),
            on_items=self.on_items,
            ks=ks or self.ks,
            measures=measures,
            by_vectors=measures is not None,
            ranks=self.ranks,
        )

    def validate(self, model: object, max_users: int | None = None) -> Evaluation:
        """Metrics on the validation users."""
        return self.evaluate(model, "valid", max_users=max_users)

    def test(self, model: object, folder: Path | None) -> dict[str, Any]:
        """The entries of `result.json` on the test users.

        Args:
            model: The best towers.
            folder: Gets one array a metric in `per_user`, for paired comparisons; None for none.
        """
        test = self.evaluate(model, "test")
        if folder is not None:
            (folder / "per_user").mkdir(exist_ok=True)
            for start, found in (("test", test), ("test_unseen", test.unseen)):
                for name, values in found.per_user.items() if found else ():
                    if in_paper(name):
                        path = folder / "per_user" / f"{start}_{name}.npy"
                        np.save(path, values.astype(np.float32))
        popular = evaluate_baselines(self.dataset, "test", names=["popularity"])["popularity"]
        return {
            **split_entries(test, "test"),
            "num_users": test.num_users,
            "baselines": {"popularity": split_entries(popular, "test", intervals=False)},
        }

    @torch.no_grad()
    def write_examples(self, model: object, folder: Path) -> None:
        """Write `examples.json`: a list of {"history", "targets", "recommended"}, as titles."""
        towers, titles = cast("Any", model), self.dataset.item_titles
        device = pick_device(self.recipe.train.device)
        length = self.recipe.train.history_length
        few = self.dataset.eval_batches("test", batch_size=NUM_EXAMPLES, history_length=length)
        batch = next(few)
        history = batch.history.to(device)
        with evaluation_mode(model, seed=0):
            index = ExactIndex(encode_items(towers, self.dataset.num_items, device=device))
            rows = (each.to(device) for each in feature_rows(towers, batch))
            interests = towers.users(history, *rows)
            top = index.search(interests.float(), NUM_RECOMMENDED, exclude=history)
        examples = [
            {
                "history": titles([item for item in known.tolist() if item][-NUM_SHOWN:]),
                "targets": titles(targets.tolist()),
                "recommended": [
                    {"title": title, "score": score}
                    for title, score in zip(titles(ids.tolist()), scores.tolist(), strict=True)
                ],
            }
            for known, targets, ids, scores in zip(
                batch.history, batch.targets, top.item_ids, top.scores, strict=True
            )
        ]
        write_document(folder / "examples.json", examples)


def in_paper(metric: str) -> bool:
    """Whether a metric such as `recall@50` is of a kind that papers report."""
    return metric.partition("@")[0] in PAPER_METRICS


def split_entries(
    evaluation: Evaluation, split: str, *, intervals: bool = True
) -> dict[str, dict[str, Any]]:
    """An evaluation as entries of `result.json`: `test`, `test_ci` and the unseen ones."""
    entries = {}
    for name, found in ((split, evaluation), (f"{split}_unseen", evaluation.unseen)):
        if found is None:
            continue
        entries[name] = without_nan(found.means())
        if intervals:
            known = ((key, i) for key, i in found.intervals().items() if i.low == i.low)
            entries[f"{name}_ci"] = {key: [i.low, i.high] for key, i in known if in_paper(key)}
    return entries


def evaluate_runs(
    paths: Sequence[Path | str],
    split: str,
    *,
    data: Path | str | None = None,
    ranks: Ranks | None = None,
    on_items: OnItems | None = None,
    ks: Sequence[int] | None = None,
    by: str | None = None,
) -> dict[str, dict[str, Any]]:
    """Metrics and intervals of the runs' best models; several `ranks` share the ranking.

    The other arguments are those of `evaluate_run`; the entries of `by` are in "segments".
    """
    table = {}
    for path in paths:
        evaluator, found = _evaluated(path, split, data, ks, by, ranks, on_items)
        recipe = evaluator.recipe
        about = {"model": recipe.model.name, "sampler": recipe.sampler["name"]}
        entry = table_entry(found)
        if by is not None:
            parts = found.segments.items()
            entry["segments"] = {label: table_entry(part) for label, part in parts}
        table[str(path)] = entry | about | {"metric": evaluator.decision()}
    return table


def evaluate_run(
    path: Path | str,
    split: str,
    *,
    data: Path | str | None = None,
    ks: Sequence[int] | None = None,
    by: str | None = None,
) -> Evaluation:
    """The evaluation of a run's best model, with the values of each user and diversity of lists.

    Args:
        path: Run folder.
        split: "valid" or "test".
        data: Dataset folder, if it is not where training found it.
        ks: List lengths; None for those of training.
        by: A user feature, or "activity": also measure each segment of users.
    """
    return _evaluated(path, split, data, ks, by)[1]


def _evaluated(
    path: Path | str,
    split: str,
    data: Path | str | None,
    ks: Sequence[int] | None,
    by: str | None,
    ranks: Ranks | None = None,
    on_items: OnItems | None = None,
) -> tuple[RunEvaluator, Evaluation]:
    for k in ks or ():
        if not 0 < k <= MOST_PLACES:
            raise ConfigError(f"k must be 1 to {MOST_PLACES:,}, got {k}")
    saved = open_run(path, data=data)
    dataset = saved.dataset
    recipe = saved.recipe.changed(["train.device=cpu"])  # where `open_run` loads the towers
    evaluator = RunEvaluator(dataset, recipe, ranks, on_items)
    found = evaluator.evaluate(saved.towers, split, ks=ks, measures=content_measures(dataset))
    if by is not None and found.user_ids is not None:
        labels = user_labels(dataset, split, by, found.user_ids)
        found = replace(found, segments=by_segment(found, labels))
    return evaluator, found


def content_measures(dataset: Dataset) -> dict[str, ListMeasure]:
    """Diversity by content, of a dataset that has any that can be compared."""
    content = ContentDiversity(dataset.item_features)
    return {"content_diversity": content} if content.parts else {}


def table_entry(evaluation: Evaluation) -> dict[str, Any]:
    """Metrics, intervals, number of users; the same of unseen items as "unseen"."""
    intervals = {k: [i.low, i.high] for k, i in evaluation.intervals().items() if i.low == i.low}
    entry = {
        "metrics": without_nan(evaluation.means()),
        "intervals": intervals,
        "num_users": evaluation.num_users,
    }
    return entry | ({"unseen": table_entry(evaluation.unseen)} if evaluation.unseen else {})
