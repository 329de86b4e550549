"""Text as token ids: by a tokenizer file, by one that is trained on the catalogue, of new items."""

import subprocess
import sys

import numpy as np
import polars as pl
import pytest
import torch

from crossbatch.data import Column, open_dataset, prepare
from crossbatch.data.dataset.features import read_encoders
from crossbatch.data.prepare import append
from crossbatch.data.prepare.options import PrepareOptions
from crossbatch.errors import ConfigError, DataError
from crossbatch.models import FeatureTable

tokenizers = pytest.importorskip("tokenizers")

TITLES = {"a": "Red Fox", "b": None, "c": "red hen  fox!", "d": "Zebra"}
WORDS = {"[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "red": 7, "fox": 9, "hen": 11, "!": 12}
ROWS = [(f"u{user}", item, step) for user in range(10) for step, item in enumerate("abcd")]


@pytest.fixture
def tokenizer_file(tmp_path):
    """Whole words with ids that leave gaps, between [CLS] and [SEP]."""
    from tokenizers import models, normalizers, pre_tokenizers, processors

    tokenizer = tokenizers.Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def source(source_of, *columns, rows=ROWS, titles=TITLES):
    table = pl.DataFrame({"key": list(titles), "title": list(titles.values())})
    return source_of(
        rows, item_table=lambda _keys, _tally: table, item_columns=columns, title="title"
    )


def rows_of(feature, ids):
    return [feature.values[feature.offsets[i] : feature.offsets[i + 1]].tolist() for i in ids]


def test_a_tokenizer_file_gives_its_own_ids(make_dataset, source_of, tokenizer_file):
    column = Column("title", "tokens", model=str(tokenizer_file))
    dataset = make_dataset(source(source_of, column))
    dataset.verify()
    feature = dataset.item_features["title"]
    assert (feature.kind, feature.num_values) == ("tokens", 13)
    assert not feature.values.flags.owndata  # over the memory map
    found = rows_of(feature, [0, *dataset.item_ids(["a", "b", "c", "d"])])
    assert found == [[], [2, 7, 9, 3], [], [2, 7, 11, 9, 12, 3], [2, 1, 3]]


def test_long_texts_are_cut_and_keep_their_last_special_token(
    make_dataset, source_of, tokenizer_file
):
    column = Column("title", "tokens", model=str(tokenizer_file.parent), max_tokens=4)
    dataset = make_dataset(source(source_of, column))
    assert rows_of(dataset.item_features["title"], dataset.item_ids(["c"])) == [[2, 7, 11, 3]]


def test_new_items_have_the_tokens_of_the_stored_tokenizer(make_dataset, source_of, tokenizer_file):
    dataset = make_dataset(source(source_of, Column("title", "tokens", model=str(tokenizer_file))))
    tokenizer_file.unlink()
    new = dataset.encode_items(pl.DataFrame({"title": ["hen red", None]}))["title"]
    assert (new.values.tolist(), new.offsets.tolist()) == ([2, 11, 7, 3], [0, 4, 4])


def test_a_trained_tokenizer_reads_back_and_is_the_same_in_another_process(make_dataset, source_of):
    dataset = make_dataset(source(source_of, Column("title", "tokens")))
    (encoder,) = read_encoders(dataset.path / "features/items").values()
    mine = tokenizers.Tokenizer.from_str(encoder.tokenizer)
    rows = rows_of(dataset.item_features["title"], dataset.item_ids(["a", "b", "c", "d"]))
    assert [mine.decode(row).strip() for row in rows] == ["red fox", "", "red hen  fox!", "zebra"]
    texts = [text for text in TITLES.values() if text]
    code = (
        "import sys; from crossbatch.data.dataset.tokens import train_tokenizer; "
        f"sys.stdout.write(train_tokenizer({texts!r}))"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout == encoder.tokenizer


def test_appended_days_keep_the_tokenizer(source_of, tmp_path):
    first, later = tmp_path / "first", tmp_path / "later"
    loose = PrepareOptions(min_item_count=1, min_user_count=1, growing=True, split="time")
    prepare(source(source_of, Column("title", "tokens")), first, loose)
    rows = [(user, "e", time + 100) for user, _, time in ROWS[::4]]
    more = source(source_of, Column("title", "tokens"), rows=rows, titles={"e": "Fox red"})
    append(more, first, later, {})
    before, after = open_dataset(first), open_dataset(later)
    encoders = [read_encoders(each.path / "features/items")["title"] for each in (before, after)]
    assert encoders[0] == encoders[1]
    new = rows_of(after.item_features["title"], after.item_ids(["e"]))
    old = rows_of(before.item_features["title"], before.item_ids(["a"]))
    assert new == [old[0][::-1]]
    kept = [rows_of(each.item_features["title"], each.item_ids(["c"])) for each in (before, after)]
    assert kept[0] == kept[1]


def test_mistakes_are_one_sentence(make_dataset, source_of, tmp_path):
    with pytest.raises(ConfigError, match=r"must be a tokenizer\.json file or a folder with one"):
        make_dataset(source(source_of, Column("title", "tokens", model=str(tmp_path / "none"))))
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(ConfigError, match="is no tokenizer of the library"):
        make_dataset(source(source_of, Column("title", "tokens", model=str(tmp_path))))
    with pytest.raises(DataError, match="no text to train a tokenizer on"):
        make_dataset(source(source_of, Column("title", "tokens"), titles={"a": None}))
    with pytest.raises(ConfigError, match="max_tokens must be 4 to 8192, got 1"):
        Column("title", "tokens", max_tokens=1)
    with pytest.raises(ConfigError, match="which item towers alone"):
        source_of(ROWS, user_columns=(Column("about", "tokens"),))


def test_another_tokenizer_in_its_place_is_refused(make_dataset, source_of, tokenizer_file):
    dataset = make_dataset(source(source_of, Column("title", "tokens")))
    stored = next((dataset.path / "features/items").glob("*.tokenizer.json"))
    stored.write_bytes(tokenizer_file.read_bytes())
    with pytest.raises(DataError, match="is not the tokenizer of the feature"):
        dataset.encode_items(pl.DataFrame({"title": ["red"]}))


def test_padded_rows_of_a_table():
    values, offsets = np.array([5, 6, 7, 8], dtype=np.int32), np.array([0, 0, 3, 4])
    table = FeatureTable.from_arrays("tokens", values, offsets, 9)
    found, mask = table.padded(torch.tensor([2, 0, 1]))
    assert found.tolist() == [[8, 0, 0], [0, 0, 0], [5, 6, 7]]
    assert mask.tolist() == [[True, False, False], [False] * 3, [True] * 3]
    found, mask = table.padded(torch.tensor([1, 2]), longest=2)
    assert (found.tolist(), mask.sum().item()) == ([[5, 6], [8, 0]], 3)
    found, mask = table.padded(torch.tensor([0]))
    assert (found.tolist(), mask.tolist()) == ([[0]], [[False]])
