"""`crossbatch reproduce` as a user meets it."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from crossbatch.cli import app
from crossbatch.data import PrepareOptions, prepare
from crossbatch.data.synthetic import SynthOptions, synthetic_source
from crossbatch.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "tiny"
    prepare(
        synthetic_source(SynthOptions(users=300, items=120, interactions=4000)),
        path,
        PrepareOptions(),
    )
    return path


def invoke(*arguments):
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


def record(folder, strategy, seed, share):
    """The least that a table needs of a run."""
    path = folder / "runs" / f"mind-{strategy}-s{seed}"
    (path / "per_user").mkdir(parents=True)
    config = {"model": {"name": "mind"}, "sampler": {"name": strategy}, "train": {"seed": seed}}
    (path / "config.json").write_text(json.dumps(config))
    users = (np.random.default_rng(seed).random(100) < share).astype(np.float32)
    np.save(path / "per_user" / "test_recall@50.npy", users)
    result = {"model": "mind", "sampler": strategy, "seed": seed}
    result["test"] = {"recall@50": float(users.mean())}
    (path / "result.json").write_text(json.dumps(result))


def test_a_plan_lists_runs_and_trains_none(data, tmp_path):
    done = invoke(
        "table1", "--data", data, "--out", tmp_path / "grid", "--models", "mind",
        "--samplers", "in_batch,balanced", "--seeds", "0,3", "--plan",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == [
        "to train  runs/mind-in_batch-s0",
        "to train  runs/mind-balanced-s0",
        "to train  runs/mind-in_batch-s3",
        "to train  runs/mind-balanced-s3",
        "4 of 4 runs to train",
    ]
    assert not (tmp_path / "grid").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("table9",), "experiment must be one of table1, table2"),
        (("table1", "--seeds", "one"), "--seeds must be whole numbers"),
        (("table2", "--sizes", "1,-2"), "--sizes must be whole numbers"),
        (("table1", "--samplers", "in_batch,best"), "--samplers must be one of uniform"),
        (("table1", "--models", "bert"), "--models must be one of youtube_dnn"),
        (("table1", "--budget", "-3"), "--budget must be"),
        (("table1", "--recipe", "strong", "--budget", "0.5"), "--budget is 0.5, a share of"),
        (("table1", "--set", "train.lrate=1"), "unknown key train.lrate"),
        (("table1", "--settings", "absent.toml"), "cannot be read"),
    ],
)
def test_mistakes_are_one_sentence(data, tmp_path, arguments, message):
    done = invoke(*arguments, "--data", data, "--out", tmp_path / "grid")
    assert isinstance(done.exception, ConfigError)
    assert message in str(done.exception)
    assert not (tmp_path / "grid").exists()


def test_without_data_and_without_runs_the_remedy_is_named(tmp_path):
    done = invoke("table1", "--out", tmp_path)
    assert isinstance(done.exception, DataError)
    assert "--data" in str(done.exception)


def test_a_budget_has_a_folder_of_its_own(data, tmp_path):
    done = invoke("table1", "--data", data, "--out", tmp_path, "--budget", "0.5", "--plan",
                  "--set", "train.max_steps=400")  # fmt: skip
    assert done.exit_code == 0
    done = invoke("table1", "--out", tmp_path, "--budget", "200")
    assert "short-200" in str(done.exception)


def test_tables_from_records_need_neither_data_nor_torch(tmp_path):
    for seed in (0, 1):
        record(tmp_path, "in_batch", seed, 0.2)
        record(tmp_path, "uniform", seed, 0.4)
    program = (
        "import sys\n"
        "from importlib.abc import MetaPathFinder\n"
        "class Absent(MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in {'torch', 'polars', 'safetensors'}:\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from crossbatch.cli import main\n"
        "main()\n"
    )
    arguments = ["reproduce", "table1", "--out", str(tmp_path), "--keep", str(tmp_path / "kept")]
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "| MIND | Uniform |" in (tmp_path / "table1.md").read_text()
    assert (tmp_path / "kept" / "records.tar.xz").is_file()


@pytest.mark.slow
def test_everything_from_data_to_records(data, tmp_path):
    out, kept = tmp_path / "grid", tmp_path / "kept"
    options = [
        "--models", "youtube_dnn", "--samplers", "in_batch,cross_batch", "--seeds", "0",
        "--sizes", "0,1,19", "--budget", "80", "--set", "train.batch_size=16",
        "--set", "model.dim=8", "--set", "train.log_every=10",
    ]  # fmt: skip
    done = invoke("all", "--data", data, "--out", out, "--jobs", "2", "--keep", kept, *options)
    assert done.exit_code == 0, done.output
    home = out / "short-80"
    for name in ("table1", "table2", "curves", "drift", "lemma"):
        assert "Shortened: every run was cut to 80 steps" in (home / f"{name}.md").read_text()
        page = re.sub(
            r"\[([^]]+)\]\((runs|probes)/[^)]*\)", r"\1", (home / f"{name}.md").read_text()
        )
        assert page == (kept / f"{name}.md").read_text()  # records have no folders to link to
        assert (home / f"{name}.csv").read_text() == (kept / f"{name}.csv").read_text()
    assert "Item k-NN" in (home / "table1.md").read_text()
    runs = {path.name for path in (home / "runs").iterdir()}
    assert runs == {
        "youtube_dnn-in_batch-s0", "youtube_dnn-cross_batch-s0", "youtube_dnn-cross_batch-M16-s0",
    }  # fmt: skip
    again = invoke("all", "--out", kept)
    assert again.exit_code == 0, again.output
