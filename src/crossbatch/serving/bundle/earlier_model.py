"""`read_bundle`: the model of a bundle, for training to start from.

fit(dataset, recipe, "runs/tuesday", start_from="monday.bundle")
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from crossbatch.serving.bundle.manifest import REMEDY, BundleError
from crossbatch.serving.bundle.model_files import USER_TOWER, map_tensors, schema_encoders
from crossbatch.serving.bundle.opening import ITEMS, open_bundle
from crossbatch.training.warm_start import LOG_TEMPERATURE, EarlierModel

if TYPE_CHECKING:
    from pathlib import Path


def read_bundle(path: Path) -> EarlierModel:
    """The model of a bundle folder; items that were added after training are not in it."""
    bundle = open_bundle(path)
    trained = bundle.manifest["items"]["trained"]
    state = {f"item_tower.{name}": value for name, value in bundle.item_state().items()}
    state |= map_tensors(path / USER_TOWER)
    temperature = bundle.manifest["origin"].get("temperature")
    if type(temperature) not in (int, float):
        raise BundleError(f"{path} does not say its temperature: {REMEDY}")
    if LOG_TEMPERATURE in state:  # which may have been learned
        found = math.exp(float(state[LOG_TEMPERATURE]))
        temperature = temperature if math.isclose(found, temperature, rel_tol=1e-6) else found
    return EarlierModel(
        bundle.config,
        bundle.history_length,
        temperature,
        state,
        bundle.catalogue.item_keys(range(trained + 1)),
        bundle.item_counts[: trained + 1],
        schema_encoders(path / ITEMS),
        {**bundle.user_encoders, **bundle.context_encoders},
    )
