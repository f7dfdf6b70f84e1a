"""`share` over networks of the zoo, training and inference: near the bytes in use.

The order is the plan's own; the most bytes in use at one of its ops are a bound that no
placement of that order is below. They are counted here, from actions, tensors and ops.
"""

from __future__ import annotations

import statistics
from dataclasses import replace

from internals import graph_of_predict
from networks import zoo_model
from training_graphs import chain

from memcfg.plan import Alias, Alloc, Compute, Free, lower_bound, share, validate
from memcfg.units import align_up

NETWORKS = {
    "resnet50": {},
    "mobilenet": {},
    "unet": {"input_shape": (256, 256, 3), "padding": "same"},
    "vgg16": {},
    "vgg19": {},
    "segnet": {},
    "fcn8": {},
    "densenet121": {},
    "bert_encoder": {"layers": 4},
    "lstm_lm": {},
}
BATCH = 4
MOST = 1.02


def graphs(name, arguments):
    """Trace a step of training and a prediction."""
    model = zoo_model(name, **arguments)
    try:
        predict = graph_of_predict(model, BATCH)
        return {"training": model.graph(BATCH), "inference": predict}
    finally:
        model.close()


def live_bytes(graph, plan):
    """The most bytes in use while an op runs: buffers, each once, and its scratch."""
    held = {}  # by tensor: what its buffer takes, or 0 where another has it
    most = current = 0
    for action in plan.actions:
        match action:
            case Alloc(tensor):
                held[tensor] = align_up(graph.tensors[tensor].nbytes, plan.alignment)
                current += held[tensor]
            case Alias(output, source):  # the buffer is the output's from now on
                held[output], held[source] = held[source], 0
            case Free(tensor):
                current -= held.pop(tensor)
            case Compute(op, _, scratch):
                own = 0 if scratch is None else graph.ops[op].scratch_bytes
                most = max(most, current + align_up(own, plan.alignment))
            case _:
                raise AssertionError(action)
    return most


def test_the_peak_is_at_most_two_percent_above_the_live_bytes():
    ratios, lines = {"training": [], "inference": []}, []
    for name, arguments in NETWORKS.items():
        for kind, graph in graphs(name, arguments).items():
            plan = share()(graph)
            validate(graph, plan)
            live = live_bytes(graph, plan)
            assert lower_bound(graph) <= live <= plan.peak_bytes
            ratios[kind].append(plan.peak_bytes / live)
            lines.append(f"{name:14} {kind:10} {plan.peak_bytes / live:.4f}")
    for kind, found in ratios.items():
        lines.append(f"median         {kind:10} {statistics.median(found):.4f}")
    print("\n".join(lines))
    assert len(ratios["training"]) == len(ratios["inference"]) == len(NETWORKS)
    for kind, found in ratios.items():
        assert statistics.median(found) <= MOST, (kind, lines)
        assert max(found) <= 1.1, (kind, lines)


def test_the_count_is_that_of_a_schedule_by_hand():
    """A buffer that an output has taken over counts once."""
    graph = chain(3, nbytes=64, reads="both", in_place=True)
    tensors = (*graph.tensors[:-1], replace(graph.tensors[-1], nbytes=257))
    wider = replace(graph, tensors=tensors)
    # x0 to x3 and the gradient of x3, whose buffer those of x2, x1 and x0 take over.
    assert live_bytes(graph, share()(graph)) == 5 * 64
    # The last needs five lines, of its own, when x2 and x3 are gone.
    assert live_bytes(wider, share()(wider)) == 3 * 64 + 5 * 64
    ops = (*graph.ops[:-1], replace(graph.ops[-1], scratch_bytes=257))
    scratched = replace(graph, ops=ops)
    assert live_bytes(scratched, share()(scratched)) == 3 * 64 + 5 * 64
