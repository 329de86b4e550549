"""What `sampler = "auto"` chose in an earlier sitting of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crossbatch.errors import DataError
from crossbatch.files import SEAL, seal_is_broken
from crossbatch.training.advice import Advice

if TYPE_CHECKING:
    from crossbatch.training.run_folder import RunFolder


def earlier_advice(folder: RunFolder) -> Advice | None:
    """What the first sitting chose. The recipe does not vouch for it, so that a seal must."""
    earlier = folder.config().get("advice")
    if earlier is None:
        return None
    try:
        if not seal_is_broken(earlier):
            return Advice(**{key: earlier[key] for key in earlier if key != SEAL})
    except (AttributeError, TypeError):  # no object, or with other keys
        pass
    raise DataError(
        f"{folder.path / 'config.json'} was changed: which negatives the run chose is no longer "
        "known; restore it, or start anew elsewhere"
    )
