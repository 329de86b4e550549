"""From a run to answers: bundles, and all that reads them.

from crossbatch.serving import export_bundle, open_bundle
bundle = export_bundle("runs/first", "first.bundle")
bundle.recommend([["i17", "i4"]], k=20)
"""

from crossbatch.serving.bundle import Bundle, open_bundle
from crossbatch.serving.export import export_bundle
from crossbatch.serving.manifest import BundleError
from crossbatch.serving.recommender import Recommender
from crossbatch.serving.results import Recommendation, ScoredItem

__all__ = [
    "Bundle",
    "BundleError",
    "Recommendation",
    "Recommender",
    "ScoredItem",
    "export_bundle",
    "open_bundle",
]
