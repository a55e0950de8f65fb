"""Files in and out, whatever the letters in them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from hremate._files import read_text, write_text


@pytest.mark.parametrize("name", ["table.md", "table.md.gz"])
def test_text_beyond_ascii_comes_back(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_text(path, "| gpt-größe | 模型 |\n")
    assert read_text(path, lambda head: None) == "| gpt-größe | 模型 |\n"
    data = path.read_bytes()
    assert "模型" in (gzip.decompress(data) if name.endswith(".gz") else data).decode("utf-8")
