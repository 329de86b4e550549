"""Parameters as scikit-learn has them, without depending on it: `clone` and `set_params` work."""

from __future__ import annotations

import inspect
from typing import Any, Self

from crossbatch.errors import ConfigError


class Parameters:
    """A class whose constructor's arguments are its attributes, unchanged."""

    @classmethod
    def _parameters(cls) -> dict[str, inspect.Parameter]:
        signature = inspect.signature(cls.__init__)
        return {name: p for name, p in signature.parameters.items() if name != "self"}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name; `deep` is scikit-learn's and changes nothing here."""
        return {name: getattr(self, name) for name in self._parameters()}

    def set_params(self, **parameters: Any) -> Self:
        """Change parameters; they take effect with the next `fit`."""
        known = self._parameters()
        for name in parameters:
            if name not in known:
                raise ConfigError(
                    f"{name!r} is no parameter of {type(self).__name__}; they are "
                    f"{', '.join(known)}"
                )
        for name, value in parameters.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        given = (
            f"{name}={getattr(self, name)!r}"
            for name, parameter in self._parameters().items()
            if getattr(self, name) != parameter.default
        )
        return f"{type(self).__name__}({', '.join(given)})"
