"""`model.name = "auto"`: which user tower suits a dataset, decided by a short race before training.

    choice = choose_model(recipe, dataset, folder, measure)
    choice.applied_to(recipe)     # what to train
    choice.reason                 # what was measured

The candidates race on validation users (`crossbatch.training.race`) with narrow vectors, whose
steps take a fraction of the time. The winner then trains from its first step, as if the recipe had
named it: `config.json` has its settings, and beside them what was asked and measured. Each
measurement is written to the run folder at once, and a resumed race continues with the next one.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from crossbatch.errors import ConfigError, DataError, DivergedError
from crossbatch.files import SEAL, read_document, seal_is_broken, sealed, write_document
from crossbatch.training.cooccurrence import FirstVectors
from crossbatch.training.race import Measurement, Race
from crossbatch.training.run_folder import OWN_MODEL, RACE, RunFolder, sealed_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from crossbatch.config import Recipe
    from crossbatch.data import Dataset
    from crossbatch.training.distributed.ranks import Ranks
    from crossbatch.training.race import Measure

# `[model.tower]` of an auto model: CPU seconds of the race, steps before the first comparison, and
# what each candidate is tried with: widths d besides `model.dim`, lengths L besides its own.
AUTO: dict[str, Any] = {
    "race_seconds": 60.0,
    "first_steps": 1000,
    "widths": [],
    "history_lengths": [],
}
MOST_USERS = 4_000  # validation users that a candidate is measured on
# Candidates race with vectors of at most this width, unless widths are what they differ in. Which
# tower was ahead did not depend on it wherever we looked, and a step takes a third of the time.
RACE_DIM = 64
# Where items have fewer than `SPARSE` interactions on average, candidates within this share of the
# best are level, and the first of them in their order is taken: on such data recent items are
# overtaken early in training and ahead at its end. (Amazon's: 13 to 16; MovieLens: 74, 270.)
LEVEL, SPARSE = 0.03, 40
# One of two candidates that is so far ahead after a thousand steps stayed ahead wherever we looked.
CLEAR = 0.03
# Width d of the winner, unless the recipe sets it: of few samples, wide vectors learn too much.
FEW_SAMPLES, NARROW, WIDE = 250_000, 128, 256
# What a candidate puts into `[model]` and `[train]`; a history length that the recipe sets stays.
# GRU4REC is not among them: a step of it takes several times as long.
CANDIDATES: dict[str, dict[str, dict[str, Any]]] = {
    "recent items": {
        "model": {"name": "recent_items", "tower": {}},
        "train": {"history_length": 10},
    },
    "recency pooling": {
        "model": {"name": "youtube_dnn", "tower": {"pooling": "recency"}},
        "train": {"history_length": 50},
    },
}


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model, and the race that it won.

    Attributes:
        candidate: Name of the winner.
        settings: What the winner changes in `[model]` and `[train]`.
        reason: What was measured, in a sentence.
        asked: The recipe as it was before, with `"auto"` for what the race was to decide.
        measured: The race: every `Measurement`, in their order.
    """

    candidate: str
    settings: dict[str, dict[str, Any]]
    reason: str
    asked: dict[str, Any]
    measured: list[dict[str, Any]]

    def __str__(self) -> str:
        model, train = self.settings["model"], self.settings["train"]
        options = model["tower"] | {key: model[key] for key in ("dim",) if key in model} | train
        described = ", ".join(f"{key} = {value}" for key, value in options.items())
        return f"model chosen: {model['name']} ({described}), because {self.reason}"

    def applied_to(self, recipe: Recipe) -> Recipe:
        """The recipe with what was chosen."""
        return changed_by(self.settings, recipe)


def choose_model(
    recipe: Recipe,
    dataset: Dataset,
    folder: RunFolder,
    measure: Measure,
    say: Callable[[str], None] = lambda _: None,
    ranks: Ranks | None = None,
    clock: Callable[[], float] | None = None,
    vectors: FirstVectors | None = None,
) -> ModelChoice:
    """The choice of the first session of a run, or a race that makes it.

    Args:
        recipe: A resolved recipe whose model is `"auto"`.
        dataset: What to train on.
        folder: The run's folder, where measurements are kept.
        measure: Measures a candidate; larger is better.
        say: Gets a sentence at the start and at the end of a race.
        ranks: Processes that train together; they do not race.
        clock: As in `Race`.
        vectors: Where items begin; what is counted for the race is kept there.

    Raises:
        ConfigError: If the recipe is another one than that of the run in the folder.
        DataError: If the record of an earlier session was changed.
        Interrupted: If Ctrl-C ended the race; what was measured is kept.
        DivergedError: If no candidate could be trained.
    """
    options = race_options(recipe)
    recipe = replace(recipe, model=replace(recipe.model, tower=options))
    asked, config = asked_recipe(recipe, dataset), folder.config()
    names = [field.name for field in fields(ModelChoice)]
    recorded = sealed_entry(folder.path, config, RACE, names, "which model the run chose")
    if recorded is not None:
        choice = ModelChoice(**recorded)
        folder.check_config(asked, choice.asked)
    else:
        folder.check_config(asked)
        if ranks is not None:
            raise ConfigError(
                'model.name is "auto", which one process decides alone: start the run without '
                "torchrun, or name a model"
            )
        dataset.verify(shards=False)
        candidates = candidates_of(with_width(recipe, dataset))
        record = RaceRecord(folder, asked, raced(candidates, options))
        seconds = options["race_seconds"]
        steps = min(options["first_steps"], recipe.train.max_steps)
        say(
            f'model.name is "auto": {len(candidates)} candidates train for {steps:,} steps '
            f"each and the better half continues, within {seconds:g} CPU seconds"
        )
        measured, keep = record.read(), record.write
        vectors = vectors or FirstVectors(dataset, recipe.train)
        vectors.width = max(map(table_width, candidates.values()))
        share = level_share(dataset)
        over = partial(settled, level_share=share if len(candidates) == 2 else None)
        how = (measure, steps, seconds, measured, keep, clock, over, vectors)
        race = Race(record.candidates, dataset, *how)
        choice = _choice(race, race.run(), candidates, asked, share)
    say(str(choice))
    return choice


def _choice(
    race: Race,
    ranked: list[Measurement],
    candidates: dict[str, Recipe],
    asked: dict[str, Any],
    level_share: float,
) -> ModelChoice:
    """The choice among `candidates` that follows from the last round of a race."""
    best = leading(ranked, list(candidates), level_share)
    recipe = candidates[best.candidate]
    if best.value is None:
        raise DivergedError(
            f'model.name = "auto": no candidate has a finite loss and {recipe.train.metric} after '
            f"{best.steps:,} steps; try a smaller train.lr, or name a model"
        )
    behind = [each for each in ranked if each is not best]
    others = ", ".join(f"{_percent(each.value)} of {each.candidate}" for each in behind)
    width = race.candidates[best.candidate].model.dim
    narrow = f" with {width} dimensions" if width < recipe.model.dim else ""
    level = "" if best is ranked[0] else f", which is level: less than {level_share:.0%} apart"
    reason = (
        f"after {best.steps:,} steps{narrow} its {recipe.train.metric} of validation users was "
        f"{_percent(best.value)}, against {others}{level}; {len(candidates)} candidates were "
        f"compared in {race.cpu_seconds():.0f} CPU seconds"
    )
    measured = [asdict(each) for each in race.measured]
    return ModelChoice(best.candidate, settings_of(recipe), reason, asked, measured)


def level_share(dataset: Dataset) -> float:
    """Share of the best value within which candidates are level."""
    return LEVEL if dataset.num_interactions < SPARSE * dataset.num_items else 0.0


def settled(ahead: Sequence[Measurement], level_share: float | None) -> bool:
    """Whether one of two candidates is clearly better, or they are level; never where None."""
    values = [each.value for each in ahead]
    best, second = values[0], values[1]
    if level_share is None or best is None or second is None or best <= 0:
        return False
    return second < (1 - CLEAR) * best or second > (1 - level_share) * best


def leading(ranked: list[Measurement], order: list[str], level_share: float) -> Measurement:
    """The first in `order` of those that are level with the best."""
    best = ranked[0].value
    if best is None:
        return ranked[0]
    least = (1 - level_share) * best
    level = [each for each in ranked if each.value is not None and each.value >= least]
    return min(level, key=lambda each: order.index(each.candidate))


def _percent(value: float | None) -> str:
    return "no number" if value is None else f"{100 * value:.2f} %"


@dataclass(frozen=True, slots=True)
class RaceRecord:
    """The file of an unfinished race: what was measured, and for which recipe."""

    folder: RunFolder
    asked: dict[str, Any]
    candidates: dict[str, Recipe]

    def write(self, measured: list[Measurement]) -> None:
        """Write the file."""
        document = {
            "asked": self.asked,
            "candidates": self._settings(),
            "measured": [asdict(each) for each in measured],
        }
        write_document(self.folder.race, sealed(document))

    def read(self) -> list[Measurement]:
        """What earlier sessions measured of the same candidates."""
        path = self.folder.race
        if not path.is_file():
            return []
        remedy = "delete it to compare the candidates anew"
        document = read_document(path, remedy)
        if SEAL not in document or seal_is_broken(document):
            raise DataError(f"{path} was changed: {remedy}")
        self.folder.check_config(self.asked, document["asked"])
        if document["candidates"] != self._settings():  # those of another release
            return []
        return [Measurement(**each) for each in document["measured"]]

    def _settings(self) -> dict[str, Any]:
        return {name: settings_of(candidate) for name, candidate in self.candidates.items()}


def race_options(recipe: Recipe) -> dict[str, Any]:
    """`[model.tower]` of an auto model, checked and with its defaults."""
    unknown = sorted(set(recipe.model.tower) - set(AUTO))
    if unknown:
        raise ConfigError(
            f"unknown key model.tower.{unknown[0]}; an auto model knows: {', '.join(AUTO)}"
        )
    options = AUTO | recipe.model.tower
    for key, kinds in (("race_seconds", (int, float)), ("first_steps", int)):
        value = options[key]
        if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < math.inf:
            word = "an integer of 1 or more" if kinds is int else "a positive number"
            raise ConfigError(f"model.tower.{key} must be {word}, got {value!r}")
    for key in ("widths", "history_lengths"):
        value = options[key]
        if not isinstance(value, list) or not all(type(each) is int and each > 0 for each in value):
            raise ConfigError(
                f"model.tower.{key} must be a list of positive integers, such as [128, 256], "
                f"got {value!r}"
            )
    return options


def asked_recipe(recipe: Recipe, dataset: Dataset) -> dict[str, Any]:
    """The recipe as it is compared on a resume, with `"auto"` for what the race decides."""
    document = recipe.to_dict()
    for section, key in (("train", "history_length"), ("model", "dim")):
        if not recipe.says(section, key):
            document[section][key] = "auto"
    document |= {"dataset": {"checksum": dataset.manifest["checksum"]}, OWN_MODEL: None}
    plain: dict[str, Any] = json.loads(json.dumps(document))  # with lists for tuples
    return plain


def candidates_of(recipe: Recipe) -> dict[str, Recipe]:
    """A recipe for each tower, width and history length; those that are alike are one."""
    options = race_options(recipe)
    found: dict[str, Recipe] = {}
    for tower, settings in CANDIDATES.items():
        own = recipe if recipe.says("train", "history_length") else changed_by(settings, recipe)
        lengths = dict.fromkeys([own.train.history_length, *options["history_lengths"]])
        for width in dict.fromkeys([recipe.model.dim, *options["widths"]]):
            for length in lengths:
                name = tower
                if len(lengths) > 1:
                    name += f", L = {length}"
                if options["widths"]:
                    name += f", d = {width}"
                model = settings["model"] | {"dim": width}
                train = {"history_length": length}
                candidate = changed_by({"model": model, "train": train}, recipe)
                if candidate not in found.values():
                    found[name] = candidate
    return found


def with_width(recipe: Recipe, dataset: Dataset) -> Recipe:
    """The recipe with a width that suits the number of training samples, unless it sets one."""
    if recipe.says("model", "dim"):
        return recipe
    samples = dataset.num_samples(recipe.train.min_history, recipe.train.newest_days)
    width = NARROW if samples < FEW_SAMPLES else WIDE
    return replace(recipe, model=replace(recipe.model, dim=width))


def table_width(recipe: Recipe) -> int:
    """Dimensions of an item's row."""
    width: int = recipe.model.item.get("id_dim") or recipe.model.dim
    return width


def raced(candidates: dict[str, Recipe], options: dict[str, Any]) -> dict[str, Recipe]:
    """The candidates as they race: narrower than they will be trained."""
    if options["widths"]:
        return candidates
    return {
        name: replace(each, model=replace(each.model, dim=min(each.model.dim, RACE_DIM)))
        for name, each in candidates.items()
    }


def changed_by(settings: dict[str, dict[str, Any]], recipe: Recipe) -> Recipe:
    """The recipe with other values in `[model]` and `[train]`."""
    model = replace(recipe.model, **settings["model"])
    return replace(recipe, model=model, train=replace(recipe.train, **settings["train"]))


def settings_of(candidate: Recipe) -> dict[str, dict[str, Any]]:
    """What tells a candidate from the others."""
    names = ("name", "dim", "tower")
    model = {name: getattr(candidate.model, name) for name in names}
    return {"model": model, "train": {"history_length": candidate.train.history_length}}
