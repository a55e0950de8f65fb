"""What the readers promise of damaged input: an error of hremate or a graph that goes round and is solved.

Thousands of files, each damaged a little: bytes turned, files cut short, JSON values exchanged for others.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import random_graph
from samples import NODE_LINK

import hremate as hr
from hremate.budget import parse_budget
from hremate.cli import main

HUAWEI = "Z 35\n0 A 0 0 10 1\n7 B 1 0 3 10 2\n5 C 2 0 7 0 12 2.5\n3 Z 3 0 7 5 0 10 3\n4 dead 1 3 0 1 1\n"
ORDERED: dict[str, Any] = {
    "graph": {"order": ["x", "z", "y"]},
    "nodes": [{"id": name, "duration": 1, "out_cost": 10} for name in "xyz"],
    "edges": [{"source": "x", "target": "y"}, {"source": "x", "target": "z"}, {"source": "z", "target": "y"}],
}
#: What a number, name or list is exchanged for.
ODD_VALUES: list[Any] = [
    None, True, False, 0, -1, -0.0, 1, 2**31, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 10**4000,
    0.5, 1e-9, 1e18, 1e30, 1e145, 1e150, 1.7e308, float("inf"), float("-inf"), float("nan"), "", " ", "a",
    "x", "t0_0", "op0", "\ud800", "\udc80x", "\0", "\n", "é", "a" * 300, [], {}, [[]], ["x"], [None],
    {"name": "x"}, "60%", "forward", "backward", "reuse", "hremate-graph/2", "hremate-schedule/1", "1e999",
    "NaN",
]  # fmt: skip
PIECES = [
    b"null", b"-1", b"1e999", b"NaN", b"[]", b"{}", b'""', b"true", b'"a"', b"9" * 25, b"9" * 5000, b"0.5",
    b" ", b"\n", b"\r", b"\xff", b"\x85", b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"\0", b"\\ud800", b"[" * 2000,
    b",", b":",
]  # fmt: skip


def sources() -> list[Any]:
    """Documents: graphs, a schedule, node-link JSON of both variants and a challenge file."""
    graphs = [random_graph(seed, min_ops=3).to_dict() for seed in (1, 5, 12)]
    graphs[0] |= {"budget": "70%", "note": {"nested": [1, "two"]}}
    schedule = {
        "format": "hremate-schedule/1", "graph": "tiny", "graph_sha256": "0" * 64, "budget": 9, "peak": 8,
        "time": 4.5, "method": "beam", "order": [0, 1, 2, 1, 3, 4], "note": 3,
    }  # fmt: skip
    return [*graphs, NODE_LINK, ORDERED, HUAWEI, schedule]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(holder, key) of every value inside a document."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    for key in keys:
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from places(value[key])


def changed_document(document: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A copy in which a few values were exchanged, doubled, dropped or put elsewhere."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        spots = list(places(document))
        if not spots:
            break
        holder, key = rng.choice(spots)
        kind = rng.randrange(5)
        if kind == 0:
            holder[key] = rng.choice(ODD_VALUES)
        elif kind == 1:
            del holder[key]
        elif kind == 2 and isinstance(holder, list):
            holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(holder[key]))
        elif kind == 3:
            other, place = rng.choice(spots)
            holder[key] = copy.deepcopy(other[place])
        elif isinstance(holder, list):
            rng.shuffle(holder)
        elif isinstance(holder[key], float):
            holder[key] *= rng.choice([-1.0, 1e40, 0.5])
        elif isinstance(holder[key], int):
            holder[key] *= rng.choice([-1, 2**20, 2**40])
    return document


def changed_text(text: str, rng: random.Random) -> str:
    """Challenge text with words exchanged and lines doubled, dropped or moved."""
    lines = [line.split(" ") for line in text.splitlines()]
    for _ in range(rng.choice([1, 1, 2])):
        line = rng.choice(lines)
        kind = rng.randrange(4)
        if kind == 0:
            words = [*ODD_VALUES[:29], "Z", "A", "7", "1_0", "\u0663", "-0"]  # a digit of another script
            line[rng.randrange(len(line))] = str(rng.choice(words))
        elif kind == 1:
            lines.insert(rng.randrange(len(lines)), list(line))
        elif kind == 2 and len(lines) > 1:
            lines.remove(line)
        else:
            rng.shuffle(lines)
    return "\n".join(" ".join(line) for line in lines)


def changed_bytes(content: bytes, rng: random.Random) -> bytes:
    """Bytes with bits turned, pieces put in, or the end missing."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 4])):
        if not data:
            break
        at = rng.randrange(len(data))
        kind = rng.randrange(4)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at : at + rng.randrange(7)] = rng.choice(PIECES)
        elif kind == 2:
            del data[at:]
        else:
            data[at:at] = data[rng.randrange(len(data)) :][: rng.randrange(40)]
    return bytes(data)


def mutant(rng: random.Random, document: Any) -> bytes:
    """One damaged file, gzip or not."""
    if rng.random() < 0.7:
        if isinstance(document, str):
            content = changed_text(document, rng).encode("utf-8", "surrogatepass")
        else:
            content = json.dumps(changed_document(document, rng)).encode()
    else:
        text = document if isinstance(document, str) else json.dumps(document)
        content = changed_bytes(text.encode(), rng)
    if rng.random() < 0.15:
        content = gzip.compress(content, 1, mtime=0)
        if rng.random() < 0.7:
            content = changed_bytes(content, rng)
    return content


def solved(graph: hr.Graph, rng: random.Random) -> None:
    """Solve under some budget, by preference that of the file, and check what comes out."""
    budget = None if "budget" in graph.metadata else rng.choice(["100%", "80%", "60%", "0%"])
    try:
        result = hr.solve(graph, budget, rng.choice(["none", "greedy", "cut"]), lower_bound=0.0)
    except hr.BudgetError:
        assert budget is None
        return
    if result.solved:
        assert result.schedule is not None
        hr.validate(graph, result.schedule, result.budget)


def check(content: bytes, folder: Path, rng: random.Random) -> bool:
    """Read the damaged file as everything that it may be; whether some reader accepted it."""
    path = folder / "mutant"
    path.write_bytes(content)
    accepted = False
    try:
        graph = hr.read_graph(path)
    except hr.HremateError as error:
        assert str(path) in str(error)
    else:
        accepted = True
        again = folder / rng.choice(["again.json", "again.json.gz"])
        hr.write_graph(graph, again)
        assert hr.read_graph(again).sha256 == graph.sha256
        solved(graph, rng)
    try:
        file = hr.read_schedule(path)
    except hr.HremateError as error:
        assert str(path) in str(error)
    else:
        accepted = True
        for use in (hr.validate, hr.simulate):
            with suppress(hr.HremateError):
                use(random_graph(12, min_ops=3), file.schedule)
    return accepted


def report(seed: int, error: Exception, content: object) -> str:
    return f"seed {seed}: {type(error).__name__}: {error} from {content!r:.2000}"


@pytest.mark.parametrize("start", range(0, 5000, 1000))
def test_damaged_files_give_an_error_of_hremate_or_a_graph_that_is_solved(start: int, tmp_path: Path) -> None:
    documents = sources()
    accepted = 0
    for seed in range(start, start + 1000):
        rng = random.Random(seed)
        content = mutant(rng, rng.choice(documents))
        try:
            accepted += check(content, tmp_path, rng)
        except Exception as error:
            pytest.fail(report(seed, error, content))
    assert accepted > 100  # the damage is small enough to reach past the first check


def test_damaged_files_never_break_the_command_line(tmp_path: Path, capsys: Any) -> None:
    documents = sources()
    good, bad, answer = (str(tmp_path / name) for name in ("good.json", "bad.json", "answer.json"))
    hr.write_graph(random_graph(12, min_ops=3), good)
    for seed in range(300):
        rng = random.Random(10_000 + seed)
        content = mutant(rng, rng.choice(documents))
        Path(bad).write_bytes(content)
        words = rng.choice(
            [
                ["info", bad], ["info", bad, "--json"], ["convert", bad, answer], ["validate", good, bad],
                ["validate", bad, answer], ["solve", bad, "--method", "none", "--json"],
                ["solve", bad, "--method", "greedy", "--budget", "80%", "-o", answer],
                ["compare", bad, "--methods", "none,greedy", "--budgets", "80%", "-o", f"{answer}.md"],
            ]
        )  # fmt: skip
        try:
            code = main(words)
        except Exception as error:
            pytest.fail(report(seed, error, (words, content)))
        written = capsys.readouterr()
        assert code in (0, 1, 2) and "Traceback" not in written.err
        assert code != 2 or written.err.count("\n") >= 1


def test_damaged_budgets_give_a_budget_error_or_bytes() -> None:
    pieces = [
        "12", "GiB", "MB", "%", "b", ".", "-", "+", " ", "1e3", "_", "\u0663", "0x1", "\ud800", "inf", "nan",
        "9" * 40, "9" * 5000, "0" * 50, "\0", "\n", "\xbd", "K", "i", ",",
    ]  # fmt: skip
    accepted = 0
    for seed in range(3000):
        rng = random.Random(seed)
        text: Any = "".join(rng.choice(pieces) for _ in range(rng.choice([1, 2, 2, 3, 4])))
        if rng.random() < 0.2:
            others = [10**5000, -(10**5000), [10**5000], b"60%", np.int64(7), np.float64(7)]
            text = rng.choice([*ODD_VALUES, *others])
        try:
            nbytes = parse_budget(text, 2**61)
        except hr.BudgetError:
            continue
        except Exception as error:
            pytest.fail(report(seed, error, text))
        accepted += 1
        assert type(nbytes) is int and 0 <= nbytes < 2**63
    assert accepted > 100


def test_times_too_large_to_be_computed_with_are_refused() -> None:
    ops = [hr.Op("a", 6e149, (), (("x", 1),)), hr.Op("b", 6e149, ("x",))]
    with pytest.raises(hr.InvalidValueError, match=r"'graph' add up to 1\.2e\+150; the limit is 1e\+150"):
        hr.Graph.from_ops(ops)


@pytest.mark.parametrize("time", [5e-324, 1e-308, 9e-151])
def test_times_too_small_to_divide_by_are_refused(time: float) -> None:
    ops = [hr.Op("a", 1.0, (), (("x", 1),)), hr.Op("b", time, ("x",))]
    with pytest.raises(hr.InvalidValueError, match=r"op 'b': time is .*; expected 0 or at least 1e-150"):
        hr.Graph.from_ops(ops)


@pytest.mark.parametrize("method", ["hierarchical", "exact", "beam", "cut", "branch-and-bound", "anneal"])
def test_a_graph_in_which_nothing_takes_time_is_solved(method: str) -> None:
    ops = [hr.Op(f"f{i}", 0.0, (f"x{i - 1}",) if i else (), ((f"x{i}", 10),)) for i in range(5)]
    for i in (4, 3, 2, 1, 0):
        reads = (f"x{i}", f"g{i + 1}") if i < 4 else ("x4",)
        ops.append(hr.Op(f"b{i}", 0.0, reads, ((f"g{i}", 10),)))
    result = hr.solve(hr.Graph.from_ops(ops, ["g0"]), "75%", method)
    assert result.status is hr.Status.OPTIMAL and (result.time, result.overhead) == (0.0, 0.0)


@pytest.mark.parametrize("unit", [1e-149, 1.0, 1e100])
@pytest.mark.parametrize("nbytes", [1, 2**52])
@pytest.mark.parametrize("method", ["hierarchical", "exact", "beam", "cut", "branch-and-bound", "mincut"])
def test_extreme_but_legal_numbers_are_solved_like_small_ones(unit: float, nbytes: int, method: str) -> None:
    """A chain of five with its backward part; the least overhead within three quarters is 3/16."""
    ops = [
        hr.Op(f"f{i}", unit * (1 + i % 3), (f"x{i - 1}",) if i else (), ((f"x{i}", 10 * nbytes),))
        for i in range(5)
    ]
    for i in (4, 3, 2, 1, 0):
        reads = (f"x{i}", f"g{i + 1}") if i < 4 else ("x4",)
        ops.append(hr.Op(f"b{i}", unit * (1 + i % 2), reads, ((f"g{i}", 10 * nbytes),)))
    result = hr.solve(hr.Graph.from_ops(ops, ["g0"]), "75%", method)
    assert result.solved and not result.stats.degraded
    assert result.overhead == pytest.approx(3 / 16)
