"""Towers of your own, named by import path: what they are given, and which code may be imported.

class TitleTower(torch.nn.Module):
    def __init__(self, inputs: Inputs, *, width: int = 64): ...
    def forward(self, item_ids): ...            # [N] -> [N, inputs.dim]

make = find_tower("my_package.towers:TitleTower", named=True)

A path in a recipe, or a class passed to `fit`, is code that the caller named. A path that is read
from a run folder or a bundle is data from elsewhere: it is imported only if the caller allowed its
package (`allow_code`), or has named the same class before.
"""

import inspect
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from torch import nn

from .features import FeatureTable
from .item_tower import NO_FEATURES

_packages: set[str] = set()  # allowed with everything in them
_named: dict[str, type[nn.Module]] = {}  # classes that the caller has named, by their paths


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """What a dataset offers to towers; the first argument of a tower that a recipe names.

    Attributes:
        num_items: Items are 1 … num_items; 0 is padding.
        dim: Dimension d that vectors are to have.
        item_features: Content of the items by name, `num_items + 1` rows each.
        user_features: Profile of the users by name, a row for each user.
        context: Features of requests by name, a row for each event. A whole model that has an
            attribute `reads_context = True` is given their rows as a last argument, `event_ids`.
        weights_follow: Whether trained weights are loaded once the tower is built, so that it need
            not read pretrained ones.
    """

    num_items: int
    dim: int
    item_features: Mapping[str, FeatureTable] = field(default_factory=lambda: NO_FEATURES)
    user_features: Mapping[str, FeatureTable] = field(default_factory=lambda: NO_FEATURES)
    context: Mapping[str, FeatureTable] = field(default_factory=lambda: NO_FEATURES)
    weights_follow: bool = False


class CodeNotAllowedError(ValueError):
    """A folder names code that the caller has neither named nor allowed."""


def allow_code(*packages: str) -> None:
    """Allow runs and bundles to import towers from these packages or modules, in this process."""
    for package in packages:
        if not all(part.isidentifier() for part in package.split(".")):
            raise ValueError(f"a package to allow is a name such as my_package, got {package!r}")
        _packages.add(package)


def is_path(name: str) -> bool:
    """Whether a name in a recipe is an import path, `package.module:Class`."""
    return ":" in name


def path_of(kind: type) -> str | None:
    """The import path of a class; None for one that no import finds, such as a local class."""
    if "<" in kind.__qualname__:
        return None
    return f"{kind.__module__}:{kind.__qualname__}"


def name_class(kind: type[nn.Module]) -> str:
    """Record a class that the caller passed as one that may be used, and return its path.

    Raises:
        ValueError: If it is no module class, or one that no import finds.
    """
    path = path_of(kind) if issubclass(kind, nn.Module) else None
    if path is None:
        raise ValueError(
            f"{kind.__qualname__} must be a torch.nn.Module class at the top level of a module, so "
            "that an import path can name it"
        )
    _named[path] = kind
    return path


def find_tower(path: str, *, named: bool) -> type[nn.Module]:
    """The class at an import path `package.module:Class`.

    Args:
        path: Where it is.
        named: Whether the caller wrote the path; otherwise it comes from a folder, and its package
            must have been allowed.

    Raises:
        CodeNotAllowedError: If the path is not the caller's and was not allowed.
        ValueError: If there is no such class, or it is no `torch.nn.Module`.
    """
    if path in _named:
        return _named[path]
    module, _, name = path.partition(":")
    if not name or not all(part.isidentifier() for part in f"{module}.{name}".split(".")):
        raise ValueError(f"a tower's import path is package.module:Class, got {path!r}")
    if not named and not any(f"{module}.".startswith(f"{allowed}.") for allowed in _packages):
        raise CodeNotAllowedError(
            f"its towers are {path}, code that is imported only if you allow it: pass "
            f"--allow-code {module.partition('.')[0]} if you trust it, or call "
            f"crossbatch.allow_code({module.partition('.')[0]!r})"
        )
    found = _imported(path, module, name)
    if not inspect.isclass(found) or not issubclass(found, nn.Module):
        raise ValueError(f"{path} must be a class of torch.nn.Module, got {found!r}")
    if named:
        _named[path] = found
    return found


def _imported(path: str, module: str, name: str) -> Any:
    here = os.getcwd()  # noqa: PTH109 - `python -m` has it on its path too; console scripts do not
    try:
        sys.path.append(here)
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"{path} cannot be imported ({error}): install its package, start in the folder that "
            "holds it, or set PYTHONPATH"
        ) from None
    finally:
        if here in sys.path:
            sys.path.reverse()
            sys.path.remove(here)  # the one that was appended
            sys.path.reverse()
    return found


def check_tower_options(make: type[nn.Module], section: str, options: Mapping[str, Any]) -> None:
    """Raise `ValueError` for an option that the constructor has no keyword for."""
    parameters = list(inspect.signature(make).parameters.values())
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return
    known = [each.name for each in parameters[1:]]  # the first is what the tower is given
    for key in options:
        if key not in known:
            choices = ", ".join(known) or "none"
            raise ValueError(f"{section}.{key} is no option of {make.__name__}; it has: {choices}")
