"""JAX functions as graphs, for planning: the jaxpr of a loss and its gradient.

Nothing is computed: the function is traced with shapes. Arguments and constants are resident; primitives
that only reinterpret an array cost nothing and belong to its readers; gradients are outputs of 0 bytes whose
room `resident` counts. Random numbers follow from explicit keys, so every op may run again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hremate._devices import Device, get_device
from hremate.errors import GraphError, MissingExtraError
from hremate.graph import Graph, Op

#: Primitives whose output is their input in another shape; XLA fuses broadcasts and transposes into the ops
#: that read them.
VIEWS = frozenset({"reshape", "squeeze", "expand_dims", "broadcast_in_dim", "transpose", "copy",
                   "optimization_barrier"})  # fmt: skip
#: Primitives that only call another jaxpr: their inner ops take their place.
CALLS = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call",
         "custom_vjp_call_jaxpr", "remat", "checkpoint", "remat2")  # fmt: skip


def capture(
    function: Callable[..., Any],
    *args: Any,
    argnums: int | Sequence[int] = 0,
    grad: bool = True,
    has_aux: bool = False,
    device: str | Device = "a100",
    name: str | None = None,
) -> Graph:
    """The graph of `jax.value_and_grad(function)` at `args`.

    Parameters
    ----------
    function : callable
        Returns a scalar loss (and something else, with `has_aux`).
    *args
        Its arguments: pytrees of arrays or of `jax.ShapeDtypeStruct`.
    argnums
        The arguments to differentiate by, as in `jax.value_and_grad`.
    grad : bool
        Whether to differentiate at all; without it the graph is that of `function`.
    device : str or Device
        Whose roofline the times follow, see `hremate.torch.capture`.

    Returns
    -------
    Graph
        One op per primitive of the jaxpr, times in microseconds. Loops (`scan`, `while`) are single ops
        with the FLOPs of their bodies, once per iteration where their number is known. XLA fuses ops, which
        the graph does not know.

    Raises
    ------
    MissingExtraError
        JAX is not installed.
    GraphError
        The function cannot be traced: it branches on values, or its loss is no scalar.
    """
    try:
        import jax
    except ImportError as error:
        raise MissingExtraError("hremate.jax needs JAX: pip install 'hremate[jax]'") from error
    step = jax.value_and_grad(function, argnums=argnums, has_aux=has_aux) if grad else function
    try:
        closed = jax.make_jaxpr(step)(*args)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError, TypeError, ValueError) as error:
        reason = next(iter(str(error).strip().splitlines()), "")
        raise GraphError(f"the function cannot be traced ({type(error).__name__}: {reason})") from error
    title = name or str(getattr(function, "__name__", "jax"))
    numbers = [argnums] if isinstance(argnums, int) else list(argnums)
    n_gradients = len(jax.tree_util.tree_leaves([args[k] for k in numbers])) if grad else None
    return _Reader(get_device(device), jax.__version__).graph(closed, title, n_gradients)


class _Reader:
    def __init__(self, device: Device, version: str) -> None:
        self._device, self._version = device, version
        self._ops: list[Op] = []
        #: Tensor that a variable of a jaxpr is, or lies in; None for a literal.
        self._names: dict[Any, str | None] = {}
        self._count: dict[str, int] = {}

    def graph(self, closed: Any, name: str, n_gradients: int | None) -> Graph:
        """The graph of a jaxpr that returns the loss, auxiliary values and the gradients (None: no loss)."""
        jaxpr = closed.jaxpr
        resident = 0
        for kind, variables in (("constant", jaxpr.constvars), ("input", jaxpr.invars)):
            for k, variable in enumerate(variables):
                self._names[variable] = f"{kind}.{k}"
                resident += _bytes(variable.aval)
        self._read(jaxpr, "")
        if not self._ops:
            raise GraphError(f"{name} computes nothing")
        results = [self._name(v) for v in jaxpr.outvars]
        loss, gradients = None, set()
        if n_gradients is not None:
            loss = results[0]
            n = len(results) - n_gradients
            gradients = set(results[n:])
            resident += sum(_bytes(v.aval) for v in jaxpr.outvars[n:])
        ops = self._with_phases(loss, gradients)
        made = {x for op in ops for x, _ in op.outputs} | {x for op in ops for x in op.inputs}
        return Graph.from_ops(
            ops,
            [x for x in dict.fromkeys(results) if x is not None and x in made],
            name=name,
            resident=resident,
            metadata={
                "source": f"captured from JAX {self._version}; times from a roofline of {self._device.name}"
            },
        )

    def _read(self, jaxpr: Any, scope: str) -> None:
        for equation in jaxpr.eqns:
            primitive = equation.primitive.name
            inner = _inner(equation) if primitive in CALLS else None
            if inner is not None:
                self._call(equation, inner, scope)
            elif primitive in VIEWS and len(equation.invars) == len(equation.outvars):
                for source, target in zip(equation.invars, equation.outvars, strict=True):
                    self._names[target] = self._name(source)
            else:
                self._add(equation, scope)

    def _call(self, equation: Any, inner: Any, scope: str) -> None:
        body = getattr(inner, "jaxpr", inner)
        for k, variable in enumerate(body.constvars):
            self._names[variable] = f"constant.{equation.primitive.name}.{len(self._names)}.{k}"
        for outside, inside in zip(equation.invars[-len(body.invars) :], body.invars, strict=True):
            self._names[inside] = self._name(outside)
        title = str(equation.params.get("name", ""))
        self._read(body, f"{scope}.{title}".strip(".") if title else scope)
        for outside, inside in zip(equation.outvars, body.outvars, strict=True):
            self._names[outside] = self._name(inside)

    def _add(self, equation: Any, scope: str) -> None:
        primitive = equation.primitive.name
        number = self._count.get(primitive, 0)
        self._count[primitive] = number + 1
        name = f"{primitive}_{number}"
        outputs = []
        for k, variable in enumerate(equation.outvars):
            tensor = name if len(equation.outvars) == 1 else f"{name}.{k}"
            self._names[variable] = tensor
            outputs.append((tensor, _bytes(variable.aval)))
        reads = [self._name(v) for v in equation.invars]
        moved = sum(_bytes(v.aval) for v in (*equation.invars, *equation.outvars))
        dtype = str(getattr(equation.outvars[0].aval, "dtype", "float32")) if equation.outvars else "float32"
        self._ops.append(
            Op(
                name=name,
                time=round(self._device.time(_flops(equation), moved, dtype), 2),
                inputs=tuple(dict.fromkeys(x for x in reads if x is not None)),
                outputs=tuple(outputs),
                type=primitive,
                scope=scope,
                once=bool(equation.effects),
            )
        )

    def _name(self, variable: Any) -> str | None:
        # A literal has a value and is no key.
        return None if hasattr(variable, "val") else self._names[variable]

    def _with_phases(self, loss: str | None, gradients: set[str | None]) -> list[Op]:
        """Forward is what the trace has before the loss, backward the rest; gradients take no bytes."""
        producer = {x: i for i, op in enumerate(self._ops) for x, _ in op.outputs}
        last = len(self._ops) if loss is None else producer.get(loss, -1)
        result = []
        for i, op in enumerate(self._ops):
            phase = "forward" if i < last else "loss" if i == last else "backward"
            outputs = op.outputs
            if phase == "backward":
                outputs = tuple((x, 0 if x in gradients else nbytes) for x, nbytes in op.outputs)
            result.append(replace(op, outputs=outputs, phase=phase))
        return result


def _inner(equation: Any) -> Any:
    """The jaxpr that a call runs."""
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        if key in equation.params:
            return equation.params[key]
    return None


def _flops(equation: Any) -> float:
    """Of matrix products and convolutions, in loops too; the rest is bound by bytes."""
    name, params = equation.primitive.name, equation.params
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        inner = math.prod(equation.invars[0].aval.shape[d] for d in contracted)
        return 2.0 * math.prod(equation.outvars[0].aval.shape) * inner
    if name == "conv_general_dilated":
        kernel = equation.invars[1].aval.shape
        out_features = kernel[params["dimension_numbers"].rhs_spec[0]]
        return 2.0 * math.prod(equation.outvars[0].aval.shape) * math.prod(kernel) / out_features
    times = int(params.get("length", 1)) if name == "scan" else 1
    return times * sum(_flops(e) for body in _bodies(params) for e in body.eqns)


def _bodies(params: Mapping[str, Any]) -> list[Any]:
    values: list[Any] = []
    for value in params.values():
        values += value if isinstance(value, (tuple, list)) else [value]
    return [body for v in values if hasattr(body := getattr(v, "jaxpr", v), "eqns")]


def _bytes(aval: Any) -> int:
    if not hasattr(aval, "shape") or not hasattr(aval, "dtype"):
        return 0
    return math.prod(aval.shape) * int(aval.dtype.itemsize)
