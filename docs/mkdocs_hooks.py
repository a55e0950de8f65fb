"""Hooks of the site: pages and downloads that lie beside `docs/`, and links to them.

Pages link to files of the checkout (`../CONTRIBUTING.md`, `../examples/train_gpt.py`), so that they can be
read where they lie. In the site these files are pages and downloads of its own.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
#: File of the checkout -> page of the site.
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
#: What a link from a page in `docs/` leads to in the site.
LINKS = {**PAGES, "examples/": "examples/"}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and examples that lie outside `docs/`."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for path in sorted((ROOT / "examples").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let links to files of the checkout lead to where the site has them, and give code blocks titles."""
    if page.file.src_uri in PAGES.values():  # written for the root of the checkout
        markdown = markdown.replace("](docs/", "](")
    else:
        for source, target in LINKS.items():
            markdown = markdown.replace(f"](../{source}", f"]({target}")
    # ```json tiny.json: the language, then the name of the file that the block stands for.
    return re.sub(r"^```(\w+) +(\S+)$", r'```\1 title="\2"', markdown, flags=re.MULTILINE)
