"""What docs/reliability.md promises: same seed, machine and threads, same bits."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from crossbatch.models import MODELS

from . import fingerprints
from .conftest import FAULTS, trained

if TYPE_CHECKING:
    from pathlib import Path

    from .commands import Commands

# Large enough for torch to divide its sums among threads.
LARGE = ("train.batch_size=128", "model.dim=64", "sampler.capacity=1500", "train.lr=0.003")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("model", sorted(MODELS) if FAULTS else ["youtube_dnn"])
def test_every_number_of_threads_repeats_itself(
    model: str, threads: int, commands: Commands, recipe: Path, dataset: Path, place: Path
) -> None:
    options = [*LARGE, f"train.threads={threads}", f"model.name={model}"]
    flags = [text for option in options for text in ("--set", option)]
    runs = []
    for name in ("first", "second"):
        out = place / "determinism" / name
        shutil.rmtree(out, ignore_errors=True)
        runs.append(fingerprints.of_run(trained(commands, recipe, dataset, out, *flags)))
    assert runs[0] == runs[1]


def test_another_seed_is_another_run(run: Path, other_run: Path) -> None:
    """So that equal fingerprints mean something."""
    ours, theirs = fingerprints.of_run(run), fingerprints.of_run(other_run)
    assert ours["best/tensors.safetensors"] != theirs["best/tensors.safetensors"]
    assert ours["journal"] != theirs["journal"]
