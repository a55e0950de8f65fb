"""Claims about `hremate capture`: the graph of what a function of the user returns."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed: nothing of PyTorch is tested")

import hremate as hr  # noqa: E402
from hremate._capture_cli import add_parser  # noqa: E402

FACTORY = """
import torch

def build():
    with torch.device("meta"):
        return torch.nn.Linear(8, 4), (torch.empty(2, 8),), {}, lambda y: y.sum()

def short():
    return torch.nn.Linear(8, 4)

value = 3
"""


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["capture", *arguments])
    code: int = args.run(args)
    return code


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "factory_for_capture.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)


def test_the_graph_is_written_and_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("factory_for_capture:build", "-o", "out.json", "--device", "h100", "--name", "tiny") == 0
    graph = hr.read_graph(tmp_path / "out.json")
    assert graph.name == "tiny" and "roofline of h100" in graph.metadata["source"]
    assert f"{graph.n_ops} ops" in capsys.readouterr().err
    assert run("factory_for_capture:build") == 0
    assert (tmp_path / "Linear.json.gz").is_file()


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("factory_for_capture", "expected MODULE:FACTORY"),
        ("no_such_module:build", "cannot import 'no_such_module'"),
        ("factory_for_capture:missing", "has no function 'missing'"),
        ("factory_for_capture:value", "is not a function"),
        ("factory_for_capture:short", "returned Linear; expected"),
    ],
)
def test_what_is_wrong_with_a_factory_is_said(factory: str, message: str) -> None:
    with pytest.raises(hr.HremateError, match=message):
        run(factory)
