"""`Recommender`: from a data frame to recommendations, with the parameters of an estimator.

    recommender = Recommender("youtube_dnn", max_steps=2000).fit(clicks, items=products)
    recommender.recommend(["u17", "u4"], k=10).to_frame()

It calls what the commands call: `prepare`, `train`, `export`, `recommend`. A folder keeps what they
write: `dataset`, `run` and `bundle`, for `crossbatch serve FOLDER/bundle` for example. The class
that a bundle is, `crossbatch.serving.Recommender`, ranks items and knows no training.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from dataclasses import KW_ONLY, asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from crossbatch.config import Recipe
from crossbatch.data import Dataset, PrepareOptions, append, open_dataset, prepare
from crossbatch.errors import ConfigError, DataError
from crossbatch.estimator.answers import Answers
from crossbatch.estimator.frame_source import READING, FrameFacts, frame_source
from crossbatch.estimator.parameters import Parameters
from crossbatch.evaluation.runs import evaluate_run
from crossbatch.files import (
    atomic_folder,
    file_checksum,
    flat,
    put_in_place,
    read_document,
    write_document,
)
from crossbatch.fitting import fit
from crossbatch.progress import progress_bars
from crossbatch.remote import local_path
from crossbatch.results import FitResult, Recommendations
from crossbatch.serving import Bundle, open_bundle
from crossbatch.serving.bundle.export import export_bundle
from crossbatch.training.progress import Progress, Terminal, open_trackers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from crossbatch.evaluation import Evaluation

DOCUMENT, PLAN = "recommender.json", "plan.json"
FORMAT_VERSION = 1
# Parameters that are keys of a recipe.
RECIPE_KEYS = {
    "negatives": "sampler.name",
    "dim": "model.dim",
    "history_length": "train.history_length",
    "batch_size": "train.batch_size",
    "lr": "train.lr",
    "max_steps": "train.max_steps",
    "seed": "train.seed",
}


@dataclass(eq=False, repr=False)
class Recommender(Parameters):
    """A two-tower model of a log, with the interface of a scikit-learn estimator.

    Args:
        model: A key of `MODELS`, such as "youtube_dnn"; "auto" for the recipe's, by default a race
            of candidates.
        recipe: A `Recipe`, its file or name; None for the best settings we know.
        negatives: A key of `SAMPLERS`, or "auto". This and the next six are the recipe's if None.
        dim: Dimension of all vectors.
        history_length: Most recent items that describe a user.
        batch_size: Samples per training step.
        lr: Learning rate.
        max_steps: Longest training, in batches; 0 for five passes over the samples.
        seed: Seed of the training.
        settings: Further keys of the recipe, as `{"loss.temperature": 0.05}`.
        user: Column of user ids; found by a usual name if None, as the next three.
        item: Column of item ids.
        time: Column of times; "none" if the order of the rows is the time.
        rating: Column of ratings.
        item_features: Kinds of the columns of `items` to use, as `{"genres": "multi_valued"}`;
            None for all, by their types.
        user_features: Likewise of `users`.
        split: How interactions are held out: "leave_last_out", "time", "day" or "user". There is
            no `partial_fit` after "user".
        prepare: Further options of `crossbatch prepare`, as `{"min_item_count": 1}`, `{"event":
            "kind", "event_weights": {"click": 1, "buy": 5}}`, `{"context": {"device":
            "categorical"}}`.
        filters: Item features that `recommend` may filter by, `NAME` or `NAME:KIND`.
        folder: Where to keep dataset, run and bundle; None for a temporary folder. There an
            interrupted `fit` or `partial_fit` resumes if it is called again with the same data.
        track: Where to log training: "tensorboard", "mlflow", "wandb".
        verbose: Whether to show progress.
    """

    model: str = "auto"
    _: KW_ONLY
    recipe: Recipe | Path | str | None = None
    negatives: str | None = None
    dim: int | None = None
    history_length: int | None = None
    batch_size: int | None = None
    lr: float | None = None
    max_steps: int | None = None
    seed: int | None = None
    settings: Mapping[str, Any] | None = None
    user: str | None = None
    item: str | None = None
    time: str | None = None
    rating: str | None = None
    item_features: Mapping[str, str] | None = None
    user_features: Mapping[str, str] | None = None
    split: str = "leave_last_out"
    prepare: Mapping[str, Any] | None = None
    filters: Sequence[str] = ()
    folder: Path | str | None = None
    track: Sequence[str] = ()
    verbose: bool = True

    def __post_init__(self) -> None:
        self._place: Path | None = None  # the folder, once there is a model in it

    def __repr__(self) -> str:
        if self._place is None:
            return super().__repr__()
        sizes = f"{self.dataset_.num_users:,} users and {self.dataset_.num_items:,} items"
        return f"<{super().__repr__()} fitted on {sizes}>"

    # --- training ---

    def fit(self, log: Any, *, items: Any = None, users: Any = None) -> Self:
        """Prepare a log, train on it, and export a bundle; an earlier model is replaced.

        Args:
            log: A frame of interactions (pandas, polars, pyarrow and others that narwhals knows),
                or a NumPy or SciPy matrix of users by items, whose values are ratings.
            items: A frame of item content, with a column of item ids.
            users: A frame of user content, with a column of user ids.

        Raises:
            ConfigError: If a parameter is wrong.
            DataError: If the log cannot be used.
            Interrupted: If Ctrl-C ended training.
        """
        recipe, place = self._recipe(), self._own_folder()
        given = {"split": self.split} | dict(self.prepare or {})
        given = {name: value for name, value in given.items() if name not in READING}
        if given.get("shards") is not None:
            raise ConfigError(
                f"prepare has shards = {given['shards']}, but a Recommender keeps all histories, "
                "which it answers users from: leave it out"
            )
        reading = self._reading()
        given.setdefault("growing", given["split"] != "user" and not given.get("cold_items"))
        with tempfile.TemporaryDirectory(dir=place) as raw, self._bars() as bars:
            source, facts = frame_source(log, Path(raw), reading, items=items, users=users)
            chosen = PrepareOptions.merged(source.defaults, given)
            (place / DOCUMENT).unlink(missing_ok=True)  # from here on the old model is gone
            prepare(source, place / "dataset", chosen, overwrite=True, progress=bars)
        self._train(place, recipe, facts, start_from=None)
        return self

    def partial_fit(
        self,
        log: Any,
        *,
        items: Any = None,
        users: Any = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Self:
        """Add further interactions and train on from the present model; `fit` if there is none.

        The present model answers until this has succeeded.

        Args:
            log: As of `fit`, with new interactions alone.
            items: Content of new items, and of old ones that changed.
            users: Likewise of users.
            settings: Keys of the recipe for this training, as `{"train.newest_days": 3}`.
        """
        if self._place is None:
            return self.fit(log, items=items, users=users)
        recipe, place = self._recipe(settings), self._place
        with tempfile.TemporaryDirectory(dir=place) as raw, self._bars() as bars:
            options = self._reading()
            source, _ = frame_source(log, Path(raw), options, items=items, users=users)
            append(source, place / "dataset", place / "dataset", overwrite=True, progress=bars)
        self._train(place, recipe, self._facts, start_from=place / "run")
        return self

    def _bars(self) -> Any:
        return progress_bars(quiet=not self.verbose)

    def _reading(self) -> dict[str, Any]:
        """The options of reading."""
        options = {name: v for name, v in (self.prepare or {}).items() if name in READING}
        features = {"item_columns": self.item_features, "user_columns": self.user_features}
        names = ("user", "item", "time", "rating")
        return options | features | {name: getattr(self, name) for name in names}

    def _recipe(self, more: Mapping[str, Any] | None = None) -> Recipe:
        """The recipe with the parameters that are its keys."""
        base = self.recipe if isinstance(self.recipe, Recipe) else Recipe.load(self.recipe)
        changes = {} if self.model == "auto" else {"model.name": self.model}
        given = {key: getattr(self, name) for name, key in RECIPE_KEYS.items()}
        changes |= {key: value for key, value in given.items() if value is not None}
        changes |= {**(self.settings or {}), **(more or {})}
        return base.changed([f"{key}={json.dumps(value)}" for key, value in flat(changes).items()])

    def _own_folder(self) -> Path:
        """The folder of this model, made if absent."""
        if self.folder is None:
            place = Path(tempfile.mkdtemp(prefix="crossbatch-"))
            weakref.finalize(self, shutil.rmtree, place, ignore_errors=True)
            return place
        place = Path(self.folder)
        ours = any((place / name).exists() for name in (DOCUMENT, PLAN, "dataset/manifest.json"))
        if place.exists() and not ours and (not place.is_dir() or any(place.iterdir())):
            raise ConfigError(f"folder {place} holds something else than a model: name another")
        place.mkdir(parents=True, exist_ok=True)
        return place

    def _train(
        self, place: Path, recipe: Recipe, facts: FrameFacts, start_from: Path | None
    ) -> None:
        """Train in `run.next`, export, and replace run and bundle."""
        dataset, run = open_dataset(place / "dataset"), place / "run.next"
        begins = file_checksum(start_from / "result.json") if start_from else None
        plan = {"dataset": dataset.manifest["checksum"], "start_from": begins}
        plan = json.loads(json.dumps(plan | {"recipe": recipe.to_dict()}))
        known = read_document(place / PLAN, "delete it") if (place / PLAN).is_file() else None
        if known != plan:  # what an interrupted call left was something else
            shutil.rmtree(run, ignore_errors=True)
            write_document(place / PLAN, plan)
        progress = Terminal(recipe.train.metric) if self.verbose else Progress()
        try:
            with open_trackers(self.track, run) as trackers:
                options: Any = {"progress": progress, "trackers": trackers}
                fit(dataset, recipe, run, resume=True, start_from=start_from, **options)
        finally:
            progress.stop()
        with self._bars() as bars:
            export_bundle(
                run,
                place / "bundle",
                name=place.name,
                filter_columns=self.filters,
                overwrite=True,
                progress=bars,
            )
        put_in_place(run, place / "run", replace=True)
        shutil.rmtree(run, ignore_errors=True)  # the earlier run
        (place / PLAN).unlink(missing_ok=True)
        self._write_document(place, facts)
        self._open(place, facts)

    # --- folders ---

    def _write_document(self, place: Path, facts: FrameFacts) -> None:
        parameters = self.get_params() | {"folder": None}
        if isinstance(self.recipe, Recipe):
            parameters["recipe"] = self.recipe.to_dict()
        document = {"format_version": FORMAT_VERSION, "parameters": parameters}
        whole = json.dumps(document | {"frame": asdict(facts)}, default=str)  # paths among them
        write_document(place / DOCUMENT, json.loads(whole))

    def _open(self, place: Path, facts: FrameFacts) -> None:
        self._place, self._facts = place, facts
        for name in ("bundle_", "dataset_"):
            self.__dict__.pop(name, None)

    def save(self, path: Path | str, *, overwrite: bool = False) -> Path:
        """Copy dataset, run and bundle to a folder or URL that `load` opens; return its path."""
        place = self._fitted()
        with atomic_folder(Path(path), overwrite=overwrite, marker=DOCUMENT) as folder:
            for part in ("dataset", "run", "bundle"):
                shutil.copytree(place / part, folder / part)
            shutil.copy2(place / DOCUMENT, folder / DOCUMENT)
        return Path(path)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Open a folder of `save`, or one that was named as `folder`; nothing is unpickled.

        Raises:
            DataError: If it is no such folder, damaged or incomplete.
        """
        place = local_path(path)
        if not (place / DOCUMENT).is_file():
            raise DataError(
                f"{place} is no fitted Recommender (no {DOCUMENT}): pass what save() wrote, or "
                "call fit again if it was interrupted"
            )
        document = read_document(place / DOCUMENT, "save the model again")
        if document.get("format_version") != FORMAT_VERSION:
            raise DataError(
                f"{place} has format version {document.get('format_version')}, this release reads "
                f"{FORMAT_VERSION}: fit the model again"
            )
        try:
            parameters = document["parameters"] | {"folder": str(place)}
            if isinstance(parameters["recipe"], dict):
                parameters["recipe"] = Recipe.from_dict(parameters["recipe"])
            lists = {name: tuple(parameters[name]) for name in ("filters", "track")}
            found = cls(**parameters | lists)
            found._open(place, FrameFacts(**document["frame"]))
        except (KeyError, TypeError) as error:
            raise DataError(
                f"{place / DOCUMENT} is not as save() wrote it ({error}): save the model again"
            ) from None
        _ = found.bundle_, found.dataset_
        return found

    def _fitted(self) -> Path:
        if self._place is None:
            raise ConfigError("this Recommender has no model yet: call fit first")
        return self._place

    @cached_property
    def bundle_(self) -> Bundle:
        """The bundle that recommends."""
        return open_bundle(self._fitted() / "bundle")

    @cached_property
    def dataset_(self) -> Dataset:
        """The dataset that it was trained on."""
        return open_dataset(self._fitted() / "dataset")

    @property
    def result_(self) -> FitResult:
        """What training measured."""
        return FitResult(read_document(self._fitted() / "run" / "result.json", "fit it again"))

    # --- answers ---

    def recommend(
        self,
        users: Any = None,
        k: int = 20,
        *,
        exclude_seen: bool = True,
        user_features: Sequence[Mapping[str, Any] | None] | None = None,
        filter: Mapping[str, Any] | None = None,  # noqa: A002 - named as in a request
        candidates: Sequence[Any] | None = None,
        context: Sequence[Mapping[str, Any] | None] | None = None,
        exclude: Sequence[Any] = (),
    ) -> Recommendations:
        """The k best items for users of the log, or for histories of items.

        Args:
            users: Ids of users, who are described by all their interactions; or histories, each a
                sequence of item ids, oldest first; None for all users. Ids that the log does not
                have are left out, and a user of whom nothing is known gets the most popular items.
            k: Length of the lists.
            exclude_seen: Whether items that a user has had stay out of the list.
            user_features: With histories: for each, values by name.
            filter: Conditions on the columns of `filters`, as `{"genre": "Drama"}`.
            candidates: Ids of the only items that a list may hold.
            context: For each user or history, values by name of the model's context features.
            exclude: Ids of items that no list may hold.

        Raises:
            ConfigError: If none of the users is known, or another argument is wrong.
        """
        return Answers(self.bundle_, self.dataset_, self._facts).recommend(
            users,
            k,
            exclude_seen=exclude_seen,
            user_features=user_features,
            context=context,
            exclude=exclude,
            allowed=self.bundle_.allowed(filter, candidates and [str(key) for key in candidates]),
        )

    def similar(self, items: Any, k: int = 20) -> Recommendations:
        """The k items of largest cosine with an item, or with each of several; itself left out."""
        return Answers(self.bundle_, self.dataset_, self._facts).similar(items, k)

    def evaluate(
        self, split: str = "test", *, k: int | Sequence[int] | None = None, by: str | None = None
    ) -> Evaluation:
        """Rank the whole catalogue for every user of a split and measure the lists.

        Args:
            split: "valid" or "test".
            k: Length of the lists, or several; None for 20 and 50.
            by: A user feature, a context feature or "activity": also measure each segment of users.
        """
        place, ks = self._fitted(), [k] if isinstance(k, int) else k
        found = evaluate_run(place / "run", split, data=place / "dataset", ks=ks, by=by)
        return replace(found, library=self._facts.library)
