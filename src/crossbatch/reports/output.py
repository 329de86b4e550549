"""The style sheets and scripts that lie beside this module."""

from importlib.resources import files


def package_file(name: str) -> str:
    """Return the text of a style sheet or script of this package."""
    return files("crossbatch.reports").joinpath(name).read_text(encoding="utf-8")
