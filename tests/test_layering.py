"""Claims about who may import whom, found by walking the imports of every module."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"hremate": "hremate", "partition": "hremate.partition", "solvers": "hremate.solvers",
            "ilp": "hremate.ilp"}  # fmt: skip

#: A module imports only from its own layer or from layers further up this list. A private module lies in
#: the layer of the modules that use it.
LAYERS = [
    {"errors", "graph", "schedule", "budget", "result", "validate", "_gc", "_jit"},
    {"simulate"},
    {"io", "_files", "_huawei", "_nodelink", "_order"}
    | {"generate", "_tape", "_operators", "_models", "_random_dags"},
    {"partition"},
    {"solvers"},
    {"bounds", "_bounds_kernel"},
    {"ilp"},
    {"solve", "improve", "_arguments", "_answers", "compare", "_comparison_table", "_text"}
    | {"_comparison", "_partial_file", "frontier", "plot", "_tree_plot", "_timeline", "trace"},
    {"torch", "onnx", "jax", "_devices"},
    {"cli", "report", "__main__", "_cli_parts", "_report_cli", "_capture_cli"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
#: The face of the package: loads only the vocabulary, names the rest by import strings.
FACADE = "hremate"


def modules() -> dict[str, Path]:
    """Dotted name -> file, of every module of the package."""
    found = {}
    for folder, package in PACKAGES.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join([package, *(p for p in parts if p != "__init__")])] = path
    return found


MODULES = modules()


def imports(name: str, path: Path) -> list[str]:
    """Dotted names that a module imports, at the top or inside functions."""
    found = []
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            # `from package import module` imports the module.
            found += [
                full if (full := f"{base}.{alias.name}") in MODULES else base for alias in node.names
            ]
    return found


IMPORTS = {name: imports(name, path) for name, path in MODULES.items()}


def layer_of(module: str) -> str:
    return module.split(".")[1]


def test_the_walk_finds_local_relative_and_type_only_imports(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text(
        "import numba\nfrom ..simulate import simulate\nfrom . import base\n"
        "if TYPE_CHECKING:\n    from hremate import solve\n"
        "def f():\n    from hremate.graph import Graph\n"
    )
    assert imports("hremate.solvers.module", source) == [
        "numba",
        "hremate.simulate",
        "hremate.solvers.base",
        "hremate.solve",
        "hremate.graph",
    ]


@pytest.mark.parametrize("module", [name for name in MODULES if name != FACADE])
def test_a_module_imports_only_from_layers_below_it(module: str) -> None:
    assert layer_of(module) in RANK, f"{module} has no layer: give it one in LAYERS"
    for other in IMPORTS[module]:
        if other.split(".")[0] != "hremate":
            continue
        if other == FACADE:
            # What the facade offers is the vocabulary, or a lazy name that would hide a dependency.
            assert RANK[layer_of(module)] == len(LAYERS) - 1, f"{module} imports the facade"
            continue
        assert other in MODULES, f"{module} imports {other}, which is no module"
        ours, theirs = layer_of(module), layer_of(other)
        assert RANK[theirs] <= RANK[ours], f"{module} imports {other}"


def test_modules_do_not_import_in_circles() -> None:
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path, module])
        if module not in done:
            for other in IMPORTS[module]:
                if other in MODULES and other != FACADE:
                    visit(other, (*path, module))
            done.add(module)

    for module in MODULES:
        visit(module, ())


def test_the_validator_shares_no_code_with_the_simulator() -> None:
    ours = {x for x in IMPORTS["hremate.validate"] if x.startswith("hremate")}
    assert ours == {"hremate.errors", "hremate.graph", "hremate.schedule"}


def test_one_module_knows_scip() -> None:
    users = [m for m, names in IMPORTS.items() if any(x.split(".")[0] == "pyscipopt" for x in names)]
    assert users == ["hremate.solvers.scip"]


def test_kernels_ask_numba_through_one_helper() -> None:
    users = [m for m, names in IMPORTS.items() if any(x.split(".")[0] == "numba" for x in names)]
    assert users == ["hremate._jit"]


def test_the_package_does_not_import_its_tests() -> None:
    assert not [m for m, names in IMPORTS.items() if any(x.split(".")[0] == "tests" for x in names)]


def test_nobody_names_a_joblib_backend() -> None:
    """So that `with joblib.parallel_config(backend="dask")` of the user decides."""
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                callee = ast.unparse(node.func).rpartition(".")[2]
                assert callee not in ("register_parallel_backend", "parallel_backend"), module
                keywords = {k.arg for k in node.keywords}
                if callee in ("Parallel", "parallel_config"):
                    assert not {"backend", "prefer", "require"} & keywords, module
                if callee == "parallel_config":
                    assert not node.args, module


def test_the_package_list_is_the_folders() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.search(r"^packages = (\[.*?\])$", text, re.MULTILINE)
    assert listed, "pyproject.toml has no line `packages = [...]`"
    found = [name for name, path in MODULES.items() if path.name == "__init__.py"]
    assert sorted(ast.literal_eval(listed[1])) == sorted(found)
    folders = dict(re.findall(r'^"([\w.]+)" = "(\w+)"$', text, re.MULTILINE))
    assert folders == {package: folder for folder, package in PACKAGES.items()}


def test_every_module_is_in_a_package() -> None:
    for path in MODULES.values():
        assert (path.parent / "__init__.py").is_file(), path


def test_import_hremate_loads_nothing_heavy() -> None:
    code = (
        "import sys, hremate\n"
        "print([m for m in ('numba', 'pyscipopt', 'torch', 'matplotlib', 'networkx', 'joblib', 'scipy')"
        " if m in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == "[]"


def test_listing_the_methods_loads_no_solver() -> None:
    code = (
        "import sys, hremate.solvers.registry as r; assert r.METHODS\n"
        "print(sorted(m for m in sys.modules if m.startswith(('numba.', 'pyscipopt', 'hremate.ilp'))))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == "[]"
