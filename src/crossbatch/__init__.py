"""Two-tower recommenders trained with in-batch, mixed and cross-batch negatives.

    from crossbatch import Recipe, fit, open_dataset

Names are imported when first used: `import crossbatch.negatives` needs torch and nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crossbatch.config import Recipe
    from crossbatch.data import open_dataset
    from crossbatch.fitting import fit

_HOMES = {
    "Recipe": "crossbatch.config",
    "fit": "crossbatch.fitting",
    "open_dataset": "crossbatch.data",
}

__all__ = ["Recipe", "fit", "open_dataset"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'crossbatch' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
