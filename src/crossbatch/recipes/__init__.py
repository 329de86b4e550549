"""The recipes that come with the package; `strong`, `demo` and the like are their names."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from crossbatch.errors import ConfigError

FOLDER = Path(__file__).parent


def recipe_names() -> list[str]:
    """Names of all recipes of the package, sorted."""
    files = FOLDER.rglob("*.toml")
    return sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in files)


def recipe_path(recipe: str | Path) -> Path:
    """Return the file of a recipe, given as a path or as the name of one of the package."""
    path, names = Path(recipe), recipe_names()
    if path.is_file():
        return path
    if str(recipe) in names:
        return FOLDER / f"{recipe}.toml"
    if path.suffix == ".toml":
        known = f"; {path.stem!r} without .toml is the package's own" if path.stem in names else ""
        raise ConfigError(f"recipe {path} cannot be read: there is no such file{known}")
    near = get_close_matches(str(recipe), names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"names: {', '.join(names)}"
    raise ConfigError(f"recipe {str(recipe)!r} is neither a file nor the name of a recipe; {hint}")
