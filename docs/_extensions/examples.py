"""Highlights the indented examples of module docstrings as Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def setup(sphinx: Sphinx) -> dict[str, bool]:
    """Register the change for each docstring that autodoc reads."""
    sphinx.connect("autodoc-process-docstring", _mark)
    return {"parallel_read_safe": True}


def _mark(
    _sphinx: Sphinx, what: str, _name: str, _object: Any, _options: Any, lines: list[str]
) -> None:
    if what != "module":
        return
    marked: list[str] = []
    for line in lines:
        starts = line.startswith("    ") and (not marked or not marked[-1].strip())
        if starts and not any(earlier.startswith("    ") for earlier in marked[-2:]):
            marked += [".. code-block:: python", ""]
        marked.append(line)
    lines[:] = marked
