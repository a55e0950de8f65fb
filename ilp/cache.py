"""Options of solved blocks on disk, for later runs and for runs at the same time.

One JSON file per class of blocks and way of solving, named by a digest of both. Options are stored as
sequences of canonical op numbers (`hremate.ilp.classes`) and measured anew when read. Files are replaced as
a whole, so that concurrent runs see whole files only; whatever is not a file of this version with valid
options of the block asked for counts as missing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hremate._files import read_text, write_text
from hremate.errors import FormatError
from hremate.graph import IntArray
from hremate.ilp.classes import Form
from hremate.ilp.leaf import Leaf, Option, make_option

#: Changes whenever equal blocks get other options than before.
FORMAT = "hremate-options/1"


class OptionCache:
    """The options of classes of blocks in a folder, which is created when first written to."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def path(self, form: Form, recipe: str) -> Path:
        """Where the options of a class are kept; `recipe` says how they were found."""
        name = hashlib.sha256(f"{FORMAT}\n{form.digest}\n{recipe}".encode()).hexdigest()
        return self.folder / f"{name}.json.gz"

    def load(self, leaf: Leaf, form: Form, recipe: str) -> list[Option] | None:
        """The options of a block, None where there are none that are valid."""
        try:
            text = read_text(self.path(form, recipe), lambda head: None)
            content = json.loads(text)
        except (FormatError, ValueError, RecursionError):
            return None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            return None
        if (content.get("digest"), content.get("recipe")) != (form.digest, recipe):
            return None
        pairs = content.get("options")
        if not isinstance(pairs, list) or not pairs:
            return None
        options = []
        for pair in pairs:
            parts = _sequences(pair, leaf.n_ops)
            if parts is None:
                return None
            forward, backward = (form.ops[part] for part in parts)
            if not runs(leaf, forward, backward):
                return None
            options.append(make_option(leaf, forward, backward))
        return options

    def store(self, form: Form, recipe: str, options: Sequence[Option]) -> None:
        """Keep the options of a block.

        Raises
        ------
        OSError
            The folder or the file cannot be written.
        """
        place = np.empty(len(form.ops), np.int64)
        place[form.ops] = np.arange(len(form.ops))
        content = {
            "format": FORMAT,
            "digest": form.digest,
            "recipe": recipe,
            "options": [
                [place[option.forward.sequence].tolist(), place[option.backward.sequence].tolist()]
                for option in options
            ],
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.path(form, recipe), json.dumps(content, separators=(",", ":")))


def _sequences(pair: object, n: int) -> list[IntArray] | None:
    """Two lists of op numbers below n, or None."""
    if not isinstance(pair, list) or len(pair) != 2:
        return None
    parts = []
    for part in pair:
        if not isinstance(part, list) or not all(type(i) is int and 0 <= i < n for i in part):
            return None
        parts.append(np.array(part, np.int64))
    return parts


def runs(leaf: Leaf, forward: IntArray, backward: IntArray) -> bool:
    """Whether two sequences of local ops are an option: complete, in a valid order, `once` ops once."""
    count = np.bincount(np.concatenate([forward, backward]), minlength=leaf.n_ops)
    if (count == 0).any() or (count[leaf.once] > 1).any():
        return False
    if (forward >= leaf.n_forward).any() or len(np.unique(forward)) != leaf.n_forward:
        return False
    have = leaf.producer < 0
    for part in (forward, backward):
        for i in part.tolist():
            if not have[leaf.inputs_of(i)].all():
                return False
            have[leaf.out_ptr[i] : leaf.out_ptr[i + 1]] = True
    return True
