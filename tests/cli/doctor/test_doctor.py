"""`crossbatch doctor` as a user types it."""

import json

import pytest
from typer.testing import CliRunner

from crossbatch.cli import app

from ...tiny_runs import tiny_dataset


@pytest.fixture
def dataset(tmp_path):
    return tiny_dataset(tmp_path / "data", 100, 50, 1500).path


def doctor(*arguments):
    return CliRunner().invoke(app, ["doctor", *map(str, arguments)])


def test_a_healthy_dataset_is_exit_code_zero(dataset):
    done = doctor("--data", dataset)
    assert done.exit_code == 0, done.output
    for word in ("python", "torch", "cores", "disk", "files", "no problem"):
        assert word in done.output


def test_a_damaged_dataset_is_exit_code_one_with_a_remedy(dataset):
    (dataset / "items.npy").write_bytes(b"")
    done = doctor("--data", dataset)
    assert done.exit_code == 1
    assert "crossbatch prepare" in done.output


def test_as_json(dataset):
    document = json.loads(doctor("--data", dataset, "--json").output)
    assert document["healthy"] is True
    assert set(document["findings"]) == {"environment", "data"}
    (dataset / "items.npy").unlink()
    document = json.loads(doctor("--data", dataset, "--json").output)
    assert document["healthy"] is False
    (trouble,) = [f for f in document["findings"]["data"] if f["level"] == "problem"]
    assert set(trouble) == {"check", "level", "message", "remedy"}
