"""Damaged and forged bundles: every change is noticed, or has no effect."""

import contextlib
import json
import pickle
import shutil

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crossbatch.serving import BundleError, open_bundle
from crossbatch.serving.bundle.manifest import MANIFEST, read_manifest, write_manifest

FUZZ = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def victim(content_bundle, tmp_path_factory):
    """A copy that the tests of this file damage, and mend again."""
    folder = tmp_path_factory.mktemp("victim") / "bundle"
    shutil.copytree(content_bundle.path, folder)
    return folder


def answers(folder, *, verify):
    bundle = open_bundle(folder, verify=verify)
    return bundle.recommend([bundle.item_keys([3, 5])], 10, user_features=[{"age": 20}])


def forge(folder, manifest):
    """Rewrite the manifest with the checksums that the files have now."""
    made = ("checksum", "files", "kind", "format_version")
    write_manifest(folder, {key: value for key, value in manifest.items() if key not in made})


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


@FUZZ
@given(data=st.data())
def test_a_flipped_bit_is_noticed(victim, data):
    path = data.draw(st.sampled_from(files_of(victim)))
    whole = path.read_bytes()
    position = data.draw(st.integers(0, 8 * len(whole) - 1))
    broken = bytearray(whole)
    broken[position // 8] ^= 1 << position % 8
    path.write_bytes(broken)
    try:
        with pytest.raises(BundleError):
            open_bundle(victim)
    finally:
        path.write_bytes(whole)


@FUZZ
@given(data=st.data())
def test_a_truncated_or_longer_file_is_noticed_even_unverified(victim, data):
    path = data.draw(st.sampled_from(files_of(victim)))
    whole = path.read_bytes()
    size = data.draw(
        st.integers(0, len(whole.rstrip()) - 1)
    )  # without its last newline it is whole
    path.write_bytes(data.draw(st.sampled_from([whole[:size], whole + b"\0"])))
    try:
        with pytest.raises(BundleError):
            open_bundle(victim, verify=False)
    finally:
        path.write_bytes(whole)


@FUZZ
@given(data=st.data())
def test_a_missing_file_is_noticed(victim, data):
    path = data.draw(st.sampled_from(files_of(victim)))
    whole = path.read_bytes()
    path.unlink()
    try:
        with pytest.raises(BundleError):
            open_bundle(victim, verify=False)
    finally:
        path.write_bytes(whole)


def test_blanks_in_the_manifest_are_harmless(victim):
    path = victim / MANIFEST
    whole = path.read_text()
    before = answers(victim, verify=True)
    path.write_text(json.dumps(json.loads(whole), indent=7) + "\n\n")
    try:
        assert answers(victim, verify=True) == before
    finally:
        path.write_text(whole)


@settings(FUZZ, max_examples=40)
@given(data=st.data())
def test_a_consistent_forgery_is_refused_or_opens_but_never_crashes(victim, data):
    """Someone rewrote a file and the manifest with it: any error is a `BundleError`."""
    path = data.draw(st.sampled_from([p for p in files_of(victim) if p.name != MANIFEST]))
    whole, manifest = path.read_bytes(), (victim / MANIFEST).read_bytes()
    if data.draw(st.booleans()):
        broken = data.draw(st.binary(max_size=200))
    else:
        broken = bytearray(whole)
        broken[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(broken)
    try:
        forge(victim, json.loads(manifest))
        with contextlib.suppress(BundleError):
            open_bundle(victim)
    finally:
        path.write_bytes(whole)
        (victim / MANIFEST).write_bytes(manifest)


class Boom:
    """An object whose unpickling would be noticed."""

    def __reduce__(self):
        return (pytest.fail, ("a bundle was unpickled",))


@pytest.mark.parametrize(
    "name", ["item_vectors.npy", "item_counts.npy", "user_tower.safetensors", "user_tower.pt2"]
)
def test_nothing_is_ever_unpickled(content_bundle, tmp_path, name):
    folder = tmp_path / "bundle"
    shutil.copytree(content_bundle.path, folder)
    if name.endswith(".npy"):
        np.save(folder / name, np.array([Boom()], dtype=object), allow_pickle=True)
    elif name.endswith(".pt2"):
        torch.save(Boom(), folder / name)
    else:
        (folder / name).write_bytes(pickle.dumps(Boom()))
    forge(folder, read_manifest(folder))
    if name.endswith(".pt2"):
        open_bundle(folder)  # not even looked at
    else:
        with pytest.raises(BundleError):
            open_bundle(folder)


def test_parts_of_two_bundles_do_not_make_one(content_bundle, id_bundle, tmp_path):
    folder = tmp_path / "bundle"
    shutil.copytree(content_bundle.path, folder)
    shutil.copyfile(id_bundle.path / "user_tower.safetensors", folder / "user_tower.safetensors")
    with pytest.raises(BundleError):
        open_bundle(folder)
    forge(folder, read_manifest(folder))
    with pytest.raises(BundleError, match="do not fit its recipe"):
        open_bundle(folder)
    shutil.copyfile(
        content_bundle.path / "user_tower.safetensors", folder / "user_tower.safetensors"
    )
    forge(folder, read_manifest(folder) | {"items": {"count": 199, "trained": 199}})
    with pytest.raises(BundleError, match="200 item vectors for 199 items"):
        open_bundle(folder)


def test_feature_files_cannot_point_elsewhere(content_bundle, tmp_path):
    folder = tmp_path / "bundle"
    shutil.copytree(content_bundle.path, folder)
    path = folder / "features" / "users" / "schema.json"
    schema = json.loads(path.read_text())
    schema["region"]["stem"] = "../../../elsewhere"
    path.write_text(json.dumps(schema))
    forge(folder, read_manifest(folder))
    with pytest.raises(BundleError, match="elsewhere"):
        open_bundle(folder)


def test_other_folders_are_no_bundles(shop, id_run, tmp_path):
    for folder in (shop.path, id_run, tmp_path, tmp_path / "nowhere"):
        with pytest.raises(BundleError, match="is not a bundle"):
            open_bundle(folder)
