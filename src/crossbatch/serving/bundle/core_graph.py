"""Graphs of core ATen operations as data: JSON and tensors that run without any foreign code.

graph = trace(module, example)                  # by torch.export
save(graph, folder / "user_program")
module = CoreGraph(load(folder / "user_program"), weights)

torch's own `.pt2` archives may unpickle and evaluate expressions when they are loaded. This format
can do neither: a file names operations, and only those that torch calls core, which compute tensors
from tensors and check their arguments, are looked up.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind
from torch.fx import Node

from crossbatch.errors import DataError, reason_of
from crossbatch.files import read_document, write_document
from crossbatch.serving.bundle.model_files import map_tensors, save_tensors

BLOCK = 8  # users at a time, of models that torch can only trace for a fixed number
ON_NUMBERS: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name)
    for name in ("getitem", "add", "sub", "mul", "floordiv", "mod", "neg")
}
# Not called core, but of the same kind; and core operations that could show other memory.
ALSO = {"linalg_vector_norm.default", "sym_size.int", "lift_fresh_copy.default", "mean.dim"}
NEVER = {"as_strided", "empty", "empty_strided", "resize"}
SKIPPED = ("_assert_scalar", "_assert_tensor_metadata", "_assert_async", "sym_constrain_range")
TORCH_WORDS: dict[str, type] = {"dtype": torch.dtype, "memory_format": torch.memory_format}
SPECIAL = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


@dataclass(frozen=True, slots=True)
class GraphData:
    """A traced module.

    Attributes:
        document: JSON: inputs, steps, outputs, and the number of users that it is fixed to.
        constants: Tensors that are no weights of the module, by name.
    """

    document: dict[str, Any]
    constants: dict[str, Tensor]


def trace(
    module: nn.Module,
    example: Sequence[Tensor],
    weights: Mapping[str, Tensor],
    ragged: Collection[int] = (),
) -> GraphData:
    """Trace a module by torch.export, for any number of users if that is possible.

    Args:
        module: In evaluation mode; its inputs have a first dimension B.
        example: Inputs of `BLOCK` users.
        weights: Its weights by name, which the graph refers to and does not contain.
        ragged: Places of inputs whose length is another one than B.

    Raises:
        DataError: If torch cannot trace it, or it uses an operation that is not allowed.
    """
    batch, other = torch.export.Dim("batch"), torch.export.Dim.DYNAMIC
    varying = tuple({0: other if i in ragged else batch} for i in range(len(example)))
    try:
        program = _exported(module, example, varying)
        block = None
    except Exception:  # torch raises exceptions of many kinds here
        try:
            if ragged:
                raise ValueError("it needs a fixed number of users, and they have lists of values")
            program, block = _exported(module, example, None), BLOCK
        except Exception as error:
            reason = reason_of(error)
            raise DataError(f"torch.export cannot trace the user tower: {reason}") from error
    return _as_data(program, weights, block)


def _exported(
    module: nn.Module, example: Sequence[Tensor], shapes: tuple[Any, ...] | None
) -> torch.export.ExportedProgram:
    arguments = tuple(example)
    if shapes is not None and len(shapes) > 3:  # those after the third are variadic
        shapes = (*shapes[:3], shapes[3:])
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(module, arguments, dynamic_shapes=shapes, strict=False)
        core: torch.export.ExportedProgram = program.run_decompositions()
        return core


def _as_data(
    program: torch.export.ExportedProgram, weights: Mapping[str, Tensor], block: int | None
) -> GraphData:
    tensors = {**program.state_dict, **program.constants}
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    numbers: dict[Node, int] = {}
    inputs: list[Any] = []
    steps: list[Any] = []
    constants: dict[str, Tensor] = {}
    outputs: list[Any] = []
    for node in program.graph.nodes:
        if node.op == "placeholder":
            spec = specs[node.name]
            if spec.kind is InputKind.USER_INPUT:
                inputs.append(None)
            elif not node.users:
                continue
            else:
                target = str(spec.target)
                own = target.removeprefix("towers.")
                if own in weights:
                    inputs.append({"weight": own})
                else:
                    constants[target] = tensors[target].detach().clone().contiguous()
                    inputs.append({"constant": target})
            numbers[node] = len(numbers)
        elif node.op == "call_function":
            name = _operation_name(node.target)
            if name.startswith(SKIPPED):
                continue
            operation(name)  # raises for what `CoreGraph` would refuse
            arguments = [_plain(value, numbers) for value in node.args]
            options = {key: _plain(value, numbers) for key, value in node.kwargs.items()}
            steps.append([name, arguments, options])
            numbers[node] = len(numbers)
        elif node.op == "output":
            outputs = _plain(node.args[0], numbers)
        else:
            raise DataError(f"the user tower's graph has a step {node.op!r} that bundles cannot do")
    return GraphData(
        {"inputs": inputs, "steps": steps, "outputs": outputs, "block": block}, constants
    )


def _operation_name(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload) and target.namespace == "aten":
        return f"{target._opname}.{target._overloadname}"
    if any(target is each for each in ON_NUMBERS.values()):
        return str(target.__name__)
    raise DataError(f"the user tower's graph uses {target}, which bundles cannot do")


def operation(name: Any) -> Callable[..., Any]:
    """The operation of a name in a graph; raise `DataError` for one that is not allowed."""
    if isinstance(name, str) and name in ON_NUMBERS:
        return ON_NUMBERS[name]
    base, _, overload = str(name).partition(".")
    packet = getattr(torch.ops.aten, base, None) if base.isidentifier() else None
    found = getattr(packet, overload, None) if overload.isidentifier() else None
    core = isinstance(found, torch._ops.OpOverload) and (
        torch.Tag.core in found.tags or torch.Tag.pointwise in found.tags or name in ALSO
    )
    if not core or base in NEVER or found._schema.is_mutable:  # type: ignore[union-attr]
        raise DataError(f"the user tower's graph uses {name!r}, which bundles cannot do")
    return found  # type: ignore[return-value]


def _plain(value: Any, numbers: Mapping[Node, int]) -> Any:
    """An argument as JSON."""
    if isinstance(value, Node):
        return {"node": numbers[value]}
    if isinstance(value, (list, tuple)):
        return [_plain(each, numbers) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    for kind, known in TORCH_WORDS.items():
        if isinstance(value, known):
            return {kind: str(value).removeprefix("torch.")}
    if isinstance(value, (torch.device, torch.layout)):
        return None  # the processor's memory, densely filled
    raise DataError(f"the user tower's graph has an argument {value!r} that bundles cannot store")


class CoreGraph(nn.Module):
    """Runs a graph.

    Args:
        data: The graph; every number and name in it is checked.
        weights: Weights by the names that it refers to.

    Attributes:
        block: The number of users that it is fixed to; None for any.

    Raises:
        DataError: If it is not such a graph.
    """

    def __init__(self, data: GraphData, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        document = data.document
        try:
            self._given: list[Tensor | None] = []
            for entry in document["inputs"]:
                if entry is None:
                    self._given.append(None)
                elif "weight" in entry:
                    self._given.append(weights[entry["weight"]])
                else:
                    self._given.append(data.constants[entry["constant"]])
            known = len(self._given)
            self._steps = []
            for place, (name, arguments, options) in enumerate(document["steps"]):
                least = known + place  # a step may use what came before it
                self._steps.append(
                    (
                        operation(name),
                        [_parsed(each, least) for each in arguments],
                        {str(key): _parsed(each, least) for key, each in options.items()},
                    )
                )
            self._outputs = [
                _parsed(each, known + len(self._steps)) for each in document["outputs"]
            ]
            self.block: int | None = document["block"]
            if self.block is not None and self.block != BLOCK:
                raise ValueError(f"a block of {self.block!r} users")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"the user tower's graph is damaged ({error!r})") from None

    def forward(self, *inputs: Tensor) -> tuple[Any, ...]:
        """The outputs for inputs in the order of the traced module's."""
        rest = iter(inputs)
        values: list[Any] = [next(rest) if each is None else each for each in self._given]
        for call, arguments, options in self._steps:
            found = call(
                *[_value(each, values) for each in arguments],
                **{key: _value(each, values) for key, each in options.items()},
            )
            values.append(found)
        return tuple(_value(each, values) for each in self._outputs)


@dataclass(frozen=True, slots=True)
class _Reference:
    """The result of an earlier step."""

    number: int


def _parsed(value: Any, known: int) -> Any:
    if isinstance(value, list):
        return [_parsed(each, known) for each in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "node":
        if type(content) is not int or not 0 <= content < known:
            raise ValueError(f"node {content!r}")
        return _Reference(content)
    if kind == "float":
        return SPECIAL[content]
    found = getattr(torch, content)
    if not isinstance(found, TORCH_WORDS[kind]):
        raise ValueError(f"argument {value!r}")
    return found


def _value(argument: Any, values: list[Any]) -> Any:
    if isinstance(argument, _Reference):
        return values[argument.number]
    if isinstance(argument, list):
        return [_value(each, values) for each in argument]
    return argument


def save(data: GraphData, stem: Path) -> None:
    """Write a graph to `stem`.json and `stem`.safetensors."""
    write_document(stem.with_suffix(".json"), data.document)
    save_tensors(stem.with_suffix(".safetensors"), data.constants)


def load(stem: Path) -> GraphData:
    """Read what `save` wrote, memory-mapped."""
    document = read_document(stem.with_suffix(".json"), "export the run again")
    return GraphData(document, map_tensors(stem.with_suffix(".safetensors")))
