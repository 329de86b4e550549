"""What commands share: exit codes, common options, progress bars."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossbatch.errors import ConfigError
from crossbatch.printing import progress_bars as progress_bars  # commands import it here

if TYPE_CHECKING:
    from crossbatch.data import Dataset

FAILED = 1  # something failed, or `doctor` found a problem
MISTAKE = 2  # the user can correct it: an option, a recipe, a file, a full disk
INTERRUPTED = 130  # Ctrl-C; what shells report after it


def _allow_code(packages: list[str] | None) -> list[str]:
    if packages:
        from crossbatch.models import allow_code

        try:
            allow_code(*packages)
        except ValueError as error:
            raise ConfigError(f"--allow-code: {error}") from None
    return packages or []  # typer before 0.19 cannot read a callback's None


Data = Annotated[Path, typer.Option("--data", help="Dataset folder from prepare or synth.")]
MovedData = Annotated[
    Path | None, typer.Option(help="Dataset folder, if it has moved since training.")
]
DatasetOut = Annotated[Path, typer.Option("--out", "-o", help="Dataset folder to create.")]
BundleOut = Annotated[Path, typer.Option("--out", "-o", help="Bundle folder to create.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", "--force", help="Replace an existing output.")
]
RecipeArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RECIPE", help="TOML file or name, such as demo; default: the best settings."
    ),
]
RecipeOption = Annotated[
    str | None, typer.Option("--recipe", metavar="RECIPE", help="The same as an option.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a key of the recipe."),
]
AllowCode = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PACKAGE",
        help="Import towers of your own from here, if the folder names them.",
        callback=_allow_code,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


def opened_dataset(path: Path, *, quiet: bool) -> Dataset:
    """Open a dataset; a progress bar shows how one in an object store is fetched."""
    from crossbatch.data import open_dataset

    with progress_bars(quiet=quiet):
        return open_dataset(path)


def comma_separated(text: str) -> list[str]:
    """Return the words between commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def the_recipe(argument: str | None, option: str | None) -> str | None:
    """Return the recipe that was given, as an argument or by `--recipe`."""
    if argument is not None and option is not None:
        raise ConfigError(
            f"two recipes were given, {argument} and --recipe {option}: leave out one"
        )
    return option if argument is None else argument
