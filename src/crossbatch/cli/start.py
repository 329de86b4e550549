"""Commands for the first minutes: `crossbatch demo` and `crossbatch init`."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument

from crossbatch.cli.terminal import Overwrite, Quiet
from crossbatch.errors import ConfigError

HEADER = """\
# A recipe: the settings of `crossbatch train`.
#
#   crossbatch train {file} --data DATASET --out RUN
#
# Every line that begins with "#" and a key shows a default. To change a setting remove the "#" of
# its line and edit the value; what stays as it is follows the defaults of later versions.
# `--set section.key=value` changes a key for one run."""


# What `crossbatch demo` does: a sentence and a command each.
DEMO = {
    "Generate a log of 160,000 interactions and an item table": "synth --raw {out}/raw --seed 7 "
    "--users 8000 --items 10000 --interactions 160000 --overwrite --quiet",
    "Filter, re-index, split by user, encode content": "prepare {out}/raw --out {out}/dataset "
    "--cold-items 0.05 --overwrite --quiet",
    "Train with the defaults, but for a shorter race of towers and fewer steps": "train "
    "--data {out}/dataset --out {out}/default --set model.tower.race_seconds=20 "
    "--set model.tower.first_steps=300 --set train.max_steps=600 "
    "--set train.threads=1 --resume",
    "Train in batches of 16 rows, as towers that fill the memory would": "train "
    "--recipe small-batches --data {out}/dataset --out {out}/in_batch "
    '--set sampler={{name="in_batch"}} --resume',
    "The same with 2,432 more negatives from a memory bank": "train --recipe small-batches "
    "--data {out}/dataset --out {out}/bank --resume",
    "Rank the whole catalogue for every test user, beside tuned baselines": "evaluate "
    "--baselines popularity,item_knn,rp3beta,als "
    "{out}/default {out}/in_batch {out}/bank",
    "Recommend for one user": "recommend {out}/default --user 3 -k 10",
    "Export a bundle: towers, vectors, ids, parity check": "export {out}/default "
    "--out {out}/bundle --force --quiet",
    "Write a report: what the bank gains, curves, diagnostics, settings": "report {out}/default "
    "{out}/in_batch {out}/bank --out {out}/report.html",
}


def demo(
    out: Annotated[Path, Argument(help="Folder for everything it makes.")] = Path("demo"),
) -> None:
    """Show the whole path on generated data, from a log to recommendations and a report.

    It prints each command before running it, so that you can repeat them on your own data. After
    Ctrl-C the same command continues.

    Example: crossbatch demo
    """
    from crossbatch.cli import app

    for number, (sentence, command) in enumerate(DEMO.items(), 1):
        words = [word.format(out=out) for word in command.split()]
        typer.echo(f"\n{number}/{len(DEMO)}  {sentence}\n$ {shlex.join(['crossbatch', *words])}")
        sys.stdout.flush()
        code = app(words, standalone_mode=False)
        if code:
            raise typer.Exit(code)
    typer.echo(f"\nOpen {out / 'report.html'} in a browser.")
    typer.echo(f"Try the model by hand: crossbatch serve {out / 'bundle'}")


def init(
    recipe: Annotated[Path, Argument(help="File to write.")] = Path("recipe.toml"),
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Write a recipe with all settings, each with its default and an explanation.

    Example: crossbatch init my.toml
    """
    from crossbatch.files import write_file

    if recipe.exists() and not overwrite:
        raise ConfigError(f"{recipe} exists: name another file, or replace it with --overwrite")
    if not recipe.parent.is_dir():
        raise ConfigError(f"{recipe} cannot be written: there is no folder {recipe.parent}")
    write_file(recipe, commented_recipe(recipe.name).encode("utf-8"))
    if not quiet:
        typer.echo(f"{recipe}\nNext: crossbatch train {recipe} --data DATASET --out RUN")


def commented_recipe(file: str) -> str:
    """Return the text of a recipe with every key, its default and what the configuration says."""
    from crossbatch.config import LossConfig, ModelConfig, TrainConfig, filled
    from crossbatch.models import MODELS, ItemTower
    from crossbatch.negatives import SAMPLERS
    from crossbatch.training.auto_model import AUTO as RACE
    from crossbatch.training.build import AUTO

    item = {key: value for key, value in filled(ItemTower, {}).items() if value is not None}
    options = {key: item[key] for key in ("id", "hidden")}
    sections = [
        HEADER.format(file=file),
        f"# Towers. Names: auto, {', '.join(MODELS)}.\n[model]",
        *_keys(ModelConfig),
        '# Options of the user tower; these are those of "auto".\n[model.tower]',
        *_lines(RACE),
        "# Options of the item tower: a vector per item or not; widths of hidden layers.\n"
        "[model.item]",
        *_lines(options),
        f"# Negatives. Names: auto, {', '.join(SAMPLERS)}; each has its own options.\n[sampler]\n"
        f'name = "{AUTO["name"]}"',
        *_lines({key: value for key, value in AUTO.items() if key != "name"}),
        "# The softmax over the negatives.\n[loss]",
        *_keys(LossConfig),
        "# Optimiser, length, evaluation, early stopping.\n[train]",
        *_keys(TrainConfig),
    ]
    return "\n\n".join(sections) + "\n"


def _keys(config: type[Any]) -> Iterator[str]:
    """Yield each key of a section: what its docstring says of it, and its default."""
    said = dict(
        re.findall(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", inspect.getdoc(config) or "", re.M | re.S)
    )
    for field in dataclasses.fields(config):
        if field.default is not dataclasses.MISSING:
            words = " ".join(said.get(field.name, "").replace("`", "").split())
            lines = textwrap.wrap(words, 96, initial_indent="# ", subsequent_indent="# ")
            yield "\n".join([*lines, f"#{field.name} = {json.dumps(field.default)}"])


def _lines(options: Mapping[str, Any]) -> Iterator[str]:
    yield "\n".join(f"#{key} = {json.dumps(value)}" for key, value in options.items())
