"""Which package may import which, read from the syntax trees."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "crossbatch"
FILES = sorted(SOURCE.rglob("*.py"))
STANDARD = set(sys.stdlib_module_names)
# Which of our packages and modules each of them may import, besides itself.
MAY_IMPORT = {
    "errors": set(),
    "kernels": set(),
    "queries": set(),
    "bootstrap": set(),
    "printing": set(),
    "files": {"errors", "remote"},
    "cache": {"errors", "files"},
    "remote": {"cache", "errors", "files", "progress"},
    "results": {"errors"},
    "progress": {"printing", "remote"},
    "recipes": {"errors"},
    "config": {"errors", "recipes"},
    "negatives": {"kernels", "queries"},
    "models": {"kernels", "queries"},
    "retrieval": {"kernels", "queries"},
    "data": {"cache", "errors", "files", "progress", "remote"},
    "reports": {"bootstrap", "errors", "files", "printing"},
    "training": {
        "config",
        "data",
        "errors",
        "files",
        "kernels",
        "models",
        "negatives",
        "printing",
        "queries",
        "remote",
    },
    "evaluation": {
        "bootstrap",
        "config",
        "data",
        "errors",
        "files",
        "queries",
        "results",
        "retrieval",
        "training",
    },
    "fitting": {
        "config",
        "data",
        "errors",
        "evaluation",
        "models",
        "remote",
        "results",
        "serving",
        "training",
    },
}
TORCH_ONLY = {"negatives", "models", "retrieval"}
IN_FUNCTIONS = {
    "faiss",
    "hnswlib",
    "transformers",
}  # the torch-only packages import these where they use them
# Modules that must be importable without some packages.
WITHOUT = {
    "crossbatch.negatives": ("numpy", "numba", "polars", "safetensors", "rich", "typer"),
    "crossbatch.training.step": ("numpy", "numba", "polars", "safetensors", "rich", "typer"),
    "crossbatch.files": ("torch", "numpy", "polars", "safetensors", "rich", "typer"),
    "crossbatch.reports.html": ("torch", "polars", "numba"),
}


def imports(path):
    """Yield every import as (module, whether it runs when the file is imported)."""
    tree = ast.parse(path.read_text())
    later = {
        id(node)
        for scope in ast.walk(tree)
        if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)) or is_for_types(scope)
        for node in ast.walk(scope)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) not in later) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = ["crossbatch", *path.relative_to(SOURCE).parts[: -node.level]]
            module = ".".join([*(above if node.level else []), *filter(None, [node.module])])
            if module == "crossbatch":  # from crossbatch import data
                for alias in node.names:
                    yield f"crossbatch.{alias.name}", id(node) not in later
            else:
                yield module, id(node) not in later


def is_for_types(scope):
    return isinstance(scope, ast.If) and "TYPE_CHECKING" in ast.dump(scope.test)


def package_of(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def is_kernel(path):
    """Whether a file holds functions that numba compiles."""
    return package_of(path) == "kernels"


EVERY_FILE = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))


@EVERY_FILE
def test_packages_import_only_those_below_them(path):
    package = package_of(path)
    allowed = MAY_IMPORT.get(package)
    for module, at_import in imports(path):
        if not module.startswith("crossbatch."):
            continue
        ours = module.split(".")[1]
        assert ours != "cli" or package in {"cli", "__main__"}, f"{path} imports the command line"
        if path == SOURCE / "training" / "__init__.py" and ours == "fitting" and not at_import:
            continue  # the public name `crossbatch.training.fit`
        assert allowed is None or ours in allowed | {package}, f"{package} imports {module}"


@EVERY_FILE
def test_numba_is_imported_by_kernels_alone(path):
    found = [module for module, _ in imports(path) if module.split(".")[0] == "numba"]
    assert not found or is_kernel(path)


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if package_of(path) in TORCH_ONLY and not is_kernel(path)],
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_some_packages_need_torch_alone(path):
    for module, at_import in imports(path):
        top = module.split(".")[0]
        if top in IN_FUNCTIONS:
            assert not at_import, f"import {module} inside the function that uses it"
        else:
            assert top in STANDARD | {"torch", "crossbatch"}, f"{path} imports {module}"


@pytest.mark.parametrize("module", WITHOUT)
def test_modules_that_need_little(module):
    blocked = WITHOUT[module]
    code = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({blocked}))  # None: as if it were not installed\n"
        f"import {module}\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_the_package_itself_imports_the_standard_library_alone():
    """Otherwise importing `crossbatch.negatives` would import everything."""
    at_once = [module for module, at_import in imports(SOURCE / "__init__.py") if at_import]
    assert {module.split(".")[0] for module in at_once} <= STANDARD


@pytest.mark.parametrize("package", sorted(path.name for path in SOURCE.iterdir() if path.is_dir()))
def test_no_file_name_occurs_twice_in_a_package(package):
    names = Counter(p.name for p in (SOURCE / package).rglob("*.py") if p.name != "__init__.py")
    assert not [name for name, count in names.items() if count > 1]


def test_file_names_say_what_is_inside():
    assert not [path for path in FILES if "util" in path.stem or "helper" in path.stem]
