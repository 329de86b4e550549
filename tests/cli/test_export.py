"""The commands that make, change and ask bundles, as a user types them."""

import json
import shutil

import polars as pl
import pytest

from crossbatch.config import Recipe
from crossbatch.data import PrepareOptions, open_dataset, prepare
from crossbatch.data.synthetic import SynthOptions, synthetic_source
from crossbatch.serving import export_bundle
from crossbatch.training import fit


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with a run, a bundle made by the command, and tables of users and new items."""
    folder = tmp_path_factory.mktemp("export")
    source = synthetic_source(SynthOptions(users=300, items=150, interactions=5000))
    prepare(source, folder / "data", PrepareOptions())
    train = {"batch_size": 32, "max_steps": 20, "eval_every": 20, "threads": 1}
    model = {"name": "youtube_dnn", "dim": 8, "history": "item_tower"}
    recipe = Recipe.from_dict({"model": model, "sampler": {"name": "in_batch"}, "train": train})
    fit(open_dataset(folder / "data"), recipe, folder / "run")
    export_bundle(folder / "run", folder / "bundle")
    keys = open_dataset(folder / "data").item_keys(range(6))
    users = pl.DataFrame({"user": ["a", "b"], "history": [keys[1:4], ["nobody"]]})
    users.write_parquet(folder / "users.parquet")
    pl.DataFrame({"item": ["n1"], "title": ["New Thing"]}).write_csv(folder / "new.csv")
    (folder / "keys").write_text(",".join(keys[1:4]))
    return folder


def test_export_says_what_it_made_and_how_it_was_checked(crossbatch, workplace, tmp_path):
    done = crossbatch(f"export run --out {tmp_path}/b --name shop --no-graph", cwd=workplace)
    assert done.returncode == 0, done.stderr
    for words in ("youtube_dnn, 150 items", "same answers as the run for", "index exact"):
        assert words in done.stdout
    assert not (tmp_path / "b" / "user_tower.pt2").exists()
    again = crossbatch(f"export run --out {tmp_path}/b --force --quiet", cwd=workplace)
    assert (again.returncode, again.stdout) == (0, "")
    assert (tmp_path / "b" / "user_tower.pt2").exists()


def history(folder):
    return (folder / "keys").read_text()


@pytest.mark.parametrize("source", ["bundle", "run"])
def test_recommend_from_either(crossbatch, workplace, source):
    line = f"recommend {source} --history {history(workplace)},nobody -k 4"
    table = crossbatch(line, cwd=workplace)
    assert table.returncode == 0, table.stderr
    assert "recommended" in table.stdout
    assert "unknown items left out: nobody" in table.stderr
    document = json.loads(crossbatch(f"{line} --json", cwd=workplace).stdout)
    assert document["unknown"] == ["nobody"]
    assert [set(item) for item in document["items"]] == [
        {"id", "key", "title", "score", "interest", "because"}
    ] * 4
    assert document["items"][0]["title"] in table.stdout


def test_both_sources_answer_the_same(crossbatch, workplace):
    answers = [
        json.loads(
            crossbatch(
                f"recommend {source} --history {history(workplace)} --user-features age=33,"
                "region=north --no-exclude-seen --json",
                cwd=workplace,
            ).stdout
        )
        for source in ("bundle", "run")
    ]
    keys = [[item["key"] for item in answer["items"]] for answer in answers]
    assert keys[0] == keys[1]
    assert len(keys[0]) == 20


def test_a_file_of_users(crossbatch, workplace, tmp_path):
    done = crossbatch(
        f"recommend bundle --users users.parquet --out {tmp_path}/lists.csv -k 3", cwd=workplace
    )
    assert done.returncode == 0, done.stderr
    assert "6 items for 2 users" in done.stdout
    assert "1 of 4 history items are unknown" in done.stdout
    assert "1 users without a known item" in done.stdout
    assert pl.read_csv(tmp_path / "lists.csv")["user"].to_list() == ["a"] * 3 + ["b"] * 3


def test_items_come_and_go(crossbatch, workplace, tmp_path):
    done = crossbatch(f"items add bundle new.csv --out {tmp_path}/more", cwd=workplace)
    assert done.returncode == 0, done.stderr
    assert "1 items added" in done.stdout
    assert "151 items" in done.stdout
    found = crossbatch(f"recommend {tmp_path}/more --history n1 -k 2", cwd=workplace)
    assert "New Thing" in found.stdout
    by_name = f"items remove {tmp_path}/more --items n1 --out {tmp_path}/less"
    assert "1 items removed" in crossbatch(by_name, cwd=workplace).stdout
    by_file = f"items remove {tmp_path}/more --file new.csv --out {tmp_path}/less --force --quiet"
    done = crossbatch(by_file, cwd=workplace)
    assert (done.returncode, done.stdout) == (0, "")
    done = crossbatch(f"vectors {tmp_path}/less --out {tmp_path}/v.parquet", cwd=workplace)
    assert "150 vectors of 8 numbers" in done.stdout
    assert len(pl.read_parquet(tmp_path / "v.parquet")) == 150


MISTAKES = [
    ("export run --out bundle", "already exists: choose another --out or pass --overwrite"),
    ("export data --out new", "no run folder"),
    ("export run --out data --overwrite", "(no bundle.json), so --overwrite does not replace it"),
    ("export run --out new --index hnsw", "index must be one of auto, exact, ivf"),
    ("export run --out new --recall 2", "recall must be in (0, 1]"),
    ("recommend data --history x", "neither a bundle (no bundle.json) nor a run folder"),
    ("recommend nowhere --history x", "neither a bundle"),
    ("recommend bundle", "either --history"),
    ("recommend bundle --history x --user 3", "either --history"),
    ("recommend bundle --history nobody", "holds no item of the catalogue"),
    ("recommend bundle --history KEYS -k 0", "k must be 1 to 150"),
    ("recommend bundle --history KEYS -k 1000000000", "k must be 1 to 150"),
    ("recommend bundle --history KEYS --user-features agee=3", "did you mean 'age'"),
    ("recommend bundle --history KEYS --user-features age", "needs NAME=VALUE"),
    ("recommend bundle --history KEYS --user-features age=nan", "(it is numeric), got 'nan'"),
    ("recommend bundle --user 3", "a bundle keeps no users"),
    ("recommend run --user 99999", "--user must be 0 to"),
    ("recommend bundle --users users.parquet", "--users FILE and --out FILE belong together"),
    ("recommend bundle --users users.parquet --out x.txt", "--out must end in .parquet"),
    (
        "recommend bundle --users users.parquet --out x.csv --user-features age=3",
        "columns of --users",
    ),
    ("items add bundle users.parquet --out new", "need a column 'item'"),
    ("items add bundle nothing.csv --out new", "nothing.csv cannot be read"),
    ("items add bundle recipe.toml --out new", "must end in .parquet, .csv, .jsonl"),
    ("items remove bundle --out new", "either --items"),
    ("items remove bundle --items nobody --out new", "not in the bundle: 'nobody'"),
    ("items remove bundle --file users.parquet --out new", "has no column 'item'"),
    ("vectors bundle", "either --out FILE or --postgres"),
    ("vectors bundle --out new.csv", "must end in .parquet, .jsonl"),
]


@pytest.mark.parametrize(("line", "message"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_mistakes_are_one_sentence_and_exit_code_two(crossbatch, workplace, line, message):
    done = crossbatch(line.replace("KEYS", history(workplace)), cwd=workplace)
    assert done.returncode == 2, done.stderr
    lines = [text for text in done.stderr.splitlines() if text.startswith("crossbatch: ")]
    assert message in lines[-1]
    assert "Traceback" not in done.stderr
    assert not (workplace / "new").exists()


def test_a_damaged_bundle_is_one_sentence(crossbatch, workplace, tmp_path):
    shutil.copytree(workplace / "bundle", tmp_path / "bundle")
    with (tmp_path / "bundle" / "item_vectors.npy").open("r+b") as file:
        file.seek(500)
        file.write(b"!")
    done = crossbatch(f"recommend {tmp_path}/bundle --history x", cwd=workplace)
    assert done.returncode == 2
    assert "was altered" in done.stderr
    assert "Traceback" not in done.stderr
