"""Bundles: folders with a trained model, its items and an index, ready to answer."""
