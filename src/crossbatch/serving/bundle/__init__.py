"""Bundles: folders with a trained model, its items and an index, ready to answer."""

from crossbatch.serving.bundle.manifest import BundleError
from crossbatch.serving.bundle.opening import Bundle, open_bundle

__all__ = ["Bundle", "BundleError", "open_bundle"]
