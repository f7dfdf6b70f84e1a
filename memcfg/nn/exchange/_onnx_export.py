"""A model's inference as an ONNX file.

The network is traced at two sizes of the batch, and at two lengths of each axis of any
length: what differs between the traces is what ONNX is told to derive from its inputs.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._caller import outside
from memcfg._checks import flag
from memcfg.errors import GraphError
from memcfg.nn._argument_checks import integer
from memcfg.nn.layers._layer import LENGTHS
from memcfg.nn.training._tracing import (
    ProgramKey,
    TraceSpec,
    input_names,
    trace_plain,
    trace_ranges,
)
from memcfg.onnx import Traces, emit, quantize, quantized_inputs, write_file
from memcfg.plan import auto
from memcfg.runtime import Executor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn._network import Network

__all__ = ["export_onnx"]

_BATCHES = 5, 7  # primes, which no other length is by chance
_CALIBRATED = 32  # samples at a time


def export_onnx(
    model: Any,
    filepath: str | os.PathLike[str],
    *,
    batch_size: int | None,
    lengths: int | Sequence[int] | None,
    external_data: bool | None,
    quantized: str | None,
    calibration_data: Any,
    reduce_range: bool,
) -> None:
    """Write the inference of a built model."""
    model._require_built_in_steps("export")
    if quantized not in (None, "int8"):
        raise ValueError(f"quantize must be None or 'int8', got {quantized!r}")
    if (quantized is None) != (calibration_data is None):
        raise ValueError(
            "quantize='int8' needs calibration_data, samples as predict takes them, "
            "and nothing else does"
        )
    reduce_range = flag(reduce_range, "reduce_range")
    if reduce_range and quantized is None:
        raise ValueError("reduce_range=True needs quantize='int8'")
    path = os.fspath(filepath)
    if not path.endswith(".onnx"):
        raise ValueError(f"the name of an ONNX file ends in '.onnx', got {path!r}")
    network = model._built_network().of(training=False)
    _check(model, network)
    session = model._built_session()
    given = session.lengths(lengths) if lengths is not None else None
    traces = _traces(model.name, network, batch_size, given)
    if any(each.dtype == "bfloat16" for each in traces.graphs[0].tensors):
        warnings.warn(
            f"{model.name!r} computes in bfloat16, and its export in float32",
            RuntimeWarning,
            stacklevel=outside(),
        )
    emitter = emit(traces, session.read)
    if quantized is not None:
        wanted = quantized_inputs(emitter)
        spec = TraceSpec(model.name, network)
        tensors = list(dict.fromkeys(wanted.values()))
        ranges = _ranges(model, spec, given, tensors, calibration_data)
        quantize(emitter, ranges, reduce_range=reduce_range)
    write_file(emitter, path, model.name, external_data=external_data)


def _ranges(
    model: Any,
    spec: TraceSpec,
    lengths: tuple[int, ...] | None,
    tensors: Sequence[int],
    data: Any,
) -> dict[int, tuple[float, float]]:
    """Return the smallest and the largest number of tensors for some samples.

    A program of its own computes them on the model's device, within its limit.
    """
    if not tensors:
        return {}
    session, network = model._built_session(), spec.network
    arrays = model._checked(data)
    found = network.lengths_of([each.shape[1:] for each in arrays])
    if lengths is not None and found != lengths:
        raise ValueError(f"calibration_data has lengths {found}, not {lengths}")
    fixed = network.inputs[0].node.batch_size
    count = len(arrays[0])
    size = min(count, _CALIBRATED) if fixed is None else fixed
    if count < size or not size:
        raise ValueError(f"calibration_data has {count} samples: give {size or 1}")
    key = ProgramKey("predict", size, lengths=found)
    graph, names = trace_ranges(spec, key, tensors)
    reads = [each.name for each in graph.tensors if each.role == "input"]
    executor = Executor(session.executor.device, name=f"{model.name}, calibration")
    low = dict.fromkeys(tensors, np.inf)
    high = dict.fromkeys(tensors, -np.inf)
    try:
        values = {
            each.name: session.read(each.name)
            for each in graph.tensors
            if each.role == "parameter"
        }
        executor.load({"ranges": graph}, auto(), values)
        for begin in [*range(0, count - size, size), count - size]:
            for name, array in zip(input_names("x", len(arrays)), arrays, strict=True):
                if name in reads:
                    executor.feed("ranges", name)[...] = array[begin : begin + size]
            executor.run("ranges")
            for tensor, pair in zip(tensors, names, strict=True):
                most, least = (float(executor.fetch("ranges", each)) for each in pair)
                low[tensor] = min(low[tensor], -least)
                high[tensor] = max(high[tensor], most)
            executor.finish("ranges")
    finally:
        executor.close()
    result = {each: (low[each], high[each]) for each in tensors}
    if not np.isfinite(list(result.values())).all():
        raise ValueError("for calibration_data the model computes NaN or infinity")
    return result


def _check(model: Any, network: Network) -> None:
    """Raise GraphError for what is no part of the graph."""
    for _, steps in network.prepared:
        for layer in steps:
            raise GraphError(
                f"layer {layer.name!r} ({type(layer).__name__}) prepares data before "
                "the step and has no counterpart in ONNX: export a model that starts "
                "behind it"
            )
    for layer in network.layers:
        for _, leaf in layer._leaves():
            if getattr(leaf, "stateful", False):
                raise GraphError(
                    f"layer {leaf.name!r} ({type(leaf).__name__}) keeps a state "
                    "between batches, which an ONNX file does not: it is not exported"
                )


def _traces(
    name: str,
    network: Network,
    batch_size: int | None,
    lengths: tuple[int, ...] | None,
) -> Traces:
    fixed = network.inputs[0].node.batch_size
    batch = fixed if batch_size is None else integer(batch_size, "batch_size")
    if fixed is not None and batch != fixed:
        raise ValueError(f"the model has batches of {fixed}, not of {batch}")
    pair = next(filter(None, (each.node.lengths for each in network.inputs)), LENGTHS)
    refused: GraphError | ValueError | None = None
    # A table of as many steps as there are is not cut, which is another op.
    for stands in (pair, (pair[0], pair[0] + 1), (2, 3)):
        try:
            return _traces_at(name, network, batch, lengths, stands)
        except (GraphError, ValueError) as error:
            refused = refused or error
        if lengths is not None or not network.open_axes:
            break
    assert refused is not None
    raise refused


def _traces_at(
    name: str,
    network: Network,
    batch: int | None,
    lengths: tuple[int, ...] | None,
    pair: tuple[int, int],
) -> Traces:
    """Trace with a pair of lengths that stands for each axis of any length."""
    count = len(network.open_axes)
    names = [f"length_{i}" if i else "length" for i in range(count)]
    varied: dict[str, tuple[int, int]] = {}
    if batch is None:
        varied["batch"] = _BATCHES
    if lengths is None:
        varied |= dict.fromkeys(names, pair)
    settings = [{each: pair[0] for each, pair in varied.items()}]
    if varied:
        settings += [settings[0] | {each: pair[1]} for each, pair in varied.items()]
    if len(varied) > 1:
        settings.append({each: pair[1] for each, pair in varied.items()})
    graphs = []
    for setting in settings:
        known = tuple(setting[each] for each in names) if lengths is None else lengths
        key = ProgramKey("predict", setting.get("batch", batch or 1), lengths=known)
        graph, inputs, outputs = trace_plain(TraceSpec(name, network), key)
        graphs.append(graph)
    taken = _unique(network.takes.names, ())
    given = _unique(network.gives.names, taken)
    return Traces(
        graphs,
        settings,
        dict(zip(inputs, taken, strict=True)),
        tuple(zip(outputs, given, strict=True)),
    )


def _unique(names: Sequence[str], taken: Sequence[str]) -> list[str]:
    """Return names that are neither repeated nor taken."""
    result: list[str] = []
    for name in map(str, names):
        made, number = name, 1
        while made in result or made in taken:
            made, number = f"{name}_{number}", number + 1
        result.append(made)
    return result
