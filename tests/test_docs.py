"""Claims about the documents: code blocks work, tables agree with the code, links lead on."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
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
#: What commands get in addition here, so that they take seconds; a slow test runs the README's as it is.
QUICK = {"examples/graphs/gpt2-12.json.gz": ["--option", "blocks=6"]}
FENCE = re.compile(r"^```(\w*)(?: +(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file it stands for, its text."""

    language: str
    file: str
    text: str


def blocks(document: str) -> list[Block]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return [Block(m[1], m[2] or "", m[3]) for m in FENCE.finditer(text)]


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
            output = run_hremate(words[1:] + [w for path in words for w in QUICK.get(path, [])])
        elif words[0] == "python":
            assert (ROOT / words[1]).is_file(), line
        else:
            # Installing and testing are the business of test_packaging and of .ci/run.
            assert words[0] in ("python3", "pip", ".venv/bin/pip", ".venv/bin/python", ".venv/bin/ruff",
                                ".venv/bin/mypy"), line  # fmt: skip
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
        if block.language == "python":
            exec(compile(block.text, document, "exec"), names)
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
    assert "gpt2-12: hierarchical, feasible" in done.stdout


def test_the_ci_runs_the_test_command_of_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^<!-- test command -->\n```sh\n(python3 .* -m pytest)\n```$", text, re.MULTILINE)
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


@pytest.mark.parametrize("document", [*NAMES, "CHANGELOG.md"])
def test_links_and_names_of_files_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]*)", text):
        assert ((ROOT / document).parent / target).exists(), f"{document}: {target}"
    for name in re.findall(r"`((?:hremate|partition|solvers|ilp|tests|examples|docs)/[\w./-]*)`", text):
        assert (ROOT / name).exists(), f"{document}: {name}"


def test_every_example_is_a_graph_that_can_be_read() -> None:
    for path in sorted((ROOT / "examples" / "graphs").iterdir()):
        graph = hr.read_graph(path)
        assert f"{graph.name}.json.gz" == path.name
        assert hr.memory_lower_bound(graph).bytes <= hr.base_peak(graph)
