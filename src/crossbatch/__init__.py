"""Two-tower recommenders trained with in-batch, mixed and cross-batch negatives.

    from crossbatch import Recommender                        # from a data frame
    from crossbatch import Recipe, fit, open_dataset          # from files

Names are imported when first used: `import crossbatch.negatives` needs torch and nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from crossbatch.config import Recipe
    from crossbatch.data import open_dataset
    from crossbatch.estimator import Recommender
    from crossbatch.fitting import fit
    from crossbatch.models import allow_code

_HOMES = {
    "Recipe": "crossbatch.config",
    "Recommender": "crossbatch.estimator",
    "allow_code": "crossbatch.models",
    "fit": "crossbatch.fitting",
    "open_dataset": "crossbatch.data",
}

__all__ = ["Recipe", "Recommender", "__version__", "allow_code", "fit", "open_dataset"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("crossbatch")
    if name not in _HOMES:
        raise AttributeError(f"module 'crossbatch' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
