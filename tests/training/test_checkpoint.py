import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossbatch.errors import DataError
from crossbatch.training import checkpoint

TENSORS = {
    "weights": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "count": torch.tensor(7),
}


def test_round_trip_is_exact(tmp_path):
    checkpoint.save(tmp_path / "step-1", TENSORS, {"step": 1, "note": "ä"})
    tensors, document = checkpoint.load(tmp_path / "step-1")
    assert set(tensors) == set(TENSORS)
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert document["step"] == 1
    assert document["note"] == "ä"


def test_saving_again_replaces(tmp_path):
    checkpoint.save(tmp_path / "best", TENSORS, {"step": 1})
    checkpoint.save(tmp_path / "best", TENSORS, {"step": 2})
    assert checkpoint.load(tmp_path / "best")[1]["step"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


@settings(max_examples=40, deadline=None)
@given(position=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_a_flipped_bit_in_the_tensors_is_noticed(tmp_path_factory, position, bit):
    folder = tmp_path_factory.mktemp("flip") / "step-1"
    checkpoint.save(folder, TENSORS, {})
    path = folder / "tensors.safetensors"
    payload = bytearray(path.read_bytes())
    payload[position % len(payload)] ^= 1 << bit
    path.write_bytes(bytes(payload))
    with pytest.raises(DataError, match="corrupted"):
        checkpoint.load(folder)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.9])
def test_truncated_files_are_noticed(tmp_path, share):
    checkpoint.save(tmp_path / "step-1", TENSORS, {})
    for name in ("tensors.safetensors", "checkpoint.json"):
        path = tmp_path / "step-1" / name
        whole = path.read_bytes()
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(DataError):
            checkpoint.load(tmp_path / "step-1")
        path.write_bytes(whole)


def test_newest_whole_checkpoint_is_used_and_the_broken_one_reported(tmp_path):
    for step in (10, 20, 30):
        checkpoint.save(tmp_path / f"step-{step:09d}", TENSORS, {"step": step})
    (tmp_path / "step-000000030" / "tensors.safetensors").write_bytes(b"junk")
    (tmp_path / ".step-000000040.partial").mkdir()  # what a kill leaves behind
    messages = []
    found = checkpoint.load_newest(tmp_path, messages.append)
    assert found is not None
    assert found[1]["step"] == 20
    assert len(messages) == 1
    assert "step-000000030" in messages[0]


def test_no_checkpoint_is_none(tmp_path):
    assert checkpoint.load_newest(tmp_path, lambda _: None) is None


def test_prune_keeps_the_newest_and_sweeps_leftovers(tmp_path):
    for step in range(5):
        checkpoint.save(tmp_path / f"step-{step:09d}", TENSORS, {})
    (tmp_path / ".step-000000009.partial").mkdir()
    checkpoint.prune(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000003", "step-000000004"]


def test_another_format_is_refused(tmp_path):
    checkpoint.save(tmp_path / "step-1", TENSORS, {})
    path = tmp_path / "step-1" / "checkpoint.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(DataError, match="format"):
        checkpoint.load(tmp_path / "step-1")
