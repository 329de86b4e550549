"""Export the user tower as a graph for other runtimes: `.pt2` by torch.export, and ONNX.

Inputs, in this order: `history` `[B, L]` int64, the L most recent items, oldest first, right-padded
with 0; then each user feature in alphabetical order: categorical `[B]` int64, numeric and dense
`[B, n]` float32, a multi-valued one as two inputs, all values end to end `[V]` int64 and each
user's offset into them `[B]` int64. Output: `interests` `[B, K, d]`, of which the largest product
with an item is its score. A model whose queries score together has two: `interests` `[B, L, d]` and
`log_weights` `[B, L]`, −inf where there is no query; the score is the log-sum-exp of their sums.

`open_bundle` never reads these files, for torch's loader of `.pt2` archives may unpickle. They are
for C++, mobile and ONNX runtimes; load them only if you trust their source.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from crossbatch.errors import ConfigError, DataError
from crossbatch.models import FeatureTable
from crossbatch.queries import Queries
from crossbatch.serving.bundle.model_files import sample_tables
from crossbatch.serving.user_features import Profiles, with_profiles

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from crossbatch.serving.recommender import Recommender

PT2, ONNX = "user_tower.pt2", "user_tower.onnx"
MULTI = "multi_valued"
STARTS = ".starts"  # suffix of the second input of a multi-valued feature
TRACED_USERS = 4
ONE_FILE_BYTES = 1 << 30  # larger ONNX graphs keep their weights in a second file


class UserGraph(nn.Module):
    """The module that is exported: history lookup, user features (by `schema`), user tower."""

    def __init__(self, recommender: Recommender, schema: Mapping[str, Any]) -> None:
        super().__init__()
        self.towers, self.vectors = recommender.towers, nn.Buffer(recommender.history_vectors)
        self.schema = dict(sorted(schema.items()))
        self.eval()

    def forward(self, history: Tensor, *features: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Interests `[B, K, d]` of histories `[B, L]`; see the module for the features."""
        vectors, mask, towers, rows = self.vectors[history], history != 0, self.towers, None
        if self.schema:
            towers = with_profiles(self.towers, self._tables(list(features)))
            rows = torch.arange(history.shape[0], device=history.device)
        interests = towers.interests(vectors, mask, rows)
        if isinstance(interests, Queries):
            return interests.vectors, interests.log_weights
        return interests

    def input_names(self) -> list[str]:
        """Names of the inputs, in order."""
        names = ["history"]
        for name, entry in self.schema.items():
            names += [name, name + STARTS] if entry["kind"] == MULTI else [name]
        return names

    def inputs(self, history: Tensor, profiles: Profiles | None) -> tuple[Tensor, ...]:
        """The inputs for given users, all of whose profiles are known."""
        if profiles is None:
            return (history,)
        parts = [history]
        for name, entry in self.schema.items():
            table = profiles.tables[name]
            if entry["kind"] == MULTI:
                parts += table.bags(profiles.rows)
            else:
                values = table.rows(profiles.rows)
                parts.append(values.float() if values.is_floating_point() else values.long())
        return tuple(parts)

    def _tables(self, inputs: list[Tensor]) -> dict[str, FeatureTable]:
        tables: dict[str, FeatureTable] = {}
        for name, entry in self.schema.items():
            kind, values = entry["kind"], inputs.pop(0)
            starts = inputs.pop(0) if kind == MULTI else None
            tables[name] = AllRows(kind, values, starts, entry["num_values"])
        return tables


class AllRows(FeatureTable):
    """A table of which every row is read, in order; `offsets` holds the start of each row."""

    def bags(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """All values and the start of each row, without depending on how long rows are."""
        assert self.offsets is not None
        return self.values, self.offsets


def export_graph(graph: UserGraph, history_length: int) -> torch.export.ExportedProgram:
    """Trace the graph with torch.export, for any number of users; the history length is fixed."""
    # placeholder users: torch takes sizes 0 and 1, which real users may have, for constants
    history = torch.ones(TRACED_USERS, history_length, dtype=torch.long)
    rows = torch.arange(TRACED_USERS)
    profiles = Profiles(sample_tables(graph.schema, TRACED_USERS), rows)
    example = graph.inputs(history, profiles)
    batch = torch.export.Dim("batch")
    shapes: list[dict[int, Any]] = [{0: batch} for _ in example]
    for position, name in enumerate(graph.input_names()):
        if graph.schema.get(name, {}).get("kind") == MULTI:
            shapes[position] = {0: torch.export.Dim.DYNAMIC}
    varying = (shapes[0], tuple(shapes[1:])) if len(shapes) > 1 else (shapes[0],)
    try:
        with torch.no_grad():
            return torch.export.export(graph, example, dynamic_shapes=varying, strict=False)
    except Exception as error:  # torch raises exceptions of many kinds here
        reason = str(error).strip().splitlines()[0]
        raise DataError(
            f"torch.export cannot trace this model ({reason}): pass --no-graph"
        ) from error


def write_pt2(path: Path, program: torch.export.ExportedProgram) -> None:
    """Write a program as an archive of torch.export."""
    try:
        torch.export.save(program, path)
    except RuntimeError as error:  # torch hides the system's error number
        raise OSError(f"{path} could not be written: {error}") from None


def write_onnx(path: Path, program: torch.export.ExportedProgram, names: list[str]) -> None:
    """Write a program as ONNX; its inputs get the given names."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            import_module(package)
        except ImportError:
            raise ConfigError("--onnx needs: pip install 'crossbatch[onnx]'") from None
    weights = sum(value.nbytes for value in program.state_dict.values())
    with _quiet():
        converted = torch.onnx.export(
            program,
            dynamo=True,
            input_names=names,
            output_names=["interests", "log_weights"][: len(program.graph_signature.user_outputs)],
            verbose=False,
        )
        assert converted is not None
        converted.save(path, external_data=weights > ONE_FILE_BYTES)


def answered(outputs: Tensor | Sequence[Tensor]) -> Tensor | Queries:
    """What a graph's outputs stand for: interests `[B, K, d]`, or queries."""
    if isinstance(outputs, Tensor):
        return outputs
    return outputs[0] if len(outputs) == 1 else Queries(*outputs)


def run_onnx(path: Path, inputs: tuple[Tensor, ...]) -> Tensor | Queries:
    """Run the graph with ONNX Runtime."""
    runtime = import_module("onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    values = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
    return answered([torch.from_numpy(output) for output in session.run(None, values)])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the output of the converter."""
    sink = io.StringIO()
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(sink),
            contextlib.redirect_stderr(sink),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
