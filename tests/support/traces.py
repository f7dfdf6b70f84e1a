"""The graphs that models are traced into, as their policy sees them."""

from __future__ import annotations

import numpy as np

import memcfg as mc


def traced(model, kind, shape, optimizer="adam", metrics=None):
    """Compile a built model; return the graph of a program for data of this shape."""
    graphs = {}
    share = mc.plan.share()

    def policy(graph, limit_bytes=None):
        graphs[graph.name] = graph
        return share(graph, limit_bytes=limit_bytes)

    loss = mc.nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=metrics, memory=policy)
    x, y = np.zeros(shape, np.float32), np.zeros(shape[0], int)
    if kind == "train":
        model.plan(shape[0])
    elif kind == "evaluate":
        model.evaluate(x, y, batch_size=shape[0], verbose=0)
    else:
        model.predict(x, batch_size=shape[0], verbose=0)
    model.close()
    return graphs[f"{model.name}, {kind}, batch {shape[0]}"]
