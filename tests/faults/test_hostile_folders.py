"""Recipes, datasets, checkpoints and runs that someone forged, checksums and all.

A checksum detects accidents, not intent. A folder that was rewritten consistently may be refused
or accepted, but it causes no crash, takes no unbounded memory, runs no code, and gives no access to
files outside of the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save, save_file

from crossbatch.config import Recipe
from crossbatch.data import open_dataset
from crossbatch.data.dataset.manifest import MANIFEST, write_manifest
from crossbatch.errors import ConfigError, DataError
from crossbatch.files import document_checksum, file_crc32, sealed
from crossbatch.reports.runs import read_run
from crossbatch.reproduce.search import read_settings
from crossbatch.serving import open_bundle
from crossbatch.serving.bundle import manifest as bundles
from crossbatch.serving.bundle.change_items import add_items, remove_items
from crossbatch.serving.server.live_bundle import LiveBundle
from crossbatch.training import checkpoint, fit
from crossbatch.training.run_folder import open_run

from .conftest import FAULTS, RECIPE

if TYPE_CHECKING:
    from collections.abc import Callable

    from .commands import Commands, Ended

FUZZ = settings(
    max_examples=max(40, FAULTS),
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],  # an example is simple enough; making it simpler may take minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
USE = settings(FUZZ, max_examples=max(15, FAULTS // 2))  # of what takes a while to use
CLEAN = contextlib.suppress(ConfigError, DataError)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([2**31, 2**63, -1, 1e308, "", "../..", "x" * 300, "\ud800"])
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


def changed(document: Any, data: st.DataObject) -> Any:
    """A copy in which one value, anywhere, is another one or gone."""
    document = json.loads(json.dumps(document))
    here, path = document, []
    while isinstance(here, (dict, list)) and here and (not path or data.draw(st.booleans())):
        keys = sorted(here) if isinstance(here, dict) else range(len(here))
        path.append((here, data.draw(st.sampled_from(keys))))
        here = here[path[-1][1]]
    owner, key = path[-1]
    if data.draw(st.booleans()):
        owner[key] = data.draw(VALUES)
    else:
        del owner[key]
    return document


def forged_array(array: np.ndarray, data: st.DataObject) -> np.ndarray:
    """Another array in the place of one."""
    changes = {
        "shorter": lambda: array[: len(array) // 2],
        "longer": lambda: np.concatenate([array, array]),
        "negative": lambda: (array.astype(np.int64) * -1 - 1).astype(np.int64),
        "negative, of the same type": lambda: -np.abs(array) - np.array(1, array.dtype),
        "huge": lambda: np.full(array.shape, 2**31 - 1, dtype=np.int64),
        "huge, of the same type": lambda: np.full_like(array, 127),
        "float": lambda: np.full(array.shape, np.nan),
        "text": lambda: np.full(array.shape, "x"),
        "matrix": lambda: array.reshape(1, -1),
        "scalar": lambda: np.array(1),
        "empty": lambda: array[:0],
    }
    return changes[data.draw(st.sampled_from(sorted(changes)))]()


class TestRecipes:
    @FUZZ
    @given(text=st.text(max_size=80) | st.binary(max_size=80))
    def test_any_text(self, tmp_path: Path, text: str | bytes) -> None:
        path = tmp_path / "x.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "replace"))
        for read in (Recipe.load, read_settings):
            with CLEAN:
                read(path)

    @FUZZ
    @given(data=st.data())
    def test_any_value(self, data: st.DataObject) -> None:
        with CLEAN:
            Recipe.from_dict(changed(Recipe().to_dict(), data))

    @FUZZ
    @given(override=st.text(max_size=30) | st.from_regex(r"[a-z]+\.[a-z]+=.*"))
    def test_any_override(self, override: str) -> None:
        with CLEAN:
            Recipe().changed([override])

    @pytest.mark.parametrize("value", [{"a": [[1]]}, "title", 7, None, [1]])
    def test_bug_features_that_are_no_list(self, value: object) -> None:
        with pytest.raises(ConfigError, match="item_features must be a list of strings"):
            Recipe.from_dict({"model": {"item_features": value}})

    @pytest.mark.parametrize("read", [Recipe.load, read_settings])
    def test_bug_deep_toml(self, tmp_path: Path, read: Any) -> None:
        (tmp_path / "x.toml").write_text("a = " + "[" * 100_000)
        with pytest.raises(ConfigError, match="not TOML"):
            read(tmp_path / "x.toml")


class TestDatasets:
    @pytest.fixture
    def victim(self, dataset: Path, tmp_path: Path) -> Path:
        return Path(shutil.copytree(dataset, tmp_path / "victim"))

    def use(self, folder: Path) -> None:
        """Open, verify, and read what training and serving read."""
        opened = open_dataset(folder)
        opened.verify()
        next(opened.batches(16, seed=0))
        for split in ("valid", "test"):
            list(opened.eval_batches(split))
        opened.item_titles(range(1, opened.num_items + 1))
        opened.item_ids(["1", "\udcff"])

    @FUZZ
    @given(data=st.data())
    def test_forged_manifests(self, victim: Path, data: st.DataObject) -> None:
        path = victim / MANIFEST
        whole = path.read_text()
        document = changed(json.loads(whole), data)
        document.pop("seal", None)
        path.write_text(json.dumps(sealed(document)))
        try:
            with CLEAN:
                self.use(victim)
        finally:  # what fails is tried again, on the folder as it was
            path.write_text(whole)

    @FUZZ
    @given(data=st.data())
    def test_forged_arrays(self, victim: Path, data: st.DataObject) -> None:
        """Another array in the place of one, and a manifest with its checksum."""
        manifest = json.loads((victim / MANIFEST).read_text())
        name = data.draw(st.sampled_from([n for n in manifest["files"] if n.endswith(".npy")]))
        whole = (victim / name).read_bytes()
        np.save(victim / name, forged_array(np.load(victim / name), data))
        self.update_checksums(victim, manifest)
        try:
            with CLEAN:
                self.use(victim)
        finally:
            (victim / name).write_bytes(whole)
            (victim / MANIFEST).write_text(json.dumps(manifest))

    def update_checksums(self, folder: Path, manifest: dict[str, Any]) -> None:
        made = ("files", "checksum", "seal", "format_version")
        write_manifest(folder, {k: v for k, v in manifest.items() if k not in made})

    @FUZZ
    @given(header=st.binary(max_size=200), size=st.integers(0, 2**16 - 1))
    def test_forged_array_headers(self, victim: Path, header: bytes, size: int) -> None:
        manifest = (victim / MANIFEST).read_text()
        path = victim / "items.npy"
        whole = path.read_bytes()
        path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", size) + header)
        self.update_checksums(victim, json.loads(manifest))
        try:
            with pytest.raises(DataError):
                self.use(victim)
        finally:
            path.write_bytes(whole)
            (victim / MANIFEST).write_text(manifest)

    @pytest.mark.parametrize(
        "header",
        [
            "{'descr': '<i4', 'fortran_order': False, 'shape': (4611686018427387904,)}",
            "{'descr': '<i4', 'fortran_order': False, 'shape': (-1,)}",
            "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
            "__import__('os').abort()",
            "(" * 5_000,
        ],
    )
    def test_headers_that_lie(self, victim: Path, header: str) -> None:
        text = header.encode().ljust(118) + b"\n"
        start = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text))
        (victim / "items.npy").write_bytes(start + text)
        with pytest.raises(DataError):
            open_dataset(victim)

    @pytest.mark.parametrize("name", ["../outside", "/etc/hostname"])
    def test_bug_manifest_lists_files_elsewhere(self, victim: Path, name: str) -> None:
        (victim.parent / "outside").write_text("secret")
        document = json.loads((victim / MANIFEST).read_text())
        document.pop("seal")
        document["files"] = {name: hashlib.sha256(b"secret").hexdigest()}
        (victim / MANIFEST).write_text(json.dumps(sealed(document)))
        with pytest.raises(DataError, match="no file of the dataset"):
            open_dataset(victim).verify()

    @pytest.mark.parametrize(
        ("keys", "value"),
        [
            (("files",), ""),
            (("files",), []),
            (("files",), {"a\0b": "0"}),
            (("counts", "items"), float("inf")),
            (("options", "min_history"), -2560),
        ],
    )
    def test_bug_manifests_of_other_kinds(
        self, victim: Path, keys: tuple[str, ...], value: object
    ) -> None:
        document = json.loads((victim / MANIFEST).read_text())
        document.pop("seal")
        (document[keys[0]] if len(keys) > 1 else document)[keys[-1]] = value
        (victim / MANIFEST).write_text(json.dumps(sealed(document)))
        with pytest.raises(DataError):
            self.use(victim)

    @pytest.mark.parametrize("name", ["items", "item_titles.offsets", "train_users"])
    def test_bug_arrays_of_other_kinds(self, victim: Path, name: str) -> None:
        manifest = json.loads((victim / MANIFEST).read_text())
        np.save(victim / f"{name}.npy", np.array(1))
        self.update_checksums(victim, manifest)
        with pytest.raises(DataError):
            self.use(victim)

    def test_bug_feature_stem_points_elsewhere(self, victim: Path) -> None:
        path = victim / "features" / "items" / "schema.json"
        schema = json.loads(path.read_text())
        next(iter(schema.values()))["stem"] = "../../items"
        path.write_text(json.dumps(schema))
        with pytest.raises(DataError, match="names the file"):
            _ = open_dataset(victim).item_features

    def test_bug_lone_surrogate_is_an_unknown_key(self, dataset: Path) -> None:
        assert open_dataset(dataset).item_ids(["\udcff"]).tolist() == [0]


class TestCheckpoints:
    def forge(self, folder: Path, content: bytes, document: dict[str, Any] | None = None) -> None:
        folder.mkdir(exist_ok=True)
        (folder / checkpoint.TENSORS).write_bytes(content)
        crc32 = file_crc32(folder / checkpoint.TENSORS)
        body = {"format": checkpoint.FORMAT, "crc32": crc32} | (document or {})
        (folder / checkpoint.DOCUMENT).write_text(json.dumps(sealed(body)))

    @FUZZ
    @given(data=st.data())
    def test_forged_tensors(self, tmp_path: Path, data: st.DataObject) -> None:
        content = bytearray(save({"a": torch.ones(3, 4), "b": torch.tensor(5)}))
        for _ in range(data.draw(st.integers(1, 3))):
            start = data.draw(st.integers(0, len(content)))
            content[start : start + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
        self.forge(tmp_path / "step-1", bytes(content))
        with CLEAN:
            checkpoint.load(tmp_path / "step-1")

    @pytest.mark.parametrize(
        ("length", "header"),
        [
            (2**63, b"{}"),
            (2**40, b"{}"),
            (2, b"[]"),
            (200_000, b"[" * 200_000),
            (60, b'{"a":{"dtype":"F32","shape":[9223372036854775807],"data_of'),
        ],
    )
    def test_giant_and_deep_headers(self, tmp_path: Path, length: int, header: bytes) -> None:
        self.forge(tmp_path / "step-1", struct.pack("<Q", length) + header)
        with pytest.raises(DataError, match="corrupted"):
            checkpoint.load(tmp_path / "step-1")

    def test_a_pickle_is_not_opened(self, tmp_path: Path) -> None:
        torch.save({"a": torch.ones(2)}, tmp_path / "evil")
        self.forge(tmp_path / "step-1", (tmp_path / "evil").read_bytes())
        with pytest.raises(DataError, match="corrupted"):
            checkpoint.load(tmp_path / "step-1")


class TestBundles:
    @pytest.fixture
    def victim(self, content_bundle: Path, tmp_path: Path) -> Path:
        return Path(shutil.copytree(content_bundle, tmp_path / "victim"))

    def use(self, folder: Path) -> None:
        """Open it and do with it what the commands and the server do."""
        opened = open_bundle(folder)
        keys = opened.item_keys(range(1, opened.num_items + 1))
        opened.recommend([keys[:3], [], ["\udcff"]], min(10, opened.num_items))
        opened.recommend([keys[:3]], 1, user_features=[{"age": 20, "region": "x"}])
        opened.similar(keys[0], 1)
        live = LiveBundle("main", folder)
        json.dumps(live.describe())
        live.serving.items.page("a", limit=3, offset=0)
        live.serving.items.page("", limit=3, offset=0)
        remove_items(opened, keys[:1], folder.parent / "fewer", overwrite=True)
        table = pl.DataFrame({"item": ["new"], "category": ["x"], "price": [3.0]})
        add_items(opened, table, folder.parent / "more", overwrite=True)

    def update_checksums(self, folder: Path, manifest: dict[str, Any]) -> None:
        made = ("checksum", "files", "kind", "format_version")
        bundles.write_manifest(folder, {k: v for k, v in manifest.items() if k not in made})

    def test_a_whole_one_can_be_used(self, victim: Path) -> None:
        self.use(victim)

    @USE
    @given(data=st.data())
    def test_forged_manifests(self, victim: Path, data: st.DataObject) -> None:
        path = victim / bundles.MANIFEST
        whole = path.read_text()
        document = changed(json.loads(whole), data)
        document.pop("checksum", None)
        checksum = document_checksum(document)
        path.write_text(json.dumps({"checksum": checksum, **document}))
        try:
            with CLEAN:
                self.use(victim)
        finally:
            path.write_text(whole)

    @pytest.mark.parametrize(
        ("name", "keys", "value"),
        [
            ("config.json", ("model", "dim"), 1 << 40),
            ("config.json", ("model", "tower"), {"hidden": [1 << 34]}),
            ("config.json", ("history_length",), 1 << 40),
            ("config.json", ("history_length",), "20"),
            ("config.json", ("model", "item_features"), ["*"]),
            ("metrics.json", ("test",), 7),
            ("features/users/schema.json", ("age", "num_values"), 1 << 40),
            ("features/users/schema.json", ("age", "settings"), []),
            ("features/items/schema.json", ("price", "encoder"), []),
        ],
    )
    def test_bug_impossible_sizes_and_kinds(
        self, victim: Path, name: str, keys: tuple[str, ...], value: object
    ) -> None:
        """Believed, each would have filled the memory or ended in a traceback later."""
        manifest = json.loads((victim / bundles.MANIFEST).read_text())
        document = json.loads((victim / name).read_text())
        here = document
        for key in keys[:-1]:
            here = here[key]
        here[keys[-1]] = value
        (victim / name).write_text(json.dumps(document))
        self.update_checksums(victim, manifest)
        with pytest.raises(DataError):
            open_bundle(victim)

    def test_bug_text_in_place_of_an_interval(self, victim: Path) -> None:
        """The model card of a changed bundle multiplied it by 100 and failed with a traceback."""
        manifest = json.loads((victim / bundles.MANIFEST).read_text())
        metrics = json.loads((victim / "metrics.json").read_text())
        metrics["test_ci"]["recall@50"] = ["low", "high"]
        (victim / "metrics.json").write_text(json.dumps(metrics))
        self.update_checksums(victim, manifest)
        with pytest.raises(DataError, match="export"):
            self.use(victim)

    def test_bug_documents_without_end(self, victim: Path) -> None:
        manifest = json.loads((victim / bundles.MANIFEST).read_text())
        whole = (victim / "config.json").read_text()
        (victim / "config.json").write_text(whole + " " * (16 << 20))
        self.update_checksums(victim, manifest)
        with pytest.raises(DataError, match="larger than 16 MB"):
            open_bundle(victim)

    @USE
    @given(data=st.data())
    def test_forged_documents(self, victim: Path, data: st.DataObject) -> None:
        names = ["config.json", "metrics.json", "features/items/schema.json"]
        path = victim / data.draw(st.sampled_from([*names, "features/users/schema.json"]))
        manifest, whole = (victim / bundles.MANIFEST).read_text(), path.read_text()
        path.write_text(json.dumps(changed(json.loads(whole), data)))
        self.update_checksums(victim, json.loads(manifest))
        try:
            with CLEAN:
                self.use(victim)
        finally:
            path.write_text(whole)
            (victim / bundles.MANIFEST).write_text(manifest)

    @USE
    @given(data=st.data())
    def test_forged_arrays(self, victim: Path, data: st.DataObject) -> None:
        manifest = (victim / bundles.MANIFEST).read_text()
        names = sorted(n for n in json.loads(manifest)["files"] if n.endswith(".npy"))
        path = victim / data.draw(st.sampled_from(names))
        whole = path.read_bytes()
        np.save(path, forged_array(np.load(path), data))
        self.update_checksums(victim, json.loads(manifest))
        try:
            with CLEAN:
                self.use(victim)
        finally:
            path.write_bytes(whole)
            (victim / bundles.MANIFEST).write_text(manifest)


class TestRuns:
    @pytest.fixture
    def victim(self, run: Path, tmp_path: Path) -> Path:
        copied = Path(shutil.copytree(run, tmp_path / "victim"))
        (copied / "checksums.json").unlink()
        return copied

    @FUZZ
    @given(data=st.data())
    def test_forged_documents(self, victim: Path, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(["config.json", "result.json", "best/checkpoint.json"]))
        path = victim / name
        whole = path.read_text()
        document = changed(json.loads(whole), data)
        document.pop("seal", None)
        path.write_text(json.dumps(sealed(document) if "best" in name else document))
        try:
            for read in (open_run, read_run):
                with CLEAN:
                    read(victim)
        finally:
            path.write_text(whole)

    @pytest.mark.parametrize("name", ["config.json", "result.json", "checksums.json"])
    def test_bug_deep_json(self, victim: Path, name: str) -> None:
        (victim / name).write_text("[" * 100_000)
        with pytest.raises(DataError, match="not valid JSON"):
            read_run(victim)

    def test_deep_lines_of_a_journal_are_skipped_and_counted(self, victim: Path) -> None:
        with (victim / "journal.jsonl").open("a") as file:
            file.write("[" * 100_000 + "\n")
        assert "1 unreadable journal line skipped" in read_run(victim).notes


def test_the_recipe_of_this_suite_is_one(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(RECIPE)
    assert Recipe.load(tmp_path / "x.toml").train.max_steps == 24


@pytest.fixture(scope="module")
def stopped(dataset: Path, place: Path) -> Path:
    """A run with one checkpoint, that of step 16, and no result."""
    out = place / "stopped"

    def stop(_: object, step: int) -> None:
        if step == 20:
            raise KeyboardInterrupt

    path = place / "stopped.toml"
    path.write_text(RECIPE)
    with pytest.raises(KeyboardInterrupt):
        fit(open_dataset(dataset), Recipe.load(path), out, probe=stop)
    shutil.rmtree(out / "checkpoints" / "step-000000008")
    return out


class TestResumedCheckpoints:
    """`train --resume` of a checkpoint that was forged, with checksums that match."""

    @pytest.fixture
    def resume(
        self, stopped: Path, commands: Commands, recipe: Path, dataset: Path, tmp_path: Path
    ) -> Callable[..., Ended]:
        """Change the tensors and the document of a copy, then resume it."""
        run = tmp_path / "run"
        shutil.copytree(stopped, run)
        step = run / "checkpoints" / "step-000000016"

        def change_and_resume(
            tensors: dict[str, torch.Tensor], document: dict[str, Any] | None = None
        ) -> Ended:
            known = load_file(step / checkpoint.TENSORS)
            assert set(tensors) <= set(known)
            save_file(known | tensors, step / checkpoint.TENSORS)
            body = json.loads((step / checkpoint.DOCUMENT).read_text()) | (document or {})
            body |= {"crc32": file_crc32(step / checkpoint.TENSORS)}
            body = {key: value for key, value in body.items() if key != "seal"}
            (step / checkpoint.DOCUMENT).write_text(json.dumps(sealed(body)))
            return commands.run("train", recipe, "--data", dataset, "--out", run, "--resume")

        return change_and_resume

    def test_an_unchanged_one_is_resumed(self, resume: Callable[..., Ended]) -> None:
        assert resume({}).code == 0

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("sampler.bank.cursor", -(10**8)),
            ("sampler.bank.cursor", -3000),
            ("sampler.bank.cursor", 1024),
            ("sampler.bank.fill", 1024),
            ("sampler.bank.fill", -1),
            ("sampler.bank.step", -1),
            ("sampler.bank.item_ids", 10**9),
            ("sampler.bank.item_ids", -5),
            ("optimizer.steps", -7),
            ("optimizer.steps", 2**62),
            ("optimizer.table.item_tower.table.steps", -7),
            ("optimizer.table.item_tower.table.touched", -(2**31)),
            ("optimizer.table.item_tower.table.touched", 2**31 - 1),
        ],
    )
    def test_bug_counters_and_ids_out_of_range(
        self, resume: Callable[..., Ended], stopped: Path, name: str, value: int
    ) -> None:
        """A compiled copy took them for places in memory: the process crashed."""
        tensors = load_file(stopped / "checkpoints" / "step-000000016" / checkpoint.TENSORS)
        self.refused(resume({name: torch.full_like(tensors[name], value)}))

    def test_bug_a_cursor_and_a_fill_beyond_the_bank(self, resume: Callable[..., Ended]) -> None:
        beyond = torch.tensor(1024)
        self.refused(resume({"sampler.bank.cursor": beyond, "sampler.bank.fill": beyond.clone()}))

    @pytest.mark.parametrize(
        "document",
        [
            {"step": -16},
            {"step": "16"},
            {"step": 2**70},
            {"stopping": {"best": "x", "best_step": 16, "misses": 0}},
            {"stopping": {"best": 0.1, "best_step": 16, "misses": None}},
            {"stopping": []},
            {"threads": -3},
            {"eval_threads": "all"},
            {"journal": -10},
            {"losses": ["x"]},
            {"losses": 7},
            {"warned": 5},
            {"seconds": "long"},
            {"columns": None},
        ],
    )
    def test_bug_numbers_of_the_document(
        self, resume: Callable[..., Ended], document: dict[str, Any]
    ) -> None:
        self.refused(resume({}, document))

    def refused(self, ended: Ended) -> None:
        assert ended.code == 2, ended.stderr
        assert "Traceback" not in ended.stderr
        assert ended.stderr.count("crossbatch:") == 1
        assert "does not fit the recipe" in ended.stderr
