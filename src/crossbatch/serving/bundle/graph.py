"""The user side of a model as a graph: for other runtimes, and for models of foreign code.

`UserGraph` is exported as `.pt2` by torch.export, and as ONNX. Inputs, in this order: `history`
`[B, L]` int64, the L most recent items, oldest first, right-padded with 0; then each user feature
in alphabetical order: categorical `[B]` int64, numeric and dense `[B, n]` float32, a multi-valued
one as two inputs, all values end to end `[V]` int64 and each user's offset into them `[B]` int64.
Output: `interests` `[B, K, d]`, of which the largest product with an item is its score. A model
whose queries score together has two: `interests` `[B, L, d]` and `log_weights` `[B, L]`, −inf where
there is no query; the score is the log-sum-exp of their sums.

`open_bundle` never reads these files, for torch's loader of `.pt2` archives may unpickle. They are
for C++, mobile and ONNX runtimes; load them only if you trust their source.

`OwnUsers` gives the user vectors of models that are not built from a recipe's own towers: from a
graph (`core_graph`) in a bundle, or from the model itself in a run. A model that has `describe` and
`interests`, as `TwoTower` does, is asked with the stored vectors of the items of a history. Any
other is asked with their ids: what is stored for each item is its id.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from crossbatch.errors import DataError, needs_extra, reason_of
from crossbatch.models import FeatureTable, TwoTower
from crossbatch.queries import Queries, weights_of
from crossbatch.serving.bundle.core_graph import BLOCK, GraphData, trace
from crossbatch.serving.bundle.model_files import sample_tables
from crossbatch.serving.user_features import Profiles, with_profiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from crossbatch.serving.recommender import Recommender

PT2, ONNX = "user_tower.pt2", "user_tower.onnx"
MULTI = "multi_valued"
STARTS = ".starts"  # suffix of the second input of a multi-valued feature
TRACED_USERS = 4
ONE_FILE_BYTES = 1 << 30  # larger ONNX graphs keep their weights in a second file
CLOSE = 1e-4  # of the largest number
MOST_IDS = 1 << 24  # that float32 holds exactly


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
            towers = with_profiles(self.towers, as_tables(self.schema, features))
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
        return (history, *as_inputs(self.schema, profiles.tables, profiles.rows))


def as_inputs(
    schema: Mapping[str, Any], tables: Mapping[str, FeatureTable], rows: Tensor
) -> list[Tensor]:
    """Features of users as tensors, by name: `rows` `[B]` of the tables."""
    found: list[Tensor] = []
    for name, entry in sorted(schema.items()):
        if entry["kind"] == MULTI:
            found += tables[name].bags(rows)
        else:
            values = tables[name].rows(rows)
            found.append(values.float() if values.is_floating_point() else values.long())
    return found


def as_tables(schema: Mapping[str, Any], inputs: Iterable[Tensor]) -> dict[str, FeatureTable]:
    """The tables of features whose rows are the users of `as_inputs`."""
    rest, tables = iter(inputs), dict[str, FeatureTable]()
    for name, entry in sorted(schema.items()):
        values, starts = next(rest), next(rest) if entry["kind"] == MULTI else None
        tables[name] = AllRows(entry["kind"], values, starts, entry["num_values"])
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
        reason = reason_of(error)
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
        with needs_extra("onnx", "--onnx"):
            import_module(package)
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


class UserSide(nn.Module):
    """What is traced: history vectors, mask, whether users are known, their features; to interests.

    Args:
        towers: The model.
        schema: Kind and size of each user feature that its `profile` reads.
        by_ids: Whether the vectors `[B, L, 1]` are item ids.
    """

    def __init__(self, towers: Any, schema: Mapping[str, Any], *, by_ids: bool) -> None:
        super().__init__()
        self.towers, self.by_ids = towers, by_ids
        self.schema = dict(sorted(schema.items()))
        self.eval()

    def forward(
        self, vectors: Tensor, mask: Tensor, known: Tensor, *features: Tensor
    ) -> tuple[Tensor, ...]:
        """Interests `[B, K, d]`; of `Queries` their log-weights `[B, K]` as well."""
        towers, rows = self.towers, None
        if self.schema:
            towers = with_profiles(towers, as_tables(self.schema, features))
            everyone = torch.arange(vectors.shape[0], device=vectors.device)
            rows = torch.where(known, everyone, -1)
        if self.by_ids:
            interests = towers.users(vectors.squeeze(-1).long(), rows)
        else:
            interests = towers.interests(vectors, mask, rows)
        found, log_weights = weights_of(interests)
        found = found.unsqueeze(1) if found.ndim == 2 else found
        return (found,) if log_weights is None else (found, log_weights)


class OwnUsers(nn.Module):
    """Answers as `TwoTower.interests` does, by a graph or by a `UserSide`.

    Args:
        call: Takes the inputs of `UserSide` and gives its outputs.
        schema: Kind and size of each user feature.
        history_length: Width L of the histories that `call` takes.
        block: Number of users that `call` takes; None for any.
    """

    def __init__(
        self,
        call: Callable[..., tuple[Tensor, ...]],
        schema: Mapping[str, Any],
        history_length: int,
        block: int | None = None,
    ) -> None:
        super().__init__()
        self.call, self.schema = call, dict(schema)
        self.history_length, self.block = history_length, block
        self._tables = sample_tables(self.schema, 1)  # of users who are not known

    def with_profiles(self, tables: Mapping[str, FeatureTable]) -> OwnUsers:
        """The same with the features of other users."""
        twin = copy.copy(self)
        twin._tables = dict(tables)
        return twin

    def interests(
        self, vectors: Tensor, mask: Tensor, user_ids: Tensor | None = None
    ) -> Tensor | Queries:
        """Interests `[B, K, d]` of history vectors `[B, L, w]` with mask `[B, L]`."""
        total, length = mask.shape
        missing = self.history_length - length
        if missing > 0:
            vectors = nn.functional.pad(vectors, (0, 0, 0, missing))
            mask = nn.functional.pad(mask, (0, missing))
        rows = vectors.new_full((total,), -1, dtype=torch.long) if user_ids is None else user_ids
        if self.block is None:
            return self._answered(vectors, mask, rows)
        parts = []
        for start in range(0, max(total, 1), self.block):
            part = slice(start, start + self.block)
            own = [vectors[part], mask[part], rows[part]]
            short = self.block - len(own[2])
            if short:
                own = [torch.cat([each, each.new_zeros(short, *each.shape[1:])]) for each in own]
            parts.append(weights_of(self._answered(*own)))
        found = torch.cat([part[0] for part in parts])[:total]
        if parts[0][1] is None:
            return found
        return Queries(found, torch.cat([part[1] for part in parts if part[1] is not None])[:total])

    def _answered(self, vectors: Tensor, mask: Tensor, rows: Tensor) -> Tensor | Queries:
        features = as_inputs(self.schema, self._tables, rows.clamp_min(0))
        outputs = self.call(vectors, mask, rows >= 0, *features)
        return outputs[0] if len(outputs) == 1 else Queries(outputs[0], outputs[1])


@torch.no_grad()
def reads_vectors(towers: Any, history: Tensor, *rows: Tensor) -> bool:
    """Whether a model's `interests` of the items' `describe` are its `users`, for B users.

    A subclass may have changed one of them and not the others.
    """
    if isinstance(towers, TwoTower) and type(towers) is TwoTower:
        return True
    if not all(callable(getattr(towers, name, None)) for name in ("describe", "interests")):
        return False
    if len(rows) > 1:  # rows of two kinds are for towers that read ids
        return False
    expected, _ = weights_of(towers.users(history, *rows))
    try:
        vectors = towers.describe(history.flatten()).view(*history.shape, -1)
        found, _ = weights_of(towers.interests(vectors, history != 0, *rows))
    except (RuntimeError, TypeError, ValueError):
        return False
    if found.shape != expected.shape:
        return False
    scale = max(float(expected.abs().max()), 1e-12)
    return float((found - expected).abs().max()) <= CLOSE * scale


def traced(side: UserSide, width: int, history_length: int) -> GraphData:
    """The graph of a user side that reads vectors of this width, `history_length` of them."""
    users = BLOCK
    rows = torch.arange(users)
    vectors = torch.zeros(users, history_length, width)
    vectors[:, 0] = 1.0
    mask = torch.zeros(users, history_length, dtype=torch.bool)
    mask[:, 0] = True
    features = as_inputs(side.schema, sample_tables(side.schema, users), rows)
    example = (vectors, mask, torch.ones(users, dtype=torch.bool), *features)
    ragged, place = [], 3
    for entry in side.schema.values():
        ragged += [place] if entry["kind"] == MULTI else []
        place += 2 if entry["kind"] == MULTI else 1
    return trace(side, example, side.towers.state_dict(), ragged)


def ids_as_vectors(num_items: int) -> Tensor:
    """What is stored of items for a model that reads ids: `[num_items + 1, 1]` float32."""
    return torch.arange(num_items + 1, dtype=torch.float32).unsqueeze(1)
