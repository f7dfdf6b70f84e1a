"""The bytes that a backward phase in eager mode will have in use, from its graph."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from memcfg.torch.trace._traced import rounded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch

_LEAF = "torch::autograd::AccumulateGrad"
_VIEWS = {"TBackward0", "TransposeBackward0", "PermuteBackward0", "ViewBackward0"}


@dataclass(frozen=True)
class BackwardBytes:
    """The most bytes of a backward phase.

    Parameters
    ----------
    added : int
        Bytes in use at a time in addition to those that are saved when it begins.
    gradients : int
        Gradients that are in use at a time, without those of leaves.
    whole : int
        The same, and copies of the saved tensors that the running op reads.
    """

    added: int = 0
    gradients: int = 0
    whole: int = 0


@dataclass(frozen=True)
class NodeBytes:
    """Bytes of nodes of autograd, by their sequence numbers.

    Parameters
    ----------
    read : mapping of int to int
        The saved tensors that a node reads.
    freed : mapping of int to int
        What is freed when a node has run.
    inner : mapping of int to int
        What a node has in use while it runs, besides gradients that it takes or gives.
    """

    read: Mapping[int, int]
    freed: Mapping[int, int]
    inner: Mapping[int, int]


@dataclass
class _Walk:
    """A walk through a graph of autograd, in the order in which its engine runs it."""

    nodes: NodeBytes
    leaves: set[Any] = field(default_factory=set)  # that have a gradient so far
    held: dict[Any, dict[int, int]] = field(default_factory=dict)  # by node and input
    awaited: Counter[Any] = field(default_factory=Counter)
    now: int = 0
    grown: int = 0  # gradients of leaves so far, less what was freed
    added: int = 0
    gradients: int = 0
    whole: int = 0

    def give(self, node: Any, place: int) -> int:
        """Give a node a gradient; return the bytes of it."""
        nbytes = _input_bytes(node, place)
        if place not in self.held.setdefault(node, {}):
            self.held[node][place] = nbytes
            self.now += nbytes
        return nbytes

    def run(self, node: Any) -> None:
        """Run a node."""
        made = copies = 0
        number = node._sequence_nr()
        inner = self.now + self.nodes.inner.get(number, 0)
        for following, place in node.next_functions:
            if following is None:
                continue
            leaf = _leaf_of(following)
            if leaf is not None:  # it becomes the gradient of the leaf
                nbytes = _input_bytes(following, place)
                if leaf.grad is not None or leaf in self.leaves:
                    made += nbytes
                else:
                    self.grown += nbytes
                self.leaves.add(leaf)
            elif place in self.held.get(following, {}):  # it is added
                copies += self.give(following, place)
            else:
                self.give(following, place)
        most = max(inner + made, self.now + made + copies)
        self.added = max(self.added, most + self.grown)
        self.gradients = max(self.gradients, most)
        self.whole = max(self.whole, most + self.nodes.read.get(number, 0))
        self.now -= sum(self.held.pop(node, {}).values())
        self.grown -= self.nodes.freed.get(number, 0)


def backward_bytes(outputs: Iterable[torch.Tensor], nodes: NodeBytes) -> BackwardBytes:
    """Return the most bytes that the backward phase of outputs will have in use.

    Parameters
    ----------
    outputs : iterable of torch.Tensor
        The outputs, each of which is given a gradient.
    nodes : NodeBytes
        What is known of nodes.
    """
    walk, order = _Walk(nodes), count()
    roots = [(each.grad_fn, each.output_nr) for each in outputs if each.grad_fn]
    left = list(dict.fromkeys(node for node, _ in roots))
    known = set(left)
    while left:
        for following, _ in left.pop().next_functions:
            if following is not None:
                walk.awaited[following] += 1
                if following not in known:
                    known.add(following)
                    left.append(following)
    for node, place in roots:
        walk.give(node, place)
    ready = [node for node in dict(roots) if not walk.awaited[node]]
    heap = [(-node._sequence_nr(), next(order), node) for node in ready]
    heapq.heapify(heap)
    while heap:
        node = heapq.heappop(heap)[2]
        walk.run(node)
        for following, _ in node.next_functions:
            if following is None:
                continue
            walk.awaited[following] -= 1
            if not walk.awaited[following] and _leaf_of(following) is None:
                number = -following._sequence_nr()
                heapq.heappush(heap, (number, next(order), following))
    return BackwardBytes(walk.added, walk.gradients, walk.whole)


def _leaf_of(node: Any) -> torch.Tensor | None:
    """Return the leaf that a node accumulates to, by views at most, or None."""
    while node is not None and node.name() in _VIEWS:
        node = node.next_functions[0][0]
    if node is None or node.name() != _LEAF:
        return None
    leaf: torch.Tensor = node.variable
    return leaf


def _input_bytes(node: Any, place: int) -> int:
    """Return the bytes of a gradient that a node takes."""
    described = node._input_metadata
    if place >= len(described) or described[place] is None:
        return 0
    like = described[place]
    if like.is_nested_tensor:
        return 0
    elements = 1
    for length in like.shape:
        elements *= int(length)
    return rounded(elements * like.dtype.itemsize, like.device)
