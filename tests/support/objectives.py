"""Losses and metrics traced alone, and what they are in NumPy."""

from __future__ import annotations

import interpreter
import numpy as np

from memcfg.graph import Builder, gradients

EPSILON = 1e-7


def interpret(graph, values, real=np.float64, ops=None):
    """Run the reference; what `select` does not choose may be infinite."""
    with np.errstate(all="ignore"):
        return interpreter.interpret(graph, values, real, ops)


class Traced:
    """A loss of arrays, as a graph: the float64 reference is run."""

    def __init__(self, loss, y_true, y_pred, weight=None, through=None):
        self.builder = builder = Builder("alone")
        builder.training = True
        self.values = {"targets": np.asarray(y_true), "outputs": np.asarray(y_pred)}
        dtype = "int32" if self.values["targets"].dtype.kind == "i" else "float32"
        target = builder.tensor("targets", np.shape(y_true), dtype, role="input")
        self.output = builder.tensor("outputs", np.shape(y_pred), role="parameter")
        read = self.output
        if through is not None:  # an activation at the model's end
            (read,) = builder.apply(through, (read,))
        weights = None
        if weight is not None:
            self.values["weights"] = np.asarray(weight)
            weights = builder.tensor("weights", np.shape(weight), role="input")
        self.found = loss.trace(builder, target, read, weights)

    def loss(self, real=np.float64):
        """Return the number and its gradient with respect to the outputs."""
        found = gradients(self.builder, self.found, [self.output])
        graph = self.builder.build([self.found, *found.values()])
        assert graph.tensors[self.found].shape == ()
        made = interpret(graph, self.values, real)
        slopes = made[graph.tensors[found[self.output]].name]
        return float(made[graph.tensors[self.found].name]), slopes

    def slope(self, direction, h=1e-6):
        """Return the central difference of the loss along a direction."""
        graph = self.builder.build([self.found])
        forward = [op for op in graph.ops if op.phase == "forward"]
        name = graph.tensors[self.found].name
        ends = [
            float(
                interpret(
                    graph,
                    self.values | {"outputs": self.values["outputs"] + s * direction},
                    ops=forward,
                )[name]
            )
            for s in (h, -h)
        ]
        return (ends[0] - ends[1]) / (2 * h)

    def sums(self, real=np.float64):
        """Return what a metric adds up."""
        graph = self.builder.build(self.found)
        made = interpret(graph, self.values)
        return [made[graph.tensors[each].name] for each in self.found]


def clipped(p, most=1 - EPSILON):
    return np.clip(p, EPSILON, most)


def smoothed(t, smoothing, classes=2):
    return t * (1 - smoothing) + smoothing / classes


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def signed(t):
    return 2 * t - 1 if np.isin(t, (0, 1)).all() else t


def cosine(t, p, axis=-1):
    def unit(x):
        length = np.sqrt((x * x).sum(axis, keepdims=True))
        return x / np.maximum(length, EPSILON)

    return (unit(t) * unit(p)).sum(axis)


def binary(t, p, smoothing=0.0):
    t, p = smoothed(t, smoothing), clipped(p)
    return -(t * np.log(p) + (1 - t) * np.log(1 - p)).mean(-1)


def categorical(t, p, smoothing=0.0):
    p = clipped(p / p.sum(-1, keepdims=True))
    return -(smoothed(t, smoothing, t.shape[-1]) * np.log(p)).sum(-1)


def one_hot(labels, classes):
    return (labels[..., None] == np.arange(classes)).astype(float)


def huber(t, p, delta=1.0):
    e = np.abs(t - p)
    return np.where(e <= delta, e * e / 2, delta * e - delta**2 / 2).mean(-1)


def focal(t, p, alpha=0.25, gamma=2.0, smoothing=0.0, balanced=False):
    t = smoothed(t, smoothing)
    right = t * p + (1 - t) * (1 - p)
    each = -(t * np.log(p) + (1 - t) * np.log(1 - p)) * (1 - right) ** gamma
    if balanced:
        each = each * (t * alpha + (1 - t) * (1 - alpha))
    return each.mean(-1)


def categorical_focal(t, p, alpha=0.25, gamma=2.0, smoothing=0.0):
    p = p / p.sum(-1, keepdims=True)
    t = smoothed(t, smoothing, t.shape[-1])
    return (-alpha * (1 - p) ** gamma * t * np.log(p)).sum(-1)
