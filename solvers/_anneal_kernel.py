"""Kernel of `anneal`: a chunk of the search."""

from __future__ import annotations

import numpy as np

from hremate._jit import kernel
from hremate.solvers._anneal_moves_kernel import (
    block,
    draw,
    drop_any,
    drop_where_over,
    exchange,
    move_any,
    pull,
    push,
    remove_any,
    tree,
)
from hremate.solvers._anneal_state_kernel import LOGGED, OVERFLOW, undo, unload

#: Proposals between two changes of temperature and weight.
ROUND = 256
#: Entries of `numbers`: weight of the overflow, best time, best overflow, proposals, length of the best.
WEIGHT, BEST_TIME, BEST_OVERFLOW, BEST_STEPS = range(4)
#: Moves, in the order of their shares.
DROP, REMOVE, MOVE, EXCHANGE, TREE, BLOCK_MOVE, PULL, PUSH = range(8)
#: The weight of the overflow grows below the first share of states within the budget, shrinks above the
#: second.
FEW, MANY = 0.2, 0.4


@kernel
def search(  # type: ignore[no-untyped-def]
    g, s, rng, proposals, temperature, rate, shares, numbers, best, mark, group, span, tally
):
    """Make `proposals` moves, each kept or undone by the Metropolis rule; return whether the best improved.

    Parameters
    ----------
    g, s : Net, State
    rng : uint64[1], state of the generator.
    proposals : int
    temperature : float, in units of time, > 0.
    rate : float >= 1, factor by which the weight of the overflow changes at most in `ROUND` proposals.
    shares : float64[8], upper ends of the shares of the moves within [0, 1].
    numbers : float64[4], see `WEIGHT`; updated.
    best : int32[slots], the best sequence; within the budget the quickest, else that of least overflow.
    mark, group, span : scratch of the moves.
    tally : int64[8, 3], how often each move was proposed, was kept and changed the cost, and gave a new
        best within the budget; added to.
    """
    within = 0
    improved = False
    weight = numbers[WEIGHT]
    for count in range(proposals):
        bar = -temperature * np.log(1.0 - draw(rng))
        time, overflow = s.time[0], s.scalar[OVERFLOW]
        most = bar + weight * overflow
        kind = np.searchsorted(shares, draw(rng), side="right")
        s.scalar[LOGGED] = 0
        if kind == DROP:
            if overflow > 0 and draw(rng) < 0.5:
                done = drop_where_over(g, s, most, rng, mark, group)
            else:
                done = drop_any(g, s, most, rng, mark, group)
        elif kind == REMOVE:
            done = remove_any(g, s, rng, group, span)
        elif kind == MOVE:
            done = move_any(g, s, rng)
        elif kind == EXCHANGE:
            done = exchange(g, s, most, rng, mark, group, span)
        elif kind == TREE:
            done = tree(g, s, rng, mark, group)
        elif kind == BLOCK_MOVE:
            done = block(g, s, rng, group)
        elif kind == PULL:
            done = pull(g, s, rng, mark, group)
        else:
            done = push(g, s, rng, mark, group)
        tally[kind, 0] += 1
        delta = s.time[0] - time + weight * (s.scalar[OVERFLOW] - overflow)
        if not done or delta > bar:
            undo(g, s)
            s.time[0] = time
        else:
            if delta != 0:
                tally[kind, 1] += 1
            if s.scalar[OVERFLOW] == 0:
                if s.time[0] < numbers[BEST_TIME]:
                    tally[kind, 2] += 1
                    numbers[BEST_TIME] = s.time[0]
                    numbers[BEST_OVERFLOW] = 0.0
                    numbers[BEST_STEPS] = unload(s, best)
                    improved = True
            elif s.scalar[OVERFLOW] < numbers[BEST_OVERFLOW]:
                numbers[BEST_OVERFLOW] = s.scalar[OVERFLOW]
                numbers[BEST_STEPS] = unload(s, best)
                improved = True
        if s.scalar[OVERFLOW] == 0:
            within += 1
        if count % ROUND == ROUND - 1:
            if within < FEW * ROUND:
                weight *= rate
            elif within > MANY * ROUND:
                weight /= rate
            within = 0
    numbers[WEIGHT] = weight
    return improved
