"""A bundle that can be replaced while the server runs.

    live = LiveBundle("main", Path("bundle"))      # opened, verified, warmed, or BundleError
    live.serving.bundle.recommend(...)             # a request keeps the one it began with
    live.reload()                                  # the old one serves until the new is ready

A bundle is replaced by renaming another folder to its name, or by pointing a symbolic link at
another folder. The old files stay mapped until the last request that reads them is answered.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from crossbatch.cache import release
from crossbatch.remote import local_path
from crossbatch.serving import Bundle, BundleError, open_bundle
from crossbatch.serving.server.items import ItemFacts
from crossbatch.serving.server.logs import log_event

Signature = tuple[tuple[str, int, int, int], ...]

ATTEMPTS = 5  # a folder that is replaced while it is being opened is opened again
PAUSE_SECONDS = 0.1  # before the third attempt; longer before each further one
REFUSED = "a newer bundle was refused and this one keeps serving; the server's log tells why"


@dataclass(frozen=True)
class Served:
    """An open bundle and its items as JSON: what one request reads from beginning to end."""

    bundle: Bundle
    items: ItemFacts
    since: datetime

    @property
    def name_and_version(self) -> dict[str, str]:
        """Name and version of the bundle, part of every answer."""
        return {"name": self.bundle.name, "version": self.bundle.version}

    @cached_property
    def name_and_version_json(self) -> str:
        """The same as JSON text."""
        return json.dumps(self.name_and_version)


class LiveBundle:
    """The bundle of a slot ("main" or "compare"); its path may be a symbolic link.

    Raises:
        BundleError: If it cannot be opened.
    """

    def __init__(self, slot: str, path: Path) -> None:
        self.slot, self._path = slot, path
        self.refused = False  # whether the newest bundle at the path was turned down
        self._polled = self._tried = signature(path)
        self.serving = _open(path)

    def reload(self) -> bool:
        """Open what is at the path now and let it serve; at a failure the old one keeps serving.

        Returns:
            Whether the new bundle serves.
        """
        self._tried = signature(self._path)
        started = time.perf_counter()
        try:
            fresh = _open(self._path)
            if self.serving.items.searchable:
                fresh.items.titles()  # ready before it serves, as in the old one
        except Exception as error:  # whatever is wrong with the new one, the old one keeps serving
            self.refused = True
            log_event("reload refused", logging.ERROR, slot=self.slot, reason=str(error))
            return False
        before, self.serving, self.refused = self.serving, fresh, False
        log_event(
            "reloaded",
            slot=self.slot,
            before=before.bundle.version,
            version=fresh.bundle.version,
            seconds=round(time.perf_counter() - started, 3),
        )
        return True

    def changed(self) -> bool:
        """Whether another bundle is at the path, and did not change since the last call."""
        now = signature(self._path)
        unchanged, self._polled = now == self._polled, now
        return unchanged and bool(now) and now != self._tried

    def describe(self) -> dict[str, Any]:
        """What `/health` tells of the slot."""
        bundle = self.serving.bundle
        return {
            **self.serving.name_and_version,
            "items": bundle.num_items,
            "dim": bundle.dim,
            "interests": bundle.num_interests,
            "history_length": bundle.history_length,
            "user_features": _feature_facts(bundle.user_features),
            "context": _feature_facts(bundle.context),
            "filters": {} if bundle.filters is None else bundle.filters.kinds,
            "model": bundle.config.name,
            "metrics": bundle.metrics.get("test", {}),
            "serving_since": self.serving.since.isoformat(timespec="seconds"),
            "problem": REFUSED if self.refused else None,
        }


def _feature_facts(features: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        name: {"kind": feature["kind"], "values": feature["values"]}
        for name, feature in features.items()
    }


def signature(path: Path) -> Signature:
    """Name, inode, size and time of every file of a folder; empty if there is no folder."""
    try:
        stats = [(str(file), file.stat()) for file in sorted(path.resolve().rglob("*"))]
    except (OSError, RuntimeError):  # vanished while it was being read; links in a circle
        return ()
    return tuple((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


def _open(path: Path) -> Served:
    """Open, verify and warm what is at the path; again if it was replaced meanwhile."""
    path = local_path(path)
    last: BundleError | None = None
    for attempt in range(ATTEMPTS):
        before = signature(path)
        try:
            # resolved: a link that changes meanwhile must not mix two bundles
            bundle = open_bundle(path.resolve(), verify=True)
            # read now what the files may no longer hold later, and what first requests wait for
            bundle.recommend([bundle.item_keys([1])] * 2, min(20, bundle.num_items))
            _ = bundle.num_interests, bundle.metrics
            if bundle.filters is not None:
                bundle.filters.prepare()
        except BundleError as error:
            # Between two renames there is no folder, or files of both bundles were read.
            last = error
            if before and signature(path) == before:
                raise
        else:
            if signature(path) == before:
                release(path.parent)  # of the cache: the files are not read again
                return Served(bundle, ItemFacts(bundle), datetime.now(UTC))
            last = None
        time.sleep(PAUSE_SECONDS * attempt)
    changing = f"{path} keeps changing while it is being opened; rename a finished bundle"
    raise last or BundleError(changing)
