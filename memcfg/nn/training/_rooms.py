"""Where a loaded program's inputs and outputs lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy.typing as npt

if TYPE_CHECKING:
    from memcfg.graph import Graph
    from memcfg.nn.training._tracing import Program
    from memcfg.runtime import Executor

__all__ = ["Rooms", "input_rooms", "output_rooms"]

Rooms = dict[str, npt.NDArray[Any]]


def input_rooms(executor: Executor, program: Program, graph: Graph) -> Rooms:
    """Return the rooms of a program's inputs.

    Parameters
    ----------
    executor : Executor
        Has the program loaded.
    program : Program
        Which one.
    graph : Graph
        Its graph.

    Returns
    -------
    dict of str to numpy.ndarray
        Views of its memory, by name; those inputs that the program reads.
    """
    return {
        tensor.name: executor.feed(program.label, tensor.name)
        for i, tensor in enumerate(graph.tensors)
        if tensor.role == "input" and (graph.consumers[i] or i in graph.keep)
    }


def output_rooms(executor: Executor, program: Program, graph: Graph) -> Rooms:
    """Return the rooms of what a program keeps, state left out.

    Parameters
    ----------
    executor : Executor
        Has the program loaded.
    program : Program
        Which one.
    graph : Graph
        Its graph.

    Returns
    -------
    dict of str to numpy.ndarray
        Views of its memory: ``output`` of a prediction, else ``loss`` and, where
        answers are counted, ``correct_count``; whatever the graph calls them.
    """
    kept = [graph.tensors[i] for i in graph.keep]
    found = [tensor.name for tensor in kept if tensor.role in ("output", "input")]
    names = ("output",) if program.kind == "predict" else ("loss", "correct_count")
    return {
        name: executor.fetch(program.label, tensor)
        for name, tensor in zip(names, found, strict=False)
    }
