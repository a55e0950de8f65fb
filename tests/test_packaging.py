"""Claims about how hremate is packaged: every way to install it, and none, gives the same package.

The checkout is copied, so that no build leaves anything behind and no earlier build is picked up.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"hremate": "hremate", "partition": "hremate/partition", "solvers": "hremate/solvers",
           "ilp": "hremate/ilp"}  # fmt: skip
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis"
)
#: What a new environment does not share with this one.
NOT_SHARED = ("hremate", "__editable__", "_editable", "pip", "setuptools", "_distutils")
#: What must work in every installation; prints where the package lies.
USE = """
import importlib, pathlib, sys
import hremate, hremate.partition.intervals, hremate.solvers.registry, hremate.ilp.hierarchical
graph = hremate.generate("layered", 40)
result = hremate.solve(graph, "100%", method="none")
assert result.status == "optimal", result
for method in hremate.solvers.registry.METHODS.values():
    assert method.load().Params, method
assert not [name for name in ("partition", "solvers", "ilp") if name in sys.modules]
print(pathlib.Path(hremate.__file__).resolve().parent)
"""


def modules(checkout: Path) -> set[str]:
    """Paths of all modules, as an installed package has them."""
    return {
        f"{target}/{path.name}"
        for folder, target in FOLDERS.items()
        for path in (checkout / folder).glob("*.py")
    }


def run(*command: str | Path, cwd: Path, path: Path | None = None) -> str:
    """Run a command without the settings of the caller; `path` is PYTHONPATH."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "MYPYPATH")}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class Environment:
    """A virtual environment that sees the packages of this one, so that nothing is downloaded again."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=True, symlinks=os.name != "nt")
        self.folder = folder
        self.bin = folder / ("Scripts" if os.name == "nt" else "bin")
        self.python = self.bin / "python"
        site = Path(run(self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))",
                        cwd=folder).strip())  # fmt: skip
        # Links to all packages but an hremate that is installed here.
        (folder / "dependencies").mkdir()
        for path in sys.path:
            if path.endswith(("site-packages", "dist-packages")):
                for entry in sorted(Path(path).iterdir()):
                    link = folder / "dependencies" / entry.name
                    if not entry.name.startswith(NOT_SHARED) and not link.exists():
                        link.symlink_to(entry)
        (site / "dependencies.pth").write_text(f"{folder / 'dependencies'}\n")

    def install(self, *what: str | Path, cwd: Path) -> None:
        run(self.python, "-m", "pip", "install", "--no-deps", *what, cwd=cwd)

    def check(self, outside: Path, home: Path) -> None:
        """The package works from `outside` and lies below `home`; so does the console script."""
        found = Path(run(self.python, "-c", USE, cwd=outside).strip())
        assert found.is_relative_to(home.resolve()), found
        assert run(self.bin / "hremate", "--version", cwd=outside).startswith("hremate ")
        assert "hierarchical" in run(self.bin / "hremate", "methods", cwd=outside)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return shutil.copytree(ROOT, tmp_path / "checkout", ignore=LEFT_OUT)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    return tmp_path / "outside"


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "env")


def build(checkout: Path, kind: str) -> Path:
    run(sys.executable, "-m", "build", f"--{kind}", "--outdir", "dist", ".", cwd=checkout)
    (made,) = (checkout / "dist").iterdir()
    return made


def test_the_wheel_holds_every_module_and_nothing_else(
    checkout: Path, outside: Path, environment: Environment
) -> None:
    wheel = build(checkout, "wheel")
    names = zipfile.ZipFile(wheel).namelist()
    content = {name for name in names if ".dist-info/" not in name}
    assert content == modules(checkout) | {"hremate/py.typed"}
    assert [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]
    environment.install(wheel, cwd=outside)
    environment.check(outside, environment.folder)


def test_the_sdist_can_be_built_and_tested(checkout: Path, outside: Path, environment: Environment) -> None:
    sdist = build(checkout, "sdist")
    with tarfile.open(sdist) as archive:
        top = archive.getnames()[0].split("/")[0]
        archive.extractall(outside, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    unpacked = outside / top
    for path in sorted(checkout.rglob("*")):
        inside = path.relative_to(checkout)
        made = inside.parts[0] in ("dist", ".gitignore") or ".egg-info" in str(inside)
        if path.is_file() and not made:
            assert (unpacked / inside).is_file(), f"the sdist has no {inside}"
    environment.install(sdist, cwd=outside)
    environment.check(outside, environment.folder)
    run(environment.python, "-m", "pytest", "--collect-only", cwd=unpacked)


@pytest.mark.parametrize("mode", ["lenient", "strict"])
def test_an_editable_install_follows_the_checkout(
    mode: str, checkout: Path, outside: Path, environment: Environment
) -> None:
    environment.install("--editable", checkout, "--config-settings", f"editable_mode={mode}", cwd=outside)
    environment.check(outside, checkout)
    with (checkout / "partition" / "tree.py").open("a", encoding="utf-8") as module:
        module.write("\nEDITED = True\n")
    for folder in (outside, checkout):
        run(environment.python, "-c", "from hremate.partition.tree import EDITED", cwd=folder)


def test_the_checkout_works_without_an_install(
    checkout: Path, outside: Path, environment: Environment
) -> None:
    inside = run(environment.python, "-c", USE, cwd=checkout)
    assert Path(inside.strip()) == (checkout / "hremate").resolve()
    assert run(environment.python, "-c", USE, cwd=outside, path=checkout) == inside
    assert run(environment.python, "-m", "hremate", "--version", cwd=checkout).startswith("hremate ")


@pytest.mark.parametrize("mode", ["wheel", "strict"])
def test_mypy_passes_and_misses_no_module(
    mode: str, checkout: Path, outside: Path, environment: Environment
) -> None:
    pytest.importorskip("mypy")
    strict = ["--editable", checkout, "--config-settings", "editable_mode=strict"]
    environment.install(*([build(checkout, "wheel")] if mode == "wheel" else strict), cwd=outside)
    report = run(environment.python, "-m", "mypy", "--cache-dir", outside / "cache", cwd=checkout)
    assert f"no issues found in {len(modules(checkout))} source files" in report
