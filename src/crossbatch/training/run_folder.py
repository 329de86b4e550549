"""`RunFolder`: the files of a run, and the lock that keeps two trainings apart; `open_run`.

saved = open_run(Path("runs/first"))
saved.towers.users(history)
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from crossbatch.config import Recipe, filled
from crossbatch.data import Dataset, open_dataset
from crossbatch.errors import ConfigError, DataError
from crossbatch.files import (
    CHECKSUMS,
    SEAL,
    check_regular,
    document_bytes,
    file_checksum,
    flat,
    read_document,
    seal_is_broken,
    verify_checksums,
    write_document,
)
from crossbatch.negatives import SAMPLERS
from crossbatch.remote import is_url
from crossbatch.training import checkpoint
from crossbatch.training.build import build_towers
from crossbatch.training.distributed.sharded_table import load_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from torch import Tensor

    from crossbatch.models import TwoTower
    from crossbatch.training.loop import EarlyStopping
    from crossbatch.training.step import Trainer

# Files that a finished run lists in `checksums.json`; the best model has checksums of its own.
CHECKED_FILES = ("config.json", "journal.jsonl", "examples.json", "per_user/*.npy")
LOCK = ".lock"  # of the process that writes a folder; stays when it has ended
OWN_MODEL, RACE, START = "own_model", "race", "start"  # keys of `config.json`
SECTIONS = ("model.", "sampler.", "loss.", "train.", "dataset.")  # that make a run what it is
# Keys that may differ between the sessions of one run: they do not change what is learned.
RESUMABLE_CHANGES = frozenset(
    {
        "model.tower.race_seconds",
        "train.max_steps",
        "train.patience",
        "train.keep_checkpoints",
        "train.threads",
        "dataset.path",
    }
)


class RunInUseError(ConfigError):
    """Another process trains in the folder."""


class RunFolder:
    """A folder that one process trains in.

    Args:
        path: The folder; made if absent.
        resume: Whether an earlier run in it is to be continued.
        writes: Whether this process writes the folder, and locks it. Of processes that train
            together the first one does, for the others it is read-only.

    Raises:
        ConfigError: If it holds a run and `resume` is off.
        RunInUseError: If another process trains in it.
    """

    def __init__(self, path: Path, *, resume: bool, writes: bool = True) -> None:
        self.path, self.writes = path, writes
        self.checkpoints, self.best = path / "checkpoints", path / "best"
        self.race = path / "race.json"  # of a model that is chosen by a race
        if not writes:
            return
        if not resume and path.exists() and any(each.name != LOCK for each in path.iterdir()):
            raise ConfigError(
                f"{path} is not empty; choose another --out, or pass --resume to continue the "
                "run in it"
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
            check_regular(*path.rglob("*"))
            self._lock = (path / LOCK).open("w")
        except OSError as error:
            raise ConfigError(f"run folder {path} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise RunInUseError(f"{path} is in use by another training process") from None
        except OSError as error:
            self._lock.close()
            raise ConfigError(
                f"run folder {path} cannot be locked ({error.strerror}): choose an --out on a "
                "file system that has locks"
            ) from None

    def close(self) -> None:
        """Release the lock."""
        if self.writes:
            self._lock.close()

    # --- config.json and result.json ---

    def config(self) -> dict[str, Any]:
        """What an earlier session wrote into `config.json`; empty before the first."""
        path = self.path / "config.json"
        remedy = "delete it to resume the run with the recipe you pass"
        return read_document(path, remedy) if path.is_file() else {}

    def check_config(self, config: dict[str, Any], earlier: dict[str, Any] | None = None) -> None:
        """Raise `ConfigError` if `config` is of another run than the one in the folder.

        That one began with `earlier`, or with what `config.json` says.
        """
        earlier = self.config() if earlier is None else earlier
        if not earlier:
            return
        self._check_own_model(earlier, config)
        for key, before, value in changed_keys(earlier, config):
            raise ConfigError(
                f"{key} is {value!r}, but the run in {self.path} began with {before!r}; "
                "resume with the same recipe and data"
            )

    def _check_own_model(self, earlier: dict[str, Any], config: dict[str, Any]) -> None:
        """Refuse a resume with other towers than the run was started with."""
        before, now = earlier.get(OWN_MODEL), config[OWN_MODEL]
        if before != now:
            began = f"with the class {before}" if before else "with the towers of its recipe"
            given = f"model= is of class {now}" if now else "no model= was passed"
            remedy = "resume it in Python by fit(..., model=..., resume=True)"
            remedy = f"{remedy} with a {before}" if before else "leave model= out"
            raise ConfigError(f"the run in {self.path} began {began}, but {given}: {remedy}")

    def write_config(self, config: dict[str, Any]) -> None:
        """Write `config.json`."""
        if self.writes:
            write_document(self.path / "config.json", config)

    def result(self) -> dict[str, Any] | None:
        """The result of a finished run, or None."""
        path = self.path / "result.json"
        if not path.is_file():
            return None
        verify_checksums(self.path)
        self._drop_checkpoints()  # a kill may have come before
        return read_document(path, "delete it and resume the run")

    def write_result(self, result: dict[str, Any]) -> None:
        """Finish: list the checksums of what has none of its own, then write `result.json`."""
        if not self.writes:
            return
        listed = {
            path.relative_to(self.path).as_posix(): file_checksum(path)
            for pattern in CHECKED_FILES
            for path in sorted(self.path.glob(pattern))
        }
        listed["result.json"] = hashlib.sha256(document_bytes(result)).hexdigest()
        write_document(self.path / CHECKSUMS, listed)
        write_document(self.path / "result.json", result)
        self._drop_checkpoints()

    def _drop_checkpoints(self) -> None:
        """Delete what only a resume needs of a finished run; the best model stays."""
        if self.writes:
            shutil.rmtree(self.checkpoints, ignore_errors=True)
            self.race.unlink(missing_ok=True)  # `config.json` has the race too

    # --- checkpoints and the best model ---

    def newest_checkpoint(self) -> str | None:
        """Name of the newest checkpoint, whole or not."""
        return max((path.name for path in self.checkpoints.glob("step-*")), default=None)

    def save_checkpoint(
        self, trainer: Trainer, stopping: EarlyStopping, document: dict[str, Any], keep: int
    ) -> None:
        """Save all that an exact resume needs, and delete all but the newest `keep`."""
        document = document | {
            "step": trainer.step,
            "stopping": {
                "best": stopping.best if stopping.best_step else None,
                "best_step": stopping.best_step,
                "misses": stopping.misses,
            },
        }
        tensors = checkpoint.trainer_state(trainer) if self.writes else {}
        path, tables = self._checkpoint_path(trainer.step), trainer.optimizer.sharded
        checkpoint.save(path, tensors, document, tables, writes=self.writes)
        if self.writes:
            checkpoint.prune(self.checkpoints, keep)

    def load_checkpoint(
        self, trainer: Trainer, stopping: EarlyStopping, say: Callable[[str], None]
    ) -> dict[str, Any] | None:
        """Restore the newest whole checkpoint, if any, into `trainer` and `stopping`."""
        spread = trainer.optimizer.sharded
        found = checkpoint.load_newest(self.checkpoints, say, tables=not spread)
        if found is None:
            return None
        tensors, document = found
        try:
            checkpoint.check_document(document)
            load_tables(spread, self._checkpoint_path(document["step"]), tensors)
            checkpoint.load_trainer_state(trainer, tensors, document["step"])
            trainer.step = document["step"]
            saved = document["stopping"]
            stopping.best = float("-inf") if saved["best"] is None else saved["best"]
            stopping.best_step, stopping.misses = saved["best_step"], saved["misses"]
        except (ArithmeticError, KeyError, TypeError, RuntimeError, ValueError) as error:
            raise DataError(
                f"the checkpoint of step {document.get('step')} in {self.path} does not fit the "
                f"recipe: {error}"
            ) from error
        return document

    def save_best(
        self,
        trainer: Trainer,
        metrics: dict[str, float],
        *,
        own_code: bool = False,
        moments: bool = False,
    ) -> None:
        """Save the model, with the metrics that made it the best.

        Of towers of the caller's `own_code` a few vectors are kept, to know them again; with
        `moments` those of the optimiser, for a later run to start from.
        """
        tensors = checkpoint.model_state(trainer) if self.writes else {}
        if self.writes and moments:
            own = trainer.optimizer.moments()
            tensors |= {f"{checkpoint.MOMENTS}{name}": value for name, value in own.items()}
        tables = trainer.optimizer.sharded
        if self.writes and own_code:
            tensors |= checkpoint.sample_vectors(trainer.model, trainer.sampler.num_items)
        document = {"step": trainer.step, "metrics": metrics}
        checkpoint.save(self.best, tensors, document, tables, writes=self.writes)

    def load_best(self, trainer: Trainer) -> None:
        """Restore the best model into `trainer`."""
        spread = trainer.optimizer.sharded
        try:
            tensors, _ = checkpoint.load(self.best, tables=not spread)
        except DataError as error:
            raise DataError(
                f"{error}; delete {self.checkpoints} and resume, and the run starts over"
            ) from None
        load_tables(spread, self.best, tensors)
        checkpoint.load_model_state(trainer, tensors)

    def _checkpoint_path(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:09d}"


def in_use(path: Path) -> bool:
    """Whether a process trains in the run folder `path` at this moment."""
    try:
        with (path / LOCK).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


# --- comparing configurations ---


def changed_keys(earlier: dict[str, Any], config: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield every key that makes `config` another run than `earlier`, and its two values.

    A key that `earlier` does not have came with a later release: its default was in force then.
    Items began at random, samples were drawn by user, and seen items were not left out.
    """
    make = SAMPLERS.get(earlier.get("sampler", {}).get("name", ""))
    defaults = Recipe(sampler=filled(make, {}) if make else {}).to_dict()
    defaults["train"] |= {"sample_by": "user", "exclude_seen": "no"}
    defaults["model"] |= {"init": "random"}
    config, defaults = json.loads(json.dumps([config, defaults]))  # with lists for tuples
    before = flat(defaults) | flat(earlier)
    for key, value in flat(config).items():
        compared = key.startswith(SECTIONS) and key not in RESUMABLE_CHANGES
        if compared and before.get(key) != value:
            yield key, before.get(key), value


def sealed_entry(
    folder: Path, config: Mapping[str, Any], key: str, names: Iterable[str], what: str
) -> dict[str, Any] | None:
    """An entry of `config.json` with a checksum of its own, without that; None if there is none.

    It has the keys `names`; the recipe does not say what it holds, which is `what` for messages.
    """
    if key not in config:
        return None
    entry = config[key]
    whole = isinstance(entry, dict) and set(entry) == {*names, SEAL}
    if whole and not seal_is_broken(entry):
        return {name: value for name, value in entry.items() if name != SEAL}
    raise DataError(
        f"{folder / 'config.json'} was changed: {what} is no longer known; restore it, or start "
        "anew elsewhere"
    )


# --- reading a run that was trained ---


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A run's best towers and what they were trained on."""

    recipe: Recipe
    dataset: Dataset
    towers: TwoTower
    best_step: int
    log_temperature: float  # of the loss, as learned


def open_run(path: Path | str, *, data: Path | str | None = None) -> SavedRun:
    """Load the best model of a run folder, in evaluation mode.

    Args:
        path: The run folder.
        data: Dataset folder, if it is not where training found it.

    Raises:
        DataError: If the folder holds no trained model or one of the caller's own class, or the
            dataset is another one.
    """
    path = Path(path)
    recipe, dataset, _ = recipe_and_dataset(path, data)
    tensors, document = best_tensors(path)
    try:
        towers = build_towers(recipe, dataset, named=False)
    except ConfigError as error:
        raise DataError(f"the towers of {path} cannot be built: {error}") from None
    try:
        own = {f"model.{name}": value for name, value in towers.state_dict().items()}
        own["loss.log_temperature"] = torch.zeros(())
        checkpoint.check_kinds(tensors, own, checkpoint.MODEL)
        towers.load_state_dict(checkpoint.below(tensors, "model."))
        step = int(document["step"])
        log_temperature = float(tensors["loss.log_temperature"])
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise DataError(f"{path}/best does not fit the run's recipe: {reason}") from None
    if recipe.model.own_code and not checkpoint.are_same(towers.eval(), tensors, dataset.num_items):
        raise DataError(
            f"the towers of {path}, {recipe.model.own_code}, give other vectors than they gave in "
            "training: their code has changed since; restore it, or train again"
        )
    return SavedRun(recipe, dataset, towers.eval(), step, log_temperature)


def best_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and document of the best model of a run folder."""
    if not (path / "best").is_dir():
        raise DataError(f"{path} has no best model yet; train until its first evaluation")
    return checkpoint.load(path / "best")


def recipe_and_dataset(
    path: Path, data: Path | str | None = None, *, grown: bool = False
) -> tuple[Recipe, Dataset, int]:
    """Recipe and dataset of a run folder, and the number of items that the run knew.

    With `grown` the dataset may have grown since by `append`: these are its first items then.
    """
    verify_checksums(path)
    config = read_document(path / "config.json", f"{path} is no run folder, or a damaged one")
    own = config.get(OWN_MODEL)
    if own is not None:
        raise DataError(
            f"{path} was trained with a model of the caller's own, of class {own}, whose options "
            "are not known, so that it cannot be built again: name its import path as model.model "
            "in a recipe, or pass the class itself to fit"
        )
    try:
        recipe = Recipe.from_dict({k: config[k] for k in ("model", "sampler", "loss", "train")})
        place, checksum = Path(config["dataset"]["path"]), config["dataset"]["checksum"]
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}/config.json is not that of a run: it lacks {error}") from None
    beside = path.parent / place.name  # where run and dataset were moved or copied together
    found = (each for each in (place, beside) if is_url(each) or each.is_dir())
    places = [Path(data)] if data else list(found)
    for each in places or [place]:
        dataset = open_dataset(each)
        known = {dataset.manifest["checksum"]: dataset.num_items}
        known |= dataset.manifest.get("grown_from", {}) if grown else {}
        if checksum in known:
            dataset.verify(shards=False)  # which are for training alone
            return recipe, dataset, known[checksum]
    raise DataError(f"{(places or [place])[0]} is not the dataset that {path} was trained on")
