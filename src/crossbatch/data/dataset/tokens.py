"""Text as token ids, by a Hugging Face tokenizer: read from a file, or trained on the catalogue.

text = read_tokenizer(Path("minilm/tokenizer.json"))      # or train_tokenizer(titles)
values, offsets = tokenise(text, titles, max_tokens=64)   # row r: offsets[r]:offsets[r + 1]

A tokenizer is the JSON text of a `tokenizer.json` file, which datasets and bundles store as it is.
It is data: reading it runs no code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from crossbatch.data.dataset.arrays import offsets_of
from crossbatch.errors import ConfigError, DataError, needs_extra, reason_of

MAX_TOKENS = 64  # of a text, by default: titles are far shorter
TRAINED_SIZE = 8_192  # most tokens of a tokenizer that is trained on the catalogue
PADDING = "[PAD]"  # its first token
CHUNK = 4_096  # texts at a time
LARGEST_FILE = 1 << 28  # bytes of a tokenizer.json


def read_tokenizer(path: Path) -> str:
    """The JSON text of a tokenizer file, or of the `tokenizer.json` in a folder."""
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(
            f"the tokenizer must be a tokenizer.json file or a folder with one, got {path}"
        )
    if file.stat().st_size > LARGEST_FILE:
        raise ConfigError(f"{file} is too large for a tokenizer.json")
    try:
        text = file.read_bytes().decode()
        _parsed(text)
    except (UnicodeDecodeError, DataError):
        raise ConfigError(
            f"{file} is no tokenizer of the library tokenizers: save it with "
            "tokenizer.save('tokenizer.json')"
        ) from None
    return text


def train_tokenizer(texts: Sequence[str]) -> str:
    """A byte-level BPE tokenizer that was trained on texts; lower case, no accents.

    The same texts give the same tokenizer. (Trainers of other models in the library do not.)
    """
    library = _library()
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.normalizer = library.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=TRAINED_SIZE,
        special_tokens=[PADDING],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return str(tokenizer.to_str())


def tokenise(
    text: str, texts: Sequence[str | None], max_tokens: int
) -> tuple[np.ndarray, np.ndarray]:
    """Token ids of texts, end to end `[V]` int32, and where each begins `[R + 1]` int64.

    `text` is the tokenizer. A text that is None has no tokens; `max_tokens` includes special ones
    such as [CLS] and [SEP].
    """
    tokenizer = _parsed(text)
    lengths, found = np.zeros(len(texts), dtype=np.int64), []
    with _library_errors():
        tokenizer.no_padding()
        tokenizer.enable_truncation(max_tokens)
        for first in range(0, len(texts), CHUNK):
            rows = [row for row in range(first, min(first + CHUNK, len(texts))) if texts[row]]
            ids = [each.ids for each in tokenizer.encode_batch([texts[row] for row in rows])]
            lengths[rows] = [len(each) for each in ids]
            found += [np.array(each, dtype=np.int32) for each in ids]
    values = np.concatenate(found) if found else np.zeros(0, dtype=np.int32)
    return values, offsets_of(lengths)


def vocabulary_size(text: str) -> int:
    """One more than the largest token id of a tokenizer; ids need not be without gaps."""
    return 1 + max(_parsed(text).get_vocab(with_added_tokens=True).values(), default=0)


def tokenizer_checksum(text: str) -> str:
    """SHA-256 of a tokenizer: weights over token ids mean nothing with another one."""
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache(maxsize=4)
def _parsed(text: str) -> Any:
    with _library_errors():
        return _library().Tokenizer.from_str(text)


@contextmanager
def _library_errors() -> Iterator[None]:
    """Raise errors of the library as `DataError`; a panic in its compiled code is one too."""
    try:
        yield
    except (ConfigError, DataError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = reason_of(error)
        raise DataError(f"the tokenizer cannot be used: {reason}") from error


def _library() -> Any:
    with needs_extra("text", "a tokenizer"):
        library = import_module("tokenizers")
        for part in ("models", "normalizers", "pre_tokenizers", "decoders", "trainers"):
            import_module(f"tokenizers.{part}")
    return library
