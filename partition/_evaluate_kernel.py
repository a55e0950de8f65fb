"""The kernel of `evaluate`: a hash of each block that is equal for blocks equal up to names."""

from __future__ import annotations

import numpy as np

from hremate._jit import kernel

#: Multiplier and shift of the mixing step (splitmix64).
FACTOR = np.uint64(0xBF58476D1CE4E5B9)
SHIFT = np.uint64(27)


@kernel
def mix(state, word):  # type: ignore[no-untyped-def]
    """Mix the int64 `word` into the uint64 `state`."""
    state = (state ^ np.uint64(word)) * FACTOR
    return state ^ (state >> SHIFT)


@kernel
def block_hashes(  # type: ignore[no-untyped-def]
    ptr, ops, n_forward, words, size, in_ptr, in_idx, out_ptr, producer, block_of, interface
):
    """Hash every block over its ops in order: what they are, what they read and what they make.

    Parameters
    ----------
    ptr, ops : CSR of the ops of each block, forward part first; n_forward : int64[J].
    words : int64[n, k], what an op is (the bits of its time, workspace, ...).
    size, in_ptr, in_idx, out_ptr, producer : as in Graph.
    block_of : int64[n], block of each op; interface : bool[m], tensors needed outside the block that
        makes them.

    Returns
    -------
    uint64[J]
    """
    hashes = np.empty(len(ptr) - 1, np.uint64)
    place = np.empty(len(block_of), np.int64)
    # External tensors are numbered by first read: number and block in which it was given.
    number = np.empty(len(size), np.int64)
    numbered_by = np.full(len(size), -1, np.int64)
    for j in range(len(ptr) - 1):
        state = mix(np.uint64(0), n_forward[j])
        externals = 0
        for k in range(ptr[j], ptr[j + 1]):
            place[ops[k]] = k - ptr[j]
        for k in range(ptr[j], ptr[j + 1]):
            op = ops[k]
            for word in words[op]:
                state = mix(state, word)
            for x in in_idx[in_ptr[op] : in_ptr[op + 1]]:
                if block_of[producer[x]] == j:
                    state = mix(state, place[producer[x]])
                    state = mix(state, x - out_ptr[producer[x]])
                    continue
                if numbered_by[x] != j:
                    numbered_by[x] = j
                    number[x] = externals
                    externals += 1
                    state = mix(state, size[x])
                state = mix(state, -1 - number[x])
            for x in range(out_ptr[op], out_ptr[op + 1]):
                state = mix(state, size[x])
                state = mix(state, 1 if interface[x] else 0)
            state = mix(state, -1)
        hashes[j] = state
    return hashes
