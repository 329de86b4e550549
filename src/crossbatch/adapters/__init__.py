"""Adapters to other tools: one module each, imported only when needed.

| module | tool | extra |
|---|---|---|
| `lightning` | PyTorch Lightning | `lightning` |
| `sentence_transformers` | sentence-transformers | `text` |
| `huggingface` | Hugging Face datasets | `hf` |

TensorBoard and MLflow are `crossbatch train --track`, Optuna is `crossbatch tune`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Name the extra to install if an import in the body fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"this adapter needs {error.name}: pip install 'crossbatch[{extra}]'", name=error.name
        ) from None
