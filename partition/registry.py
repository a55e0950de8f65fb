"""The partitioners by name. Entries are import strings, so that listing them loads nothing."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hremate.errors import MethodError

if TYPE_CHECKING:
    from hremate.graph import Graph
    from hremate.partition.tree import BlockTree


class PartitionFunction(Protocol):
    """What a partitioner is: a function of a graph and a number of blocks."""

    def __call__(self, graph: Graph, n_blocks: int, *, split: int | None = None) -> BlockTree:
        """About `n_blocks` blocks in one level; ops below `split` are forward ops."""


@dataclass(frozen=True)
class Partitioner:
    """One way to cut a graph into blocks."""

    name: str
    #: Module and name of the function.
    module: str
    function: str
    #: One line.
    summary: str

    def load(self) -> PartitionFunction:
        loaded: PartitionFunction = getattr(importlib.import_module(self.module), self.function)
        return loaded


PARTITIONERS: dict[str, Partitioner] = {
    p.name: p
    for p in (
        Partitioner(
            "intervals",
            "hremate.partition.intervals",
            "intervals",
            "intervals of the given order, few bytes crossing the cuts",
        ),
        Partitioner(
            "sequence",
            "hremate.partition.sequence",
            "sequence",
            "intervals of the given order, cut at articulation tensors of the forward part",
        ),
        Partitioner(
            "repeat",
            "hremate.partition.repeat",
            "repeat",
            "whole repetitions of a window of op types, so that blocks repeat",
        ),
        Partitioner(
            "bottom-up",
            "hremate.partition.bottom_up",
            "bottom_up",
            "H-Partition: chains and flow groups merged by least interface bytes x ops^0.5",
        ),
        Partitioner(
            "best",
            "hremate.partition.evaluate",
            "best",
            "the one of the others whose blocks share least, judged without solving",
        ),
    )
}


def find_partitioner(name: str) -> Partitioner:
    """The partitioner called `name`.

    Raises
    ------
    MethodError
        No such partitioner.
    """
    if name not in PARTITIONERS:
        raise MethodError(f"unknown partitioner {name!r}; known: {', '.join(PARTITIONERS)}")
    return PARTITIONERS[name]
