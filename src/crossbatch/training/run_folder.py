"""`RunFolder`: everything a run leaves on disk, and the lock that keeps two trainings apart."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from typing import TYPE_CHECKING, Any

import torch

from crossbatch.config import Recipe, filled
from crossbatch.errors import ConfigError, DataError
from crossbatch.files import (
    CHECKSUMS,
    document_bytes,
    file_checksum,
    read_document,
    verify_checksums,
    write_document,
)
from crossbatch.models import MODELS
from crossbatch.negatives import SAMPLERS
from crossbatch.training import checkpoint
from crossbatch.training.distributed.table_files import load_tables
from crossbatch.training.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import Tensor

    from crossbatch.training.loop import EarlyStopping
    from crossbatch.training.step import Trainer


# What a finished run lists in `checksums.json`; the best model has checksums of its own.
CHECKED_FILES = ("config.json", "journal.jsonl", "examples.json", "per_user/*.npy")


LOCK = ".lock"  # of the process that writes a folder; stays when it has ended


class RunInUseError(ConfigError):
    """Another process trains in the folder."""


class RunFolder:
    """A folder that one process trains in.

    Args:
        path: The folder; made if absent.
        resume: Whether an earlier run in it is to be continued.

    Raises:
        ConfigError: If it holds a run and `resume` is off.
        RunInUseError: If another process trains in it.

    Attributes:
        writes: Whether this process is the one that writes it.
    """

    writes = True

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        if not resume and path.exists() and any(path.iterdir()):
            raise ConfigError(
                f"{path} is not empty; choose another --out, or pass --resume to go on with the "
                "run in it"
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
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

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are."""
        return self.path / "checkpoints"

    @property
    def best(self) -> Path:
        """The best model so far, as a checkpoint of its own."""
        return self.path / "best"

    def result(self) -> dict[str, Any] | None:
        """The result of a finished run, or None."""
        path = self.path / "result.json"
        if not path.is_file():
            return None
        verify_checksums(self.path)
        self.drop_checkpoints()  # a kill may have come in between
        return read_document(path, "delete it and resume the run")

    def config(self) -> dict[str, Any]:
        """What an earlier sitting wrote into `config.json`; empty before the first."""
        path = self.path / "config.json"
        remedy = "delete it to resume the run with the recipe you pass"
        return read_document(path, remedy) if path.is_file() else {}

    def check_config(self, config: dict[str, Any]) -> None:
        """Compare `config` with the one that a resumed run began with."""
        earlier = self.config()
        if earlier:
            self._check_own_model(earlier, config)
        changes = list(changed_keys(earlier, config)) if earlier else []
        if changes:
            key, before, value = changes[0]
            raise ConfigError(
                f"{key} is {value!r}, but the run in {self.path} began with {before!r}; "
                "resume with the same recipe and data"
            )

    def _check_own_model(self, earlier: dict[str, Any], config: dict[str, Any]) -> None:
        """Refuse a resume with other towers than the run was started with."""
        before, now = own_model(self.path, earlier), config[OWN_MODEL]
        known = OWN_MODEL in earlier or before is not None
        if known and before != now:
            began = f"with the class {before}" if before else "with the towers of its recipe"
            given = f"model= is of class {now}" if now else "no model= was passed"
            remedy = "resume it in Python by fit(..., model=..., resume=True)"
            remedy = f"{remedy} with a {before}" if before else "leave model= out"
            raise ConfigError(f"the run in {self.path} began {began}, but {given}: {remedy}")

    def write_config(self, config: dict[str, Any]) -> None:
        """Write `config.json`."""
        write_document(self.path / "config.json", config)

    def journal(self, length: int) -> Journal:
        """The journal, of which `length` bytes are kept."""
        return Journal(self.path / "journal.jsonl", length)

    def checkpoint_path(self, step: int) -> Path:
        """Where the checkpoint of a step is."""
        return self.checkpoints / f"step-{step:09d}"

    def newest_checkpoint(self) -> str | None:
        """Name of the newest checkpoint, whole or not."""
        return max((path.name for path in self.checkpoints.glob("step-*")), default=None)

    def write_result(self, result: dict[str, Any]) -> None:
        """Finish: list the checksums of what has none of its own, then write `result.json`."""
        content = document_bytes(result)
        listed = {
            path.relative_to(self.path).as_posix(): file_checksum(path)
            for pattern in CHECKED_FILES
            for path in sorted(self.path.glob(pattern))
        }
        listed["result.json"] = hashlib.sha256(content).hexdigest()
        write_document(self.path / CHECKSUMS, listed)
        write_document(self.path / "result.json", result)
        self.drop_checkpoints()

    def save_checkpoint(
        self, trainer: Trainer, stopping: EarlyStopping, document: dict[str, Any], keep: int
    ) -> None:
        """Save all that an exact resume needs."""
        tensors = model_state(trainer)
        tensors |= {f"sampler.{k}": v for k, v in trainer.sampler.state_dict().items()}
        tensors |= {f"optimizer.{k}": v for k, v in trainer.optimizer.state().items()}
        tensors["rng.cpu"] = torch.get_rng_state()
        if torch.cuda.is_available():
            tensors["rng.cuda"] = torch.cuda.get_rng_state()
        document = document | {
            "step": trainer.step,
            "stopping": {
                "best": stopping.best if stopping.best_step else None,
                "best_step": stopping.best_step,
                "misses": stopping.misses,
            },
        }
        path = self.checkpoint_path(trainer.step)
        checkpoint.save(path, tensors, document, trainer.optimizer.sharded)
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
            load_tables(spread, self.checkpoint_path(document["step"]), tensors)
            self._restore(trainer, stopping, tensors, document)
        except (KeyError, TypeError, RuntimeError, ValueError) as error:
            raise DataError(
                f"the checkpoint of step {document.get('step')} in {self.path} does not fit the "
                f"recipe: {error}"
            ) from error
        return document

    def _restore(
        self,
        trainer: Trainer,
        stopping: EarlyStopping,
        tensors: dict[str, Tensor],
        document: dict[str, Any],
    ) -> None:
        load_model_state(trainer, tensors)
        trainer.sampler.load_state_dict(_below(tensors, "sampler."))
        trainer.optimizer.load_state(_below(tensors, "optimizer."))
        torch.set_rng_state(tensors["rng.cpu"])
        if torch.cuda.is_available() and "rng.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["rng.cuda"])
        trainer.step = document["step"]
        saved = document["stopping"]
        stopping.best = float("-inf") if saved["best"] is None else saved["best"]
        stopping.best_step, stopping.misses = saved["best_step"], saved["misses"]

    def save_best(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        """Save the model alone, with the metrics that made it the best."""
        document = {"step": trainer.step, "metrics": metrics}
        checkpoint.save(self.best, model_state(trainer), document, trainer.optimizer.sharded)

    def load_best(self, trainer: Trainer) -> dict[str, Any]:
        """Restore the best model into `trainer`."""
        spread = trainer.optimizer.sharded
        try:
            tensors, document = checkpoint.load(self.best, tables=not spread)
        except DataError as error:
            raise DataError(
                f"{error}; delete {self.checkpoints} and resume, and the run starts over"
            ) from None
        load_tables(spread, self.best, tensors)
        load_model_state(trainer, tensors)
        return document

    def drop_checkpoints(self) -> None:
        """Delete the checkpoints of a finished run; the best model stays."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()


OWN_MODEL = "own_model"  # key of `config.json`


def own_model(path: Path, config: dict[str, Any]) -> str | None:
    """Class name of the model that was passed to `fit`; None if the recipe's towers were trained.

    Args:
        path: The run folder.
        config: Its `config.json`. Where that was written before the class was recorded there, the
            class is known from `result.json`, once the run is finished.
    """
    if OWN_MODEL in config or not (path / "result.json").is_file():
        recorded = config.get(OWN_MODEL)
    else:
        recorded = read_document(path / "result.json", "train the run again").get("model")
        recorded = None if recorded in MODELS else recorded
    return None if recorded is None else str(recorded)


# Keys that may differ between the sittings of one run: they do not change what is learned.
RESUMABLE_CHANGES = frozenset(
    {"train.max_steps", "train.patience", "train.keep_checkpoints", "train.threads", "dataset.path"}
)


def changed_keys(earlier: dict[str, Any], config: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield every key that makes `config` another run than `earlier`, and its two values.

    A key that `earlier` does not know came with a later version: its default was in force then.
    """
    config = json.loads(json.dumps(config))  # tuples become lists, as in the file
    defaults = json.loads(json.dumps(_defaults(earlier.get("sampler", {}))))
    for section in ("model", "sampler", "loss", "train", "dataset"):
        before = flat(defaults.get(section, {})) | flat(earlier.get(section, {}))
        for key, value in flat(config.get(section, {})).items():
            if before.get(key) != value and f"{section}.{key}" not in RESUMABLE_CHANGES:
                yield f"{section}.{key}", before.get(key), value


def _defaults(sampler: dict[str, Any]) -> dict[str, Any]:
    make = SAMPLERS.get(sampler.get("name", ""))
    return Recipe(sampler=filled(make, {}) if make else {}).to_dict()


def model_state(trainer: Trainer) -> dict[str, Tensor]:
    """The towers' weights and the temperature, under names of their own."""
    state = {f"model.{k}": v for k, v in _module(trainer).state_dict().items()}
    state["loss.log_temperature"] = trainer.log_temperature.detach()
    return state


def load_model_state(trainer: Trainer, tensors: dict[str, Tensor]) -> None:
    """Restore what `model_state` returned."""
    try:
        _module(trainer).load_state_dict(_below(tensors, "model."))
    except RuntimeError as error:
        raise DataError(f"the checkpoint holds another model: {error}") from None
    with torch.no_grad():
        trainer.log_temperature.copy_(tensors["loss.log_temperature"])


def _module(trainer: Trainer) -> torch.nn.Module:
    model = trainer.model
    assert isinstance(model, torch.nn.Module)
    return model


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}


def flat(section: Any, prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, by dotted keys."""
    if not isinstance(section, dict):
        return {prefix: section}
    whole: dict[str, Any] = {}
    for key, value in section.items():
        whole |= flat(value, f"{prefix}.{key}" if prefix else key)
    return whole


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
