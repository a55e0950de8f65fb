"""The command `hremate capture`: a graph from a PyTorch model that a function of the user builds."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

from hremate.budget import format_bytes
from hremate.errors import HremateError


class FactoryError(HremateError):
    """`module:factory` that cannot be imported, or returns something other than a model and its sample."""


def add_parser(subparsers: Any) -> None:
    """Add the command to what `argparse.ArgumentParser.add_subparsers` returned."""
    text = "capture a PyTorch model as a graph"
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "capture", help=text,
        description=text.capitalize() + ": forward, loss and backward of one training step, from shapes. "
        "FACTORY is a function without arguments that returns (model, args), (model, args, kwargs) or "
        "(model, args, kwargs, loss), see hremate.torch.capture. Models on the device meta take no memory.",
    )  # fmt: skip
    parser.add_argument("factory", metavar="MODULE:FACTORY", help="looked up in the current folder first")
    parser.add_argument(
        "-o", "--output", metavar="GRAPH", help="file to write (default: the name of the model + .json.gz)"
    )
    parser.add_argument("--device", metavar="NAME", help="roofline for the times: cpu, a100, h100, ...")
    parser.add_argument(
        "--profile", action="store_true", help="measure the times on the device of the model instead"
    )
    parser.add_argument("--name", help="of the graph (default: the class of the model)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Capture, write the graph, tell what it is; returns the exit code."""
    from hremate.io import write_graph
    from hremate.simulate import base_peak
    from hremate.torch import capture

    model, sample, kwargs, loss = _call(args.factory)
    graph = capture(
        model, sample, kwargs, loss, device=args.device, profile=args.profile, name=args.name
    )
    output = args.output if args.output is not None else f"{graph.name}.json.gz"
    write_graph(graph, output)
    print(
        f"{output}: {graph.n_ops} ops, {graph.n_tensors} tensors, "
        f"base peak {format_bytes(base_peak(graph))}, resident {format_bytes(graph.resident)}",
        file=sys.stderr,
    )
    return 0


def _call(text: str) -> tuple[Any, Any, Any, Any]:
    """(model, args, kwargs, loss) of a factory named `module:function`."""
    module_name, _, function_name = text.partition(":")
    if not module_name or not function_name:
        raise FactoryError(f"expected MODULE:FACTORY, not {text!r}")
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        factory = getattr(importlib.import_module(module_name), function_name)
    except ImportError as error:
        raise FactoryError(f"cannot import {module_name!r}: {error}") from error
    except AttributeError:
        raise FactoryError(f"module {module_name!r} has no function {function_name!r}") from None
    finally:
        sys.path.remove(folder)
    if not callable(factory):
        raise FactoryError(f"{text} is not a function")
    made = factory()
    if not isinstance(made, tuple) or not 2 <= len(made) <= 4:
        raise FactoryError(f"{text} returned {type(made).__name__}; expected (model, args[, kwargs[, loss]])")
    model, sample, kwargs, loss = [*made, None, None][:4]
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise FactoryError(f"{text}: kwargs is a {type(kwargs).__name__}; expected a mapping")
    return model, sample, kwargs, loss
