"""The method `twremat`: recursion over a tree decomposition.

Kumar, Purohit, Svitkina, Vee and Wang, Efficient Rematerialization for Deep Networks (NeurIPS 2019),
section 3: a balanced separator, taken from a tree decomposition of the undirected graph, is computed op by
op in topological order, each op's missing inputs by recursion into the part that makes them; with the
separator at hand the parts are solved one after another, and then it is dropped. At most O(width log n)
ops are held at a time. The recursion stops where the rest runs in its given order within the budget.

The undirected graph is moralised (the producers of an op's inputs are joined too), so that an op and what
it reads always share a bag.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import networkx as nx
import numpy as np
from networkx.algorithms.approximation import treewidth_min_degree

from hremate.errors import MethodError
from hremate.graph import Graph, IntArray
from hremate.result import Result
from hremate.solvers.base import Deadline, Run, finish
from hremate.solvers.expand import Expansion, Sweep

#: A bag is balanced when the parts it leaves hold at most this share of the ops; each value is tried.
BALANCES = (2 / 3, 0.5, 0.8)
#: Shares of the budget at which the recursion stops, in the order in which they are tried.
STOPS = (1.0, 0.9, 0.75, 0.5, 0.25, 0.0)
#: The recursion is given up when it has looked at each op this often on average: its work is polynomial,
#: but the degree grows with the width.
MOST_VISITS = 300


@dataclass(frozen=True)
class Params:
    """Parameters of twremat."""

    #: Share of the budget below which the recursion stops; None tries a row of them until one fits.
    stop: float | None = None

    def __post_init__(self) -> None:
        if self.stop is not None and not 0.0 <= self.stop <= 1.0:
            raise MethodError("Expected 0 <= stop <= 1.")


class _OutOfTime(Exception):
    """The deadline passed inside the recursion."""


class _TooLong(Exception):
    """The recursion exceeds `MOST_VISITS`."""


def solve(graph: Graph, budget: int, run: Run, params: Params) -> Result:
    """The fastest schedule at the first stop at which one fits `budget`, else the one of smallest peak."""
    sweep = Sweep(graph, budget, run)
    sweep.offer(np.arange(graph.n_ops))
    recursion: Recursion | None = None
    try:
        for stop in STOPS if params.stop is None else (params.stop,):
            if sweep.fits:
                break
            recursion = recursion or Recursion(graph)
            run.stats.counts["width"] = recursion.tree.width
            answers = 0
            for balance, eager in product(BALANCES, (True, False)):
                try:
                    sweep.offer(recursion.schedule(int(stop * budget), balance, eager, run.deadline))
                    answers += 1
                except _TooLong:
                    run.progress(f"twremat: stop {stop}, balance {balance:.2f}: given up, too wide")
            if not answers:
                break  # a lower stop means more work
    except _OutOfTime:
        run.stats.timed_out = True
    return finish(graph, budget, run, "twremat", sweep.order)


class TreeDecomposition:
    """A tree decomposition of the moralised graph by the min-degree heuristic, rooted."""

    def __init__(self, graph: Graph) -> None:
        moral = nx.Graph()
        moral.add_nodes_from(range(graph.n_ops))
        for i in range(graph.n_ops):
            makers = np.unique(graph.producer[graph.inputs_of(i)]).tolist()
            clique = [*makers, i]
            moral.add_edges_from((p, q) for k, p in enumerate(clique) for q in clique[k + 1 :])
        #: Neighbours of each op in the moralised graph, ascending.
        self.neighbours: list[list[int]] = [sorted(moral.adj[i]) for i in range(graph.n_ops)]
        #: Largest bag less one.
        self.width, tree = treewidth_min_degree(moral)
        nodes = list(tree)
        order = [nodes[0]]
        place = {nodes[0]: 0}
        #: Parent of each bag, -1 for the root; bags are numbered so that parents come first.
        self.parent = [-1]
        queue = deque(order)
        while queue:
            node = queue.popleft()
            for other in tree.adj[node]:
                if other not in place:
                    place[other] = len(order)
                    self.parent.append(place[node])
                    order.append(other)
                    queue.append(other)
        #: Ops of each bag, ascending.
        self.bags: list[list[int]] = [sorted(node) for node in order]
        #: Bags of each op, ascending; the first is the topmost.
        self.bags_of: list[list[int]] = [[] for _ in range(graph.n_ops)]
        for b, bag in enumerate(self.bags):
            for i in bag:
                self.bags_of[i].append(b)

    def separator(self, ops: Sequence[int], weight: Sequence[int], balance: float) -> list[int]:
        """The lightest balanced bag among a connected set of ops, restricted to them, ascending.

        The bags that meet a connected set form a subtree. Each op is counted at its topmost bag, so that
        the parts a bag leaves are weighed by sums over subtrees.
        """
        inside = set(ops)
        bags = sorted({b for i in ops for b in self.bags_of[i]})
        below = dict.fromkeys(bags, 0)
        for i in ops:
            below[self.bags_of[i][0]] += 1
        largest = dict.fromkeys(bags, 0)
        for b in reversed(bags):
            p = self.parent[b]
            if p in below:
                below[p] += below[b]
                largest[p] = max(largest[p], below[b])
        best: tuple[bool, int, int] | None = None
        choice: list[int] = []
        for b in bags:
            bag = [i for i in self.bags[b] if i in inside]
            above = len(ops) - below[b] - sum(self.bags_of[i][0] != b for i in bag)
            part = max(largest[b], above)
            unbalanced = part > balance * len(ops)
            key = (unbalanced, part if unbalanced else sum(weight[i] for i in bag), part)
            if best is None or key < best:
                best, choice = key, bag
        return choice

    def components(self, ops: Sequence[int]) -> list[list[int]]:
        """Connected components of the moralised graph on `ops`, each ascending, by their first op."""
        waiting = set(ops)
        parts = []
        for i in sorted(ops):
            if i not in waiting:
                continue
            waiting.remove(i)
            part = [i]
            for j in part:
                for k in self.neighbours[j]:
                    if k in waiting:
                        waiting.remove(k)
                        part.append(k)
            parts.append(sorted(part))
        return parts


class Recursion:
    """The recursion over one graph.

    At each call, every input from outside of the ops still to run is at hand: it was made by an op of an
    outer separator, which is held until the call returns.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.tree = TreeDecomposition(graph)
        self.expansion = Expansion(graph)
        self.size: list[int] = graph.size.tolist()
        self.workspace: list[int] = graph.workspace.tolist()
        self.out_bytes: list[int] = graph.out_bytes.tolist()
        unread = np.ones(graph.n_ops, np.bool_)
        unread[graph.producer[graph.in_idx]] = False
        unread[graph.producer[graph.outputs]] = True
        #: Readers of each tensor, ascending.
        self.users: list[list[int]] = [graph.users_of(x).tolist() for x in range(graph.n_tensors)]
        #: Ops to run for their own sake: they make a graph output, or nothing that is read.
        self.final: list[bool] = unread.tolist()
        #: Readers of each op that lead to final ops alone, through ops that read nothing else.
        self.tails = tails(self.expansion, self.final, self.users)
        #: Tensors that some op reads.
        self.is_read: list[bool] = (np.diff(graph.use_ptr) > 0).tolist()

    def schedule(self, limit: int, balance: float, eager: bool, deadline: Deadline) -> IntArray:
        """The whole schedule.

        Parameters
        ----------
        limit : int
            Bytes within which ops run in their given order, without recursion.
        balance : float
            Largest share of the ops that a separator may leave in one part, where there is a choice.
        eager : bool
            Whether final ops run as soon as all they need from outside is at hand.
        """
        self.limit, self.balance, self.eager, self.deadline = limit, balance, eager, deadline
        self.expansion.reset()
        self.holds = [0] * self.graph.n_tensors
        self.held_bytes = 0
        self.visits = 0
        everything = list(range(self.graph.n_ops))
        self._solve(everything, [], [i for i in everything if self.final[i]])
        return np.array(self.expansion.order, np.int64)

    def _solve(self, region: Sequence[int], targets: Sequence[int], wanted: Sequence[int]) -> None:
        """Make the tensors `targets` of `region` and hold them; run its final ops `wanted`."""
        if self.deadline.expired:
            raise _OutOfTime
        if self.eager and not wanted:
            wanted = self._unblocked(region)
        ops = self._missing(targets, wanted)
        self.visits += len(ops) + len(region)
        if self.visits > MOST_VISITS * self.graph.n_ops:
            raise _TooLong
        if len(ops) == 1 or self.held_bytes + self._plain_peak(ops, targets) <= self.limit:
            start = len(self.expansion.order)
            for i in ops:
                self._run(i)
            self._hold(targets)
            self._forget(start)
            return
        for part in self.tree.components(ops):
            inside = set(part)
            self._separate(
                part,
                [x for x in targets if self.expansion.producer[x] in inside],
                [i for i in wanted if i in inside],
            )

    def _separate(self, ops: Sequence[int], targets: Sequence[int], wanted: Sequence[int]) -> None:
        """`_solve` for a connected set of missing ops that needs a separator."""
        expansion = self.expansion
        separator = self.tree.separator(ops, self.out_bytes, self.balance)
        taken, inside = set(separator), set(ops)
        parts = self.tree.components([i for i in ops if i not in taken])
        part_of = {i: k for k, part in enumerate(parts) for i in part}
        goal = set(targets)
        held: list[int] = []
        for i in separator:
            needs: dict[int, list[int]] = {}
            for x in expansion.reads[i]:
                if not expansion.have[x]:
                    needs.setdefault(part_of[expansion.producer[x]], []).append(x)
            for k in sorted(needs):
                self._solve(parts[k], needs[k], [])
            start = len(expansion.order)
            self._run(i)
            useful = [
                x for x in expansion.makes[i] if x in goal or any(j in inside for j in self.users[x])
            ]
            self._hold(useful)
            held += useful
            self._release(x for k in sorted(needs) for x in needs[k])
            self._forget(start)
        # A tensor of the separator is held until the last part that reads it is solved.
        last: dict[int, int] = dict.fromkeys(held, -1)
        for x in held:
            readers = (part_of.get(j, -1) for j in self.users[x])
            last[x] = len(parts) if x in goal else max(readers, default=-1)
        for k, part in enumerate(parts):
            self._release(x for x in held if last[x] == k - 1)
            inside = set(part)
            rest = [x for x in targets if expansion.producer[x] in inside]
            due = [i for i in wanted if i in inside and not expansion.ran[i]]
            if rest or due:
                self._solve(part, rest, due)
        self._release(x for x in held if last[x] == len(parts) - 1)

    def _missing(self, targets: Sequence[int], wanted: Sequence[int]) -> list[int]:
        """The ops to run for `targets` and `wanted`, ascending."""
        expansion = self.expansion
        stack = [*(expansion.producer[x] for x in targets), *wanted]
        found = set(stack)
        while stack:
            for x in expansion.reads[stack.pop()]:
                if not expansion.have[x]:
                    p = expansion.producer[x]
                    if p not in found:
                        found.add(p)
                        stack.append(p)
        return sorted(found)

    def _unblocked(self, region: Sequence[int]) -> list[int]:
        """Final ops of `region` still to run whose inputs from outside are all at hand."""
        expansion = self.expansion
        open_ops: set[int] = set()
        found = []
        for i in region:
            if all(expansion.have[x] or expansion.producer[x] in open_ops for x in expansion.reads[i]):
                open_ops.add(i)
                if self.final[i] and not expansion.ran[i]:
                    found.append(i)
        return found

    def _plain_peak(self, ops: Sequence[int], targets: Sequence[int]) -> int:
        """Bytes that running `ops` in their order takes beside what is held, `targets` staying."""
        expansion = self.expansion
        last: dict[int, int] = {}
        for i in ops:
            for x in expansion.reads[i]:
                last[x] = i
            for x in expansion.makes[i]:
                last[x] = i
        staying = set(targets)
        dying: dict[int, int] = dict.fromkeys(ops, 0)
        inside = dying.keys()
        for x, i in last.items():
            if expansion.producer[x] in inside and x not in staying and not expansion.stays[x]:
                dying[i] += self.size[x]
        live = peak = 0
        for i in ops:
            peak = max(peak, live + self.out_bytes[i] + self.workspace[i])
            live += self.out_bytes[i] - dying[i]
        return peak

    def _run(self, op: int) -> None:
        """Run `op` if anything it makes is missing, then, if eager, the tails it makes ready."""
        expansion = self.expansion
        stack = [op]
        while stack:
            i = stack.pop()
            if not expansion.ran[i]:
                self.held_bytes += sum(self.size[x] for x in expansion.makes[i] if expansion.stays[x])
            elif all(expansion.have[x] or not self.is_read[x] for x in expansion.makes[i]):
                continue
            expansion.run(i)
            if self.eager:
                stack += [
                    j
                    for j in reversed(self.tails[i])
                    if not expansion.ran[j] and all(expansion.have[x] for x in expansion.reads[j])
                ]

    def _hold(self, tensors: Sequence[int]) -> None:
        for x in tensors:
            if not self.holds[x] and not self.expansion.stays[x]:
                self.held_bytes += self.size[x]
            self.holds[x] += 1

    def _release(self, tensors: Iterable[int]) -> None:
        gone = []
        for x in tensors:
            self.holds[x] -= 1
            if not self.holds[x]:
                gone.append(x)
                if not self.expansion.stays[x]:
                    self.held_bytes -= self.size[x]
        self.expansion.drop(gone)

    def _forget(self, start: int) -> None:
        """Drop what nobody holds of what was made since the step `start` of the schedule."""
        expansion = self.expansion
        made = [x for i in expansion.order[start:] for x in expansion.makes[i]]
        expansion.drop([x for x in made if not self.holds[x]])


def tails(
    expansion: Expansion, final: Sequence[bool], users: Sequence[Sequence[int]]
) -> list[list[int]]:
    """For each op its readers that are *tails*: final, or all read of theirs is read by tails that read
    nothing else.

    A tail may run as soon as its inputs are at hand: its end has to be reached some time, and nothing but
    what it makes on the way waits for it.
    """
    is_tail = list(final)
    for i in range(len(final) - 1, -1, -1):
        made = set(expansion.makes[i])
        readers = {j for x in made for j in users[x]}
        if all(is_tail[j] and made.issuperset(expansion.reads[j]) for j in readers):
            is_tail[i] = True
    return [sorted({j for x in made for j in users[x] if is_tail[j]}) for made in expansion.makes]
