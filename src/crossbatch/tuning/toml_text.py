"""Values and recipes as TOML text; the standard library only reads it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from crossbatch.config import Recipe


def toml_value(value: object) -> str:
    """A value as TOML writes it, on one line.

    Raises:
        TypeError: If TOML has no such value.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # a JSON string is a TOML basic string
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(entry) for entry in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key(key)} = {toml_value(v)}' for key, v in value.items())}}}"
    raise TypeError(f"TOML has no value for {value!r}")


def recipe_toml(recipe: Recipe, comment: str) -> str:
    """A whole recipe, every default written out, below lines of comment."""
    lines = [f"# {line}".rstrip() for line in comment.splitlines()]
    for section, content in recipe.to_dict().items():
        lines += ["", *_section(section, content)]
    return "\n".join(lines) + "\n"


def _section(name: str, content: Mapping[str, Any]) -> list[str]:
    plain = {key: value for key, value in content.items() if not isinstance(value, dict)}
    lines = [f"[{name}]", *(f"{_key(key)} = {toml_value(v)}" for key, v in plain.items())]
    for key, value in content.items():
        if isinstance(value, dict) and value:
            lines += ["", *_section(f"{name}.{_key(key)}", value)]
    return lines


def _key(key: str) -> str:
    bare = key.replace("_", "").replace("-", "")
    return key if bare.isascii() and bare.isalnum() else toml_value(key)
