"""The kernel that colours the ops and tensors of a block by what lies around them."""

from __future__ import annotations

import numpy as np

from hremate._jit import kernel


@kernel
def mixed(value):  # type: ignore[no-untyped-def]
    """`value` (uint64) scrambled: the finaliser of SplitMix64 (Steele et al., OOPSLA 2014)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@kernel
def refine_colours(op_colour, tensor_colour, in_ptr, in_idx, out_ptr, rounds):  # type: ignore[no-untyped-def]
    """Make colours depend on all ancestors and descendants, `rounds` times, in place.

    A round goes over the ops once forwards and once backwards, so that colours travel any distance; equal
    colours before and equal surroundings give equal colours, whatever the numbering of ops and tensors.

    Parameters
    ----------
    op_colour : uint64[n]; tensor_colour : uint64[m].
    in_ptr, in_idx : CSR op -> tensors it reads, ops in a topological order.
    out_ptr : int64[n + 1], op i makes the tensors out_ptr[i]:out_ptr[i+1].
    rounds : int.
    """
    n = len(op_colour)
    m = len(tensor_colour)
    place = np.uint64(0x9E3779B97F4A7C15)
    for _ in range(rounds):
        up_op = op_colour.copy()
        up_tensor = tensor_colour.copy()
        for i in range(n):
            total = np.uint64(0)
            for a in range(in_ptr[i], in_ptr[i + 1]):
                total += mixed(up_tensor[in_idx[a]])
            up_op[i] = mixed(up_op[i] + mixed(total))
            for x in range(out_ptr[i], out_ptr[i + 1]):
                up_tensor[x] = mixed(up_tensor[x] + up_op[i] + place * np.uint64(x - out_ptr[i] + 1))
        read_by = np.zeros(m, np.uint64)
        for i in range(n - 1, -1, -1):
            total = np.uint64(0)
            for x in range(out_ptr[i], out_ptr[i + 1]):
                down = mixed(tensor_colour[x] + mixed(read_by[x]))
                total += mixed(down + place * np.uint64(x - out_ptr[i] + 1))
                tensor_colour[x] = mixed(down + place * up_tensor[x])
            down_op = mixed(op_colour[i] + mixed(total))
            for a in range(in_ptr[i], in_ptr[i + 1]):
                read_by[in_idx[a]] += mixed(down_op)
            op_colour[i] = mixed(down_op + place * up_op[i])
        for x in range(out_ptr[0] if n else m):
            tensor_colour[x] = mixed(tensor_colour[x] + mixed(read_by[x]))
