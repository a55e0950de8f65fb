"""Kernel of `hremate.bounds`."""

from __future__ import annotations

import numpy as np

from hremate._jit import kernel


@kernel
def working_set_kernel(  # type: ignore[no-untyped-def]
    in_ptr, in_idx, out_ptr, use_ptr, use_idx, producer, size, workspace, out_bytes, once, is_output, outputs,
    reuse, floor,
):
    """Fill `floor` with the bytes that some step must hold for each op to run, and for the end.

    Parameters
    ----------
    in_ptr ... workspace, once, outputs : arrays of `Graph`.
    out_bytes : int64[n], bytes of all outputs of each op.
    is_output : bool[m], whether each tensor is a graph output.
    reuse : bool, the memory model.
    floor : int64[2, n + 1], filled. Row 0: the op's own step. Row 1: the step at which the last of its
        inputs is made. Column n stands for the end, which "reads" the graph outputs.
    """
    n = len(out_ptr) - 1
    mark = np.full(len(size), -1, np.int64)  # mark[x] == v: x is an input of v
    for v in range(n + 1):
        read = in_idx[in_ptr[v] : in_ptr[v + 1]] if v < n else outputs
        held = 0
        may_stay = False
        for x in read:
            mark[x] = v
            held += size[x]
            may_stay = may_stay or once[producer[x]]
        if v == n:
            floor[0, v] = held
        elif not reuse:
            floor[0, v] = held + out_bytes[v] + workspace[v]
        else:
            # Inputs that cannot die at the first run of v: made once, and an output or read again by an
            # op that needs v first.
            stays = 0
            if may_stay:
                for x in read:
                    if once[producer[x]] and is_output[x]:
                        stays += size[x]
                        mark[x] = -1
                for y in range(out_ptr[v], out_ptr[v + 1]):
                    for w in use_idx[use_ptr[y] : use_ptr[y + 1]]:
                        for x in in_idx[in_ptr[w] : in_ptr[w + 1]]:
                            if mark[x] == v and once[producer[x]]:
                                stays += size[x]
                                mark[x] = -1
                for x in read:
                    mark[x] = v
            floor[0, v] = max(held + workspace[v], stays + out_bytes[v])

        # Whichever producer p of an input runs last finds the other inputs alive.
        least = -1
        a = 0
        while a < len(read):
            p = producer[read[a]]
            others = held
            while a < len(read) and producer[read[a]] == p:
                others -= size[read[a]]
                a += 1
            live = others
            for x in in_idx[in_ptr[p] : in_ptr[p + 1]]:
                if mark[x] != v:
                    live += size[x]
            if reuse:
                here = max(live + workspace[p], others + out_bytes[p])
            else:
                here = live + out_bytes[p] + workspace[p]
            if least < 0 or here < least:
                least = here
        floor[1, v] = max(least, 0)
