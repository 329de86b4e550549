"""Paths in object stores: a URL becomes a checked copy in a local cache, a folder becomes a URL.

    local_path("s3://shop/clicks/day=*/*.parquet")    # a path below the cache, fetched if it is new
    with remote_folder("gs://shop/dataset") as work:  # what is written there is uploaded
        ...

Arrays are mapped into memory, so that datasets and bundles must be files of this machine. A copy is
kept under the checksum of its manifest and every file is compared with it; an object that changes
is fetched again. Stores are those of fsspec: `s3://`, `gs://`, `hf://` and others; what is
installed for them (extra `cloud`) takes credentials from the places that each store documents.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

from crossbatch.cache import cache_folder, hold, make_room
from crossbatch.errors import ConfigError, DataError, reason_of
from crossbatch.files import (
    atomic_folder,
    file_checksum,
    files_below,
    listed_file,
    locked_folder,
    read_document,
)
from crossbatch.progress import Progress, silent

URL = re.compile(r"^([a-z][a-z0-9+.-]+):/{1,2}(?=[^/])")  # a `Path` keeps one of the two slashes
MANIFESTS = ("manifest.json", "bundle.json")  # of datasets and bundles
SHARDS = "shards/"  # of a dataset, which are fetched one by one
MAGIC = re.compile(r"[*?\[]")

_progress: ContextVar[Progress] = ContextVar("progress", default=silent)


def is_url(path: Path | str) -> bool:
    """Whether a path is that of an object store, such as `s3://bucket/folder`."""
    return URL.match(str(path)) is not None


# --- from a URL to a path ---


def local_path(path: Path | str) -> Path:
    """Return a path of this machine: the path itself, or the copy of what a URL names.

    Args:
        path: A path; or the URL of a file, a folder, or a pattern of files.

    Raises:
        ConfigError: If the store cannot be reached for lack of a package.
        DataError: If there is nothing at the URL, or what was fetched is damaged.
    """
    if not is_url(path):
        return Path(path)
    url = normal_url(path)
    store, place = _opened(url)
    with _store_errors(url, "read"):
        for name in MANIFESTS:
            if not MAGIC.search(place) and store.isfile(f"{place}/{name}"):
                return _fetch_listed(store, place, url, name)
        return _fetch_files(store, place, url)


def fetch_part(url: str, folder: Path, part: str, files: Mapping[str, str]) -> None:
    """Copy a part of the dataset at `url` that `local_path` left in the store, and hold it.

    `folder` is the dataset's copy, `part` the part's folder within it, such as `shards/0003`, and
    `files` are the checksums of its files by their names in the dataset.
    """
    store, place = _opened(url)
    target = folder / part
    while not hold(target):
        with _store_errors(url, "read"):
            objects = {}
            for name, checksum in files.items():
                at = f"{place}/{name}"
                objects[name.removeprefix(f"{part}/")] = Object(at, int(store.size(at)), checksum)
            with _cached(target) as work:
                _fetch(store, objects, work, f"{url}/{part}", MANIFESTS[0])


def _fetch_listed(store: Any, place: str, url: str, manifest: str) -> Path:
    """Copy a dataset or a bundle; its manifest has the checksums of its files.

    The shards of a dataset stay in the store: `fetch_part` copies one when it is needed.
    """
    content: bytes = store.cat_file(f"{place}/{manifest}")
    entry = cache_folder() / hashlib.sha256(content).hexdigest()[:32]
    target = entry / place.rpartition("/")[2]
    while True:
        entry.mkdir(parents=True, exist_ok=True)
        if hold(entry):
            break
    if target.is_dir():
        return target
    with _cached(target, manifest) as folder:
        (folder / manifest).write_bytes(content)
        document = read_document(folder / manifest, "write it to the store again")
        files = document.get("files")
        if not isinstance(files, dict):
            raise DataError(f"{url}/{manifest} lists no files: write it to the store again")
        if "shards" in document:
            files = {name: each for name, each in files.items() if not name.startswith(SHARDS)}
        found = {
            name.removeprefix(f"{place}/").lstrip("/"): int(info["size"])
            for name, info in store.find(place, detail=True).items()
        }
        objects = {}
        for name, facts in files.items():
            checksum = facts["sha256"] if isinstance(facts, dict) else facts
            objects[name] = Object(f"{place}/{name}", found.get(name, 0), checksum)
        _fetch(store, objects, folder, url, manifest)
    return target


def _fetch_files(store: Any, place: str, url: str) -> Path:
    """Copy a file, the files of a folder or those of a pattern, with the names of their folders."""
    pattern = MAGIC.search(place) is not None
    if pattern:
        found = store.glob(place, detail=True)
        found = {name: info for name, info in found.items() if info["type"] == "file"}
    else:
        found = store.find(place, detail=True)
    if not found:
        raise DataError(f"{url} {'matches no object' if pattern else 'does not exist'}")
    facts = sorted((name, str(sorted(info.items(), key=str))) for name, info in found.items())
    key = hashlib.sha256(repr([url, facts]).encode()).hexdigest()[:32]
    target = cache_folder() / key
    while not hold(target):
        objects = {name.strip("/"): Object(name, int(i["size"])) for name, i in found.items()}
        with _cached(target) as folder:
            _fetch(store, objects, folder, url)
    return target / place.strip("/")


@contextmanager
def _cached(target: Path, marker: str = "") -> Iterator[Path]:
    """Yield an empty folder that becomes `target`, unless another process was faster."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with atomic_folder(target, marker=marker) as folder:
            yield folder
    except DataError:
        if not target.is_dir():
            raise


class Object(NamedTuple):
    """An object of a store: its place there, and its size."""

    place: str
    size: int
    checksum: object = None  # SHA-256, of a file that a manifest lists


def _fetch(
    store: Any, objects: Mapping[str, Object], folder: Path, url: str, manifest: str = ""
) -> None:
    """Copy objects, by the names of their files, to a folder; make room, and report how far it is.

    Raises:
        DataError: If a file would be elsewhere, or differs from its checksum or size.
    """
    from fsspec.callbacks import Callback

    paths: dict[str, Path] = {}
    for name in objects:
        path = listed_file(folder, name)
        if path is None:
            raise DataError(f"{url} lists {name!r}, which is not in the folder")
        paths[name] = path
    total, done, report = sum(each.size for each in objects.values()), 0, _progress.get()
    make_room(total, url)

    class Reported(Callback):  # type: ignore[misc]
        def call(self, *_: object, **__: object) -> None:
            report("fetching", min(done + self.value, total), total)

    for name, path in paths.items():
        place, size, checksum = objects[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        store.get_file(place, str(path), callback=Reported())
        done += size
        report("fetching", done, total)
        if manifest and file_checksum(path) != checksum:
            raise DataError(
                f"{url}/{name} is not the file that {manifest} describes: write the folder to the "
                "store again"
            )
        if not manifest and path.stat().st_size != size:
            raise DataError(f"{place} was cut short or changed meanwhile: try again")


@contextmanager
def reporting(progress: Progress) -> Iterator[None]:
    """Report what is fetched in the body: `progress("fetching", bytes done, bytes in all)`."""
    token = _progress.set(progress)
    try:
        yield
    finally:
        _progress.reset(token)


# --- from a folder to a URL ---


def check_remote(url: Path | str, *, overwrite: bool, marker: str) -> None:
    """Raise `DataError` unless `remote_folder` may write to a URL."""
    url = normal_url(url)
    store, place = _opened(url)
    with _store_errors(url, "read"):
        there = store.exists(place) and bool(store.find(place))
        marked = there and store.isfile(f"{place}/{marker}")
    if there and not overwrite:
        raise DataError(f"{url} already exists: choose another --out or pass --overwrite")
    if there and not marked:
        raise DataError(
            f"{url} is not a dataset or bundle (no {marker}), so --overwrite does not replace it"
        )


@contextmanager
def remote_folder(
    url: Path | str, *, overwrite: bool = False, marker: str = "manifest.json"
) -> Iterator[Path]:
    """Yield an empty local folder that is uploaded if the body succeeds.

    A store has no rename, so the marker is uploaded last: without it, nothing counts as a dataset
    or a bundle. A folder that is replaced loses its marker first.
    """
    url = normal_url(url)
    check_remote(url, overwrite=overwrite, marker=marker)
    store, place = _opened(url)
    cache_folder().mkdir(parents=True, exist_ok=True)
    with locked_folder(cache_folder() / "upload") as work:
        yield work
        files = files_below(work)
        last = files.pop(marker)
        with _store_errors(url, "write"):
            old = set(store.find(place)) if store.exists(place) else set()
            if old:
                store.rm_file(f"{place}/{marker}")
            try:
                for name, path in files.items():
                    store.put_file(str(path), f"{place}/{name}")
                store.put_file(str(last), f"{place}/{marker}")
            except BaseException:
                for name in files:
                    with suppress(Exception):
                        store.rm_file(f"{place}/{name}")
                raise
            new = {f"{place}/{name}".strip("/") for name in (*files, marker)}
            for name in old:
                if name.strip("/") not in new:
                    store.rm_file(name)


# --- stores ---


def normal_url(path: Path | str) -> str:
    """The URL with two slashes, and without one at its end."""
    return URL.sub(r"\1://", str(path)).rstrip("/")


def _opened(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it."""
    remedy = "install what it needs: pip install 'crossbatch[cloud]'"
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise ConfigError(f"{url} is in an object store: {remedy}") from None
    try:
        store, place = url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{url} cannot be opened ({error}): {remedy}") from None
    store.invalidate_cache()  # another process may have written since
    return store, str(place).rstrip("/")


@contextmanager
def _store_errors(url: str, verb: str) -> Iterator[None]:
    """Raise what a store raises as a `DataError` that names the URL."""
    try:
        yield
    except (ConfigError, DataError, MemoryError):
        raise
    except FileNotFoundError:
        raise DataError(f"{url} does not exist, or is incomplete: check the address") from None
    except Exception as error:  # stores have errors of their own
        reason = reason_of(error)
        raise DataError(
            f"cannot {verb} {url} ({reason}): check the address and your credentials"
        ) from error
