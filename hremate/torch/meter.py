"""How much memory a piece of PyTorch code really uses: live storages, op by op."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class MemoryMeter(TorchDispatchMode):
    """Counts the bytes of the storages that are made inside the `with` block and still alive.

    The memory of an op is what is alive when it has run: its inputs, its outputs and everything else, the
    rule `coexist` of `hremate.simulate`. Storages made before the block (weights, inputs) do not count.
    What kernels allocate and release inside one op is invisible, as it is to the graph unless its ops have
    a workspace. For CPU; on CUDA the statistics of the allocator (`torch.cuda.max_memory_allocated`) see
    everything, also what runs on threads of the autograd engine.

    Examples
    --------
    >>> with MemoryMeter() as meter:
    ...     y = torch.ones(256).exp().sum()
    >>> meter.peak()
    2048
    """

    def __init__(self) -> None:
        super().__init__()
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}
        #: Per storage: [bytes, first op, last op]; the last is None while it is alive.
        self._records: list[list[Any]] = []
        self._ops: list[str] = []
        self._foreign: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._collect()
        for tensor in _tensors((args, kwargs)):
            reference = StorageWeakRef(tensor.untyped_storage())
            if reference.cdata not in self._live:
                self._foreign.setdefault(reference.cdata, reference)
        result = func(*args, **kwargs)
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            reference = StorageWeakRef(storage)
            if reference.cdata not in self._live and reference.cdata not in self._foreign:
                self._live[reference.cdata] = (reference, len(self._records))
                self._records.append([storage.nbytes(), len(self._ops), None])
        self._ops.append(str(func))
        return result

    def _collect(self) -> None:
        """Note which storages have died since the last op."""
        for key in [k for k, (reference, _) in self._live.items() if reference.expired()]:
            self._records[self._live.pop(key)[1]][2] = len(self._ops) - 1
        for key in [k for k, reference in self._foreign.items() if reference.expired()]:
            del self._foreign[key]

    def memory(self, exclude: Iterable[torch.Tensor | None] = ()) -> list[int]:
        """Live bytes at each op, without the storages of `exclude` (say, the gradients of the weights)."""
        self._collect()
        left_out = set()
        for tensor in exclude:
            if tensor is not None:
                entry = self._live.get(StorageWeakRef(tensor.untyped_storage()).cdata)
                left_out.add(-1 if entry is None else entry[1])
        change = [0] * (len(self._ops) + 1)
        for k, (nbytes, first, last) in enumerate(self._records):
            if k not in left_out:
                change[first] += nbytes
                if last is not None:
                    change[last + 1] -= nbytes
        result, live = [], 0
        for delta in change[:-1]:
            live += delta
            result.append(live)
        return result

    def peak(self, exclude: Iterable[torch.Tensor | None] = ()) -> int:
        """The largest of `memory`, bytes."""
        return max(self.memory(exclude), default=0)

    def ops(self) -> list[str]:
        """The ops that were metered, in order."""
        return list(self._ops)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]
