"""Who may import whom: the arrows of the design, read off the syntax trees."""

import ast
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "crossbatch"
TORCH_ONLY = {"negatives", "models", "retrieval"}
LAZY = {"faiss", "numba", "hnswlib"}  # inside functions of the torch-only packages
# Files of functions that numba compiles: they need it, and are imported where they are used.
KERNELS = {
    "dense_kernel",
    "distinct_kernel",
    "frequency_kernel",
    "gru_kernel",
    "history_kernel",
    "layers_kernel",
    "mask_kernel",
    "readout_kernel",
    "routing_kernel",
    "rows_kernel",
    "softmax_kernel",
}
# Files that hand arrays to them; imported by training alone.
AROUND_KERNELS = {
    "content_passes",
    "direct",
    "history_readers",
    "item_passes",
    "pass_parts",
    "passes",
    "profile_pass",
    "sequence_passes",
}
# Packages of ours that each package may import, besides itself.
MAY_IMPORT = {
    "kernels": set(),
    "negatives": {"kernels"},
    "models": {"kernels"},
    "retrieval": {"kernels"},
    "data": {"files", "errors"},
    "reports": {"bootstrap", "files", "errors"},
    "files": {"errors"},
}
FILES = sorted(SOURCE.rglob("*.py"))


def imports(path):
    """Every import as (module, whether it runs when the file is imported)."""
    tree = ast.parse(path.read_text())
    inside = {
        id(node)
        for scope in ast.walk(tree)
        if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef))
        or (isinstance(scope, ast.If) and "TYPE_CHECKING" in ast.dump(scope.test))
        for node in ast.walk(scope)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) not in inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = ["crossbatch", *path.relative_to(SOURCE).parts[: -node.level]]
            parts = (module if node.level else []) + (node.module or "").split(".")
            if parts[-1] == "crossbatch":  # from crossbatch import data
                yield from (
                    (f"crossbatch.{alias.name}", id(node) not in inside) for alias in node.names
                )
            else:
                yield ".".join(filter(None, parts)), id(node) not in inside


def own_package(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_follow_the_design(path):
    package = own_package(path)
    for module, at_import in imports(path):
        top, *rest = module.split(".")
        if top == "crossbatch":
            ours = rest[0] if rest else ""
            assert ours != "cli" or package in {"cli", "__main__"}, f"{module}: nobody imports cli"
            allowed = MAY_IMPORT.get(package)
            assert allowed is None or ours in allowed | {package}, f"{package} imports {module}"
            lazy = rest and rest[-1] in KERNELS
            assert not (lazy and at_import), f"{module} must be imported where it is used"
        elif path.stem in KERNELS:
            assert top in sys.stdlib_module_names | {"numba", "numpy"}
        elif path.stem in AROUND_KERNELS:
            assert top in sys.stdlib_module_names | {"numpy", "torch"}
        elif package in TORCH_ONLY and top not in sys.stdlib_module_names | {"torch"}:
            assert top in LAZY, f"{package} is torch only, but imports {module}"
            assert not at_import, f"{module} must be imported where it is used"
        assert package != "reports" or top != "torch", "reports read files; they need no torch"


def test_the_package_itself_imports_the_standard_library_alone():
    """Otherwise importing `crossbatch.negatives` would pull in everything."""
    at_once = [module for module, at_import in imports(SOURCE / "__init__.py") if at_import]
    assert {module.split(".")[0] for module in at_once} <= sys.stdlib_module_names


def test_there_is_no_utils():
    assert not [path for path in FILES if "util" in path.stem or "helper" in path.stem]
