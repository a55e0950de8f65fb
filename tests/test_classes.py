"""Claims about classes of equal blocks: found whatever the names and orders, never between unequal blocks."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hremate as hr
from hremate.ilp.cache import OptionCache, runs
from hremate.ilp.classes import canonical_form, group, translate
from hremate.ilp.leaf import Leaf, make_leaf
from hremate.ilp.options import FrontierParams, frontier
from hremate.partition.intervals import intervals
from hremate.partition.tree import Block
from hremate.solvers.base import Deadline


def halves(graph: hr.Graph, split: int) -> Leaf:
    block = Block(np.arange(split), np.arange(split, graph.n_ops))
    return make_leaf(graph, block, np.zeros(graph.n_tensors, np.bool_))


def shuffled(graph: hr.Graph, split: int, seed: int) -> tuple[hr.Graph, np.ndarray]:
    """The graph with ops renamed and in another order that keeps the first `split` ops first.

    Returns also the old op at each new place.
    """
    rng = np.random.default_rng(seed)
    left = set(range(graph.n_ops))
    order: list[int] = []
    while left:
        made = set(order)
        stage = [i for i in left if (i < split) == (len(order) < split)]
        ready = [i for i in stage if all(int(graph.producer[x]) in made for x in graph.inputs_of(i))]
        order.append(int(rng.choice(sorted(ready))))
        left.remove(order[-1])
    names = {x: f"x{k}" for k, x in enumerate(rng.permutation(graph.n_tensors).tolist())}
    ops = []
    for i in order:
        op = graph.op(i)
        reads = [names[x] for x in rng.permutation(graph.inputs_of(i).tolist()).tolist()]
        made = [(names[x], int(graph.size[x])) for x in range(graph.out_ptr[i], graph.out_ptr[i + 1])]
        ops.append(hr.Op(f"renamed{i}", op.time, reads, made, op.workspace, once=op.once))
    outputs = [names[x] for x in graph.outputs.tolist()]
    return hr.Graph.from_ops(ops, outputs, memory_model=graph.memory_model), np.array(order)


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 10**6), split=st.integers(1, 7), again=st.integers(0, 10**6))
def test_renamed_and_reordered_blocks_are_equal(seed: int, split: int, again: int) -> None:
    graph = oracle.random_graph(seed)
    split = min(split, graph.n_ops)
    other, _ = shuffled(graph, split, again)
    one, two = halves(graph, split), halves(other, split)
    form, other_form = canonical_form(one), canonical_form(two)
    assert form.digest == other_form.digest
    assert np.array_equal(one.time[form.ops], two.time[other_form.ops])
    assert np.array_equal(one.workspace[form.ops], two.workspace[other_form.ops])


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), split=st.integers(1, 6), again=st.integers(0, 10**6))
def test_translated_options_cost_the_same(seed: int, split: int, again: int) -> None:
    graph = oracle.random_graph(seed)
    split = min(split, graph.n_ops)
    other, _ = shuffled(graph, split, again)
    one, two = halves(graph, split), halves(other, split)
    options = frontier(one, FrontierParams(grid=4), deadline=Deadline())
    carried = translate(options, one, canonical_form(one), two, canonical_form(two))
    assert len(carried) == len(options)
    for before, after in zip(options, carried, strict=True):
        assert runs(two, after.forward.sequence, after.backward.sequence)
        assert after.time == pytest.approx(before.time)
        assert after.saved_bytes == before.saved_bytes
        assert after.read_bytes == before.read_bytes
        assert (after.forward.peak, after.backward.peak) == (before.forward.peak, before.backward.peak)


@pytest.mark.parametrize(
    "field", ["time", "workspace", "size", "once", "output", "memory model", "edge", "part"]
)
def test_any_difference_makes_another_class(field: str) -> None:
    def build(**change: object) -> Leaf:
        size = 7 if "size" in change else 8
        read = ("a", "b") if "edge" in change else ("b",)
        ops = [
            hr.Op("f0", 1.0, (), (("a", 4),)),
            hr.Op("f1", 3.0 if "time" in change else 2.0, ("a",), (("b", 6),),
                  workspace=1 if "workspace" in change else 0, once="once" in change),
            hr.Op("b1", 1.0, read, (("c", size),)),
            hr.Op("b0", 1.0, ("a", "c"), (("d", 2),)),
        ]  # fmt: skip
        outputs = ["d", "b"] if "output" in change else ["d"]
        model = "reuse" if "memory model" in change else "coexist"
        return halves(hr.Graph.from_ops(ops, outputs, memory_model=model), 3 if "part" in change else 2)

    assert canonical_form(build()).digest != canonical_form(build(**{field: True})).digest


def test_groups_of_ops_tell_blocks_apart_but_not_their_numbers() -> None:
    leaf = halves(hr.generate("chain", 30, 0), 12)
    left = np.arange(leaf.n_ops) // 5
    assert canonical_form(leaf, left).digest == canonical_form(leaf, 100 - left).digest
    assert canonical_form(leaf, left).digest != canonical_form(leaf, np.arange(leaf.n_ops) // 6).digest


def test_equal_layers_fall_into_few_classes() -> None:
    graph = hr.generate("rnn", 1200, 0)
    leaves = [
        make_leaf(graph, block, np.zeros(graph.n_tensors, np.bool_)) for block in intervals(graph, 40).blocks
    ]
    found = group(leaves)
    assert len(found.representatives) < len(leaves)
    for k, first in enumerate(found.first):
        assert first <= k
        assert found.first[first] == first
        assert sorted(leaves[k].time) == sorted(leaves[first].time)


def stored(tmp_path: Path) -> tuple[OptionCache, Leaf, list]:
    leaf = halves(hr.generate("transformer", 60, 0), 25)
    cache = OptionCache(tmp_path / "new" / "folder")
    options = frontier(leaf, FrontierParams(grid=4), deadline=Deadline())
    cache.store(canonical_form(leaf), "recipe", options)
    return cache, leaf, options


def test_cache_gives_back_what_was_stored_for_the_same_recipe_only(tmp_path: Path) -> None:
    cache, leaf, options = stored(tmp_path)
    form = canonical_form(leaf)
    found = cache.load(leaf, form, "recipe")
    assert found is not None
    assert [o.key for o in found] == [o.key for o in options]
    assert cache.load(leaf, form, "another recipe") is None
    assert OptionCache(tmp_path / "absent").load(leaf, form, "recipe") is None


def test_damaged_and_foreign_files_count_as_missing(tmp_path: Path) -> None:
    cache, leaf, _ = stored(tmp_path)
    form = canonical_form(leaf)
    path = cache.path(form, "recipe")
    whole = path.read_bytes()
    other = halves(hr.generate("chain", 60, 0), 20)
    cache.store(canonical_form(other), "recipe", frontier(other, FrontierParams(grid=0), deadline=Deadline()))
    foreign = cache.path(canonical_form(other), "recipe").read_bytes()
    for content in (
        b"", b"\0" * 100, whole[: len(whole) // 2], b"{", b"[]", b'{"format": "hremate-options/0"}', foreign,
    ):  # fmt: skip
        path.write_bytes(content)
        assert cache.load(leaf, form, "recipe") is None
    path.unlink()
    path.mkdir()
    assert cache.load(leaf, form, "recipe") is None


def test_options_that_cannot_run_are_not_taken_from_a_file(tmp_path: Path) -> None:
    leaf = halves(hr.generate("transformer", 60, 0), 25)
    cache, form = OptionCache(tmp_path), canonical_form(leaf)
    good = frontier(leaf, FrontierParams(grid=0), deadline=Deadline())[0]

    def load(forward: list[int], backward: list[int]) -> object:
        from dataclasses import replace

        part = replace(good.forward, sequence=np.array(forward, np.int64))
        back = replace(good.backward, sequence=np.array(backward, np.int64))
        cache.store(form, "recipe", [replace(good, forward=part, backward=back)])
        return cache.load(leaf, form, "recipe")

    forward, backward = good.forward.sequence.tolist(), good.backward.sequence.tolist()
    assert load(forward, backward) is not None
    assert load(forward[::-1], backward) is None
    assert load(forward[:-1], backward) is None
    assert load(forward, backward[:-1]) is None
    assert load([*forward, backward[0]], backward[1:]) is None


def _store_often(folder: str, start: int) -> None:
    leaf = halves(hr.generate("chain", 40, 0), 15)
    options = frontier(leaf, FrontierParams(grid=2), deadline=Deadline())
    cache, form = OptionCache(folder), canonical_form(leaf)
    for k in range(30):
        cache.store(form, "recipe", options[: 1 + (start + k) % 2])
        assert cache.load(leaf, form, "recipe") is not None


@pytest.mark.slow
def test_concurrent_runs_see_whole_files_only(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=_store_often, args=(str(tmp_path), k)) for k in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
