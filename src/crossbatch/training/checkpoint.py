"""Checkpoints: the state of training in folders of safetensors and JSON that are whole or absent.

    save(folder / "step-000001000", trainer_state(trainer), document)
    tensors, document = load_newest(folder, print)
    load_trainer_state(trainer, tensors)

The code of towers that a recipe names by import path may change between training and evaluation,
while their weights still fit: `sample_vectors` of a few items and a user tell the towers again.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from crossbatch.errors import DataError
from crossbatch.files import (
    SEAL,
    file_crc32,
    put_in_place,
    read_document,
    seal_is_broken,
    sealed,
    sync_path,
    write_document,
)
from crossbatch.queries import weights_of
from crossbatch.training.distributed.sharded_table import (
    TABLES,
    ShardedTable,
    check_tables,
    save_tables,
    whole_tables,
)
from crossbatch.training.tensor_files import save_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor
    from torch.nn import Module

    from crossbatch.training.step import Trainer

NO_TABLES: dict[str, ShardedTable] = {}
FORMAT = 2
MODEL = ("model.", "loss.")  # what the names of a model's tensors begin with
MOMENTS = "moments."  # likewise of the optimiser's, where the best model is kept with them
MOST_LOG_TEMPERATURE = 80.0  # e⁸⁰ is the largest number of float32, nearly
TENSORS, DOCUMENT = "tensors.safetensors", "checkpoint.json"
# What a checkpoint's document counts.
COUNTS = ("step", "journal", "threads", "eval_threads", "columns")
MOST_STEPS = 1 << 62
MOST_THREADS = 4096
SECONDS = ("seconds", "cpu_seconds", "eval_seconds", "reported")


# --- files ---


def save(
    path: Path,
    tensors: dict[str, Tensor],
    document: dict[str, Any],
    tables: dict[str, ShardedTable] = NO_TABLES,
    *,
    writes: bool = True,
) -> None:
    """Write a checkpoint folder under a temporary name, then rename it into place.

    All ranks write their rows of sharded `tables` at the same time; all but the first, where
    `writes` is off, write nothing else.
    """
    partial = path.with_name(f".{path.name}.partial")
    if not writes:
        save_tables(tables, partial)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        listed = save_tables(tables, partial)
        if listed:
            sync_path(partial / TABLES)
        save_tensors(partial / TENSORS, tensors)
        sync_path(partial / TENSORS)
        facts = {"format": FORMAT, "crc32": file_crc32(partial / TENSORS), "tables": listed}
        write_document(partial / DOCUMENT, sealed(facts | document))
        sync_path(partial)
        put_in_place(partial, path, replace=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def load(path: Path, *, tables: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read and verify a checkpoint, with the whole tables that several ranks wrote if `tables`.

    Raises:
        DataError: If it is missing, truncated, corrupted or of another format.
    """
    document = read_document(path / DOCUMENT, "the checkpoint is damaged")
    if document.get("format") != FORMAT:
        raise DataError(f"checkpoint {path} is not of format {FORMAT}; train anew")
    if seal_is_broken(document) or SEAL not in document:
        raise DataError(f"checkpoint {path} is corrupted: {DOCUMENT} does not match its checksum")
    try:
        crc32 = file_crc32(path / TENSORS)
    except OSError as error:
        raise DataError(f"checkpoint {path} cannot be read: {error.strerror}") from None
    if crc32 != document.get("crc32"):
        raise DataError(f"checkpoint {path} is corrupted: its checksum does not match")
    check_tables(path, document.get("tables", {}), spread=not tables)
    try:
        return load_file(path / TENSORS) | (whole_tables(path) if tables else {}), document
    except (OSError, SafetensorError) as error:
        raise DataError(f"checkpoint {path} is corrupted: {error}") from None


def load_newest(
    folder: Path, say: Callable[[str], None], *, tables: bool = True
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Read the newest checkpoint that is whole, or None; a broken one is reported."""
    for path in sorted(folder.glob("step-*"), reverse=True):
        try:
            return load(path, tables=tables)
        except DataError as error:
            say(f"{error}; trying the one before")
    return None


def prune(folder: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints, and what a kill left half-written."""
    old = sorted(folder.glob("step-*"))[:-keep]
    for path in [*old, *folder.glob(".step-*")]:
        shutil.rmtree(path, ignore_errors=True)


# --- the document of a run ---


def check_document(document: dict[str, Any]) -> None:
    """Raise `ValueError` or `TypeError` if an entry of a checkpoint's document is of another kind.

    Counts must not be negative; `stopping` must be complete.
    """
    stopping = document["stopping"]
    counts = [(key, document.get(key, 0)) for key in COUNTS]
    counts += [(key, stopping[key]) for key in ("best_step", "misses")]
    for key, value in counts:
        if type(value) is not int or not 0 <= value < MOST_STEPS:
            raise ValueError(f"{key} is {value!r}, not a count")
    numbers = [(key, document.get(key, 0.0)) for key in SECONDS]
    numbers += [("losses", loss) for loss in document.get("losses", [])]
    share = document.get("share_before_bank")
    numbers += [("share_before_bank", 0.0 if share is None else share)]
    numbers += [("best", 0.0 if stopping["best"] is None else stopping["best"])]
    for key, value in numbers:
        if type(value) not in (int, float):
            raise ValueError(f"{key} is {value!r}, not a number")
    for key in ("threads", "eval_threads"):
        if document.get(key, 0) > MOST_THREADS:
            raise ValueError(f"{key} is {document[key]}, more than a machine has")
    warned = document.get("warned", [])
    if not isinstance(warned, list) or not all(isinstance(name, str) for name in warned):
        raise ValueError(f"warned is {warned!r}, not a list of names")


# --- tensors of a trainer ---


def model_state(trainer: Trainer) -> dict[str, Tensor]:
    """The towers' weights and the temperature, under names of their own."""
    state = {f"model.{k}": v for k, v in cast("Module", trainer.model).state_dict().items()}
    state["loss.log_temperature"] = trainer.log_temperature.detach()
    return state


def trainer_state(trainer: Trainer) -> dict[str, Tensor]:
    """All tensors that an exact resume needs: model, sampler, optimiser, random generators."""
    tensors = model_state(trainer)
    tensors |= {f"sampler.{k}": v for k, v in trainer.sampler.state_dict().items()}
    tensors |= {f"optimizer.{k}": v for k, v in trainer.optimizer.state().items()}
    tensors["rng.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["rng.cuda"] = torch.cuda.get_rng_state()
    return tensors


def load_model_state(trainer: Trainer, tensors: dict[str, Tensor]) -> None:
    """Restore what `model_state` returned.

    Raises:
        DataError: If the tensors are not of such a model.
    """
    try:
        check_kinds(tensors, model_state(trainer), MODEL)
        cast("Module", trainer.model).load_state_dict(below(tensors, "model."))
        with torch.no_grad():
            trainer.log_temperature.copy_(tensors["loss.log_temperature"])
    except KeyError as error:
        raise DataError(f"the checkpoint holds another model, without {error}") from None
    except (RuntimeError, ValueError) as error:
        raise DataError(f"the checkpoint holds another model: {error}") from None


def load_trainer_state(trainer: Trainer, tensors: dict[str, Tensor], step: int) -> None:
    """Restore what `trainer_state` returned after `step` batches.

    Raises:
        DataError, KeyError, RuntimeError, ValueError: If the tensors are not of such a trainer.
    """
    check_kinds(tensors, trainer_state(trainer), ("optimizer.",))  # samplers check theirs
    _check_ranges(trainer, tensors, step)
    load_model_state(trainer, tensors)
    trainer.sampler.load_state_dict(below(tensors, "sampler."))
    trainer.optimizer.load_state(below(tensors, "optimizer."))
    torch.set_rng_state(tensors["rng.cpu"])
    if torch.cuda.is_available() and "rng.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["rng.cuda"])


def check_kinds(
    tensors: Mapping[str, Tensor], own: Mapping[str, Tensor], parts: tuple[str, ...]
) -> None:
    """Raise `ValueError` for tensors of another shape or kind, and numbers that are not finite.

    Those of `tensors` are compared that are in `own` too and whose names begin with one of `parts`.
    """
    for name, wanted in own.items():
        value = tensors.get(name)
        if value is None or not name.startswith(parts):
            continue
        if value.shape != wanted.shape or _kind(value) != _kind(wanted):
            raise ValueError(
                f"{name} is {value.dtype} {list(value.shape)}, not {wanted.dtype} "
                f"{list(wanted.shape)}"
            )
        stored = value.to(wanted.dtype)  # which may not hold it
        if not torch.isfinite(stored).all() and torch.isfinite(wanted).all():
            raise ValueError(f"{name} holds numbers that are not finite")
        if name.endswith("log_temperature") and stored.abs().max() > MOST_LOG_TEMPERATURE:
            raise ValueError(f"{name} is {float(stored.max()):g}, which is no temperature")


def _kind(tensor: Tensor) -> tuple[bool, bool, bool]:
    return tensor.is_floating_point(), tensor.is_complex(), tensor.dtype == torch.bool


def _check_ranges(trainer: Trainer, tensors: dict[str, Tensor], step: int) -> None:
    """Raise `ValueError` for counters and ids that training cannot have.

    Compiled code does not check them, and a forged checkpoint has a valid checksum.
    """
    steps = step + trainer.optimizer.steps_before
    largest = {"steps": steps, "touched": steps, "bank.item_ids": trainer.sampler.num_items}
    for name, value in tensors.items():
        if not name.startswith(("optimizer.", "sampler.")):
            continue
        counted = name.rstrip(".0123456789")  # those of single weights are numbered
        for ending, most in largest.items():
            fits = not value.numel() or 0 <= value.min() <= value.max() <= most  # NaN does not
            if counted.endswith(ending) and not fits:
                raise ValueError(f"{name} is not between 0 and {most}")


def below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with `prefix`, by what follows it."""
    return {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}


SAMPLED_ITEMS = 8
TOLERANCE = 1e-3  # of the largest number: far above float rounding
SAMPLE = "sample."


# --- a few vectors, to know towers again ---


def sample_vectors(model: Any, num_items: int) -> dict[str, Tensor]:
    """Vectors `[n, d]` of the first items, and of a user `[1, K, d]` with them as history.

    The model is in evaluation mode meanwhile; its modes and the random state are restored.
    """
    device = next((parameter.device for parameter in model.parameters()), None)
    ids = torch.arange(1, min(SAMPLED_ITEMS, num_items) + 1, device=device)
    modes = [(module, module.training) for module in model.modules()]
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())), torch.no_grad():
        torch.manual_seed(0)
        try:
            model.eval()
            rows = [torch.zeros_like(ids[:1])] * (
                2 if getattr(model, "reads_context", False) else 1
            )
            users = weights_of(model.users(ids.unsqueeze(0), *rows))[0]
            found = {"items": model.items(ids), "users": users}
        finally:
            for module, mode in modes:
                module.training = mode
    return {f"{SAMPLE}{name}": vectors.float().contiguous() for name, vectors in found.items()}


def are_same(towers: Any, tensors: dict[str, Tensor], num_items: int) -> bool:
    """Whether towers give the vectors that `tensors` hold; true where there are none."""
    if not any(name.startswith(SAMPLE) for name in tensors):
        return True
    for name, found in sample_vectors(towers, num_items).items():
        expected = tensors.get(name)
        if expected is None or found.shape != expected.shape:
            return False
        scale = max(float(expected.abs().max()), 1e-12)
        if not float((found.cpu() - expected).abs().max()) <= TOLERANCE * scale:  # NaN neither
            return False
    return True
