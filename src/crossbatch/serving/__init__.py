"""Serve trained models: export bundles, open them, recommend; `server` answers over HTTP.

bundle = export_bundle("runs/first", "first.bundle")
bundle.recommend([["i17", "i4"]], k=20)
"""

from typing import TYPE_CHECKING

from crossbatch.serving.bundle.manifest import BundleError
from crossbatch.serving.bundle.opening import Bundle, open_bundle
from crossbatch.serving.recommender import Recommendation, Recommender, ScoredItem

if TYPE_CHECKING:
    from crossbatch.serving.bundle.export import export_bundle

__all__ = [
    "Bundle",
    "BundleError",
    "Recommendation",
    "Recommender",
    "ScoredItem",
    "export_bundle",
    "open_bundle",
]


def __getattr__(name: str) -> object:
    """Import `export_bundle` when asked for: it needs all of training, and a server does not."""
    if name == "export_bundle":
        from crossbatch.serving.bundle.export import export_bundle

        return export_bundle
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
