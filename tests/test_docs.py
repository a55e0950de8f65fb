"""Claims about the documents: code blocks work, tables agree with the code, links lead on."""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

import hremate as hr
from hremate import cli
from hremate.generate import KINDS
from hremate.solvers.registry import METHODS, get_method

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]
FENCE = re.compile(
    r"(?:^<!-- needs (\w+) -->\n)?^```(\w*)(?: +(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """A fenced block: the package it needs, its language, the file it stands for, its text."""

    needs: str
    language: str
    file: str
    text: str


def blocks(document: str) -> list[Block]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return [Block(m[1] or "", m[2], m[3] or "", m[4]) for m in FENCE.finditer(text)]


def table(document: str, marker: str) -> list[str]:
    """Rows of the table after a comment `<!-- marker -->`, without its two lines of header."""
    text = (ROOT / document).read_text(encoding="utf-8")
    found = re.search(rf"<!-- {marker} -->\n(.*?)<!-- end -->", text, re.DOTALL)
    assert found, f"{document} has no table marked {marker}"
    return found[1].splitlines()[2:]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to run commands in; it has the examples."""
    shutil.copytree(ROOT / "examples" / "graphs", tmp_path / "examples" / "graphs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shape(text: str) -> list[str]:
    """Lines without what may differ between machines and versions: numbers, units, bars, spaces."""
    text = re.sub(r"\[[#.|]+\]", "BAR", text)
    text = re.sub(r"\b\d[\d.,]*\s*([KMGT]iB|B)\b", "BYTES", text)
    text = re.sub(r"\b\d[\d.,e+-]*%?", "N", text)
    return [re.sub(r"[-\s]+", " ", line).strip() for line in text.strip().splitlines()]


def run_line(line: str) -> str | None:
    """Run one line of a shell block, as far as it is about hremate; what its last command prints."""
    output = None
    for command in line.split(" && "):
        words = shlex.split(command)
        if words[0] in ("hremate", ".venv/bin/hremate"):
            output = run_hremate(words[1:])
        elif words[0] == "python":
            assert (ROOT / words[1]).is_file(), line
        else:
            # Installing and testing are the business of test_packaging and of .ci/run.
            assert words[0] in ("python3", "pip", "source", ".venv/bin/pip", ".venv/bin/python",
                                ".venv/bin/ruff", ".venv/bin/mypy"), line  # fmt: skip
    return output


def run_hremate(arguments: list[str]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            code = cli.main(arguments)
        except SystemExit as stop:  # --version and --help
            code = stop.code
    assert code == 0, f"hremate {shlex.join(arguments)}: exit code {code}"
    return printed.getvalue()


@pytest.mark.parametrize("document", NAMES)
def test_every_code_block_works(document: str, folder: Path) -> None:
    """Python is executed, commands run, files are read, and output that is shown has its real shape."""
    if document == "docs/pytorch.md":
        pytest.importorskip("torch", reason="the extra torch is not installed")
    names: dict[str, Any] = {"__name__": document}
    printed: str | None = None
    for block in blocks(document):
        if block.needs and importlib.util.find_spec(block.needs) is None:
            warnings.warn(f"{document}: a block was left out, {block.needs} is not installed", stacklevel=1)
        elif block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as shown:
                exec(compile(block.text, document, "exec"), names)
            printed = shown.getvalue()
        elif block.language == "sh":
            for line in block.text.splitlines():
                printed = run_line(line)
        elif block.file:
            (folder / block.file).write_text(block.text)
            if block.language == "json":
                is_schedule = json.loads(block.text).get("format", "").startswith("hremate-schedule")
                (hr.read_schedule if is_schedule else hr.read_graph)(folder / block.file)
            else:
                hr.read_graph(folder / block.file)
        else:
            assert block.language == "text", f"{document}: a block that nobody checks:\n{block.text}"
            assert printed is not None and shape(block.text) == shape(printed)


@pytest.mark.slow
def test_the_first_command_of_the_readme_sets_everything_up(tmp_path: Path) -> None:
    """It installs the dependencies afresh, so it needs a package index."""
    left_out = shutil.ignore_patterns(
        ".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache"
    )
    shutil.copytree(ROOT, tmp_path / "checkout", ignore=left_out)
    first = next(block for block in blocks("README.md") if block.language == "sh")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        ["bash", "-c", first.text], cwd=tmp_path / "checkout", env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "gpt2-12: hierarchical, optimal" in done.stdout


def test_the_ci_runs_the_test_command_of_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^<!-- test command -->\n```sh\n(python3 .* -m pytest .*)\n```$", text, re.MULTILINE)
    assert found
    assert "<!-- test command -->" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_table_of_methods_is_the_registry() -> None:
    rows = [
        f"| `{m.name}` | {m.summary} | {m.limits} | {'yes' if m.exact else 'no'} | {m.source} |"
        for m in METHODS.values()
    ]
    assert table("README.md", "methods") == rows


def test_every_method_is_described_with_its_parameters() -> None:
    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^### `([\w-]+)`\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    assert sorted(sections) == sorted(METHODS)
    for name, section in sections.items():
        if name != "hierarchical":  # its parameters have a table of their own
            told = re.findall(r"`(\w+)`", section.partition("Parameters: ")[2])
            assert told == [f.name for f in fields(get_method(name).load().Params)], name


def test_the_table_of_kinds_is_the_generators() -> None:
    assert table("docs/cli.md", "kinds") == [f"| `{kind}` | {text} |" for kind, text in KINDS.items()]


def first_cells(document: str, heading: str) -> list[tuple[str, str]]:
    """First and second cell of each row of the table under a heading."""
    text = (ROOT / document).read_text(encoding="utf-8").split(f"\n## {heading}\n", 1)[1].split("\n## ")[0]
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [(row[0].removeprefix("| "), row[1]) for row in rows[1:]]


def test_the_readme_explains_every_key_of_a_result() -> None:
    result = hr.solve(hr.generate("chain", 8), "100%", method="none")
    cells = [cell for cell, _ in first_cells("README.md", "Reading a result")]
    keys = [key for cell in cells for key in re.findall(r"`(\w+)`", cell)]
    assert sorted(keys) == sorted(result.to_dict())
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for key in result.to_dict()["stats"]:
        assert f"`{key}`" in text


def test_the_page_about_results_explains_every_key_too() -> None:
    told = result_keys("docs/results.md", "All fields")
    result = hr.solve(hr.generate("chain", 8), "100%", method="none").to_dict()
    assert sorted(told) == sorted([*result, *result["stats"]])


def result_keys(document: str, heading: str) -> list[str]:
    return [key for cell, _ in first_cells(document, heading) for key in re.findall(r"`(\w+)`", cell)]


def reference() -> list[tuple[str, str]]:
    """Each name on the page of the API, with where its docstring is."""
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    entries = re.findall(r"^### `([\w.]+)`\n\n::: ([\w.]+)$", text, re.MULTILINE)
    assert len(entries) == text.count(":::")
    return entries


def test_the_reference_lists_every_public_name_and_nothing_else() -> None:
    told = [name.removeprefix("hremate.") for name, _ in reference()]
    assert sorted(["__version__", *(name for name in told if "." not in name)]) == sorted(hr.__all__)


def test_the_reference_lists_every_name_of_the_torch_package() -> None:
    pytest.importorskip("torch", reason="the extra torch is not installed")
    told = [name.removeprefix("hremate.torch.") for name, _ in reference() if ".torch." in name]
    assert sorted(name for name in told if "." not in name) == sorted(hr.torch.__all__)


@pytest.mark.parametrize(("name", "path"), reference())
def test_every_name_in_the_reference_is_explained_where_it_is_defined(name: str, path: str) -> None:
    """Read from the source, so that it holds without the optional packages too."""
    module, _, last = path.rpartition(".")
    source = (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    assert name.endswith(last)
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == last:
            assert ast.get_docstring(node)
            return
    assert re.search(rf"^#: .*\n{last}\b", source, re.MULTILINE)


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    told = re.findall(r": ([\w.]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    pages = [path.name for path in (ROOT / "docs").glob("*.md")]
    assert sorted(told) == sorted([*pages, "contributing.md", "changelog.md"])


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "api.html").is_file()


def test_the_parameters_of_the_hierarchy_are_those_of_its_code() -> None:
    told = {name.strip("`"): value for name, value in first_cells("docs/hierarchy.md", "Parameters")}
    defaults = {f.name: f.default for f in fields(get_method("hierarchical").load().Params)}
    assert told == {k: str(v) if v is None or isinstance(v, bool) else f"{v:g}" for k, v in defaults.items()}


def options() -> Iterator[tuple[str, str]]:
    """Every command with every long option it has."""
    (commands,) = (a for a in cli._parser()._actions if isinstance(a, argparse._SubParsersAction))
    for name, parser in commands.choices.items():
        for action in parser._actions:
            for option in action.option_strings:
                if option.startswith("--") and option != "--help":
                    yield name, option


def test_the_command_line_is_documented_whole_and_nothing_else() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    known = {option for _, option in options()}
    assert [pair for pair in options() if not re.search(rf"{pair[1]}\b", text)] == []
    assert set(re.findall(r"--[a-z][a-z-]+", text)) <= known | {"--help", "--version"}
    assert [name for name, _ in options() if f"hremate {name}" not in text] == []


def test_the_errors_of_readers_exist() -> None:
    for name, _ in first_cells("docs/formats.md", "Errors"):
        assert issubclass(getattr(hr, name.strip("`")), hr.HremateError)


def anchors(path: Path) -> set[str]:
    """What `#` can be followed by in links to a page: its headings, as the site and code hosts write them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("document", [*NAMES, "CHANGELOG.md"])
def test_links_and_names_of_files_lead_somewhere(document: str) -> None:
    path = ROOT / document
    text = path.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text):
        assert (path.parent / target).exists(), f"{document}: {target}"
        page = path.parent / target if target else path
        assert not anchor or anchor in anchors(page), f"{document}: {anchor}"
    for name in re.findall(r"`((?:hremate|partition|solvers|ilp|tests|examples|docs)/[\w./-]*)`", text):
        assert (ROOT / name).exists(), f"{document}: {name}"


def test_every_example_is_a_graph_that_can_be_read() -> None:
    for path in sorted((ROOT / "examples" / "graphs").iterdir()):
        graph = hr.read_graph(path)
        assert f"{graph.name}.json.gz" == path.name
        assert hr.memory_lower_bound(graph).bytes <= hr.base_peak(graph)
