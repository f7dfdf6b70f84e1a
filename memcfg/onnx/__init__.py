"""ONNX files: graphs written as such, and checked nodes and arrays read from them.

`Model.export` traces a model for `emit`, and `memcfg.nn.models.from_onnx` makes layers
of what `read_file` returns. Layers are out of scope here.
"""

from memcfg.onnx._emission import RULES, emit, exported_by
from memcfg.onnx._onnx_reading import Held, OnnxGraph, OnnxInput, OnnxNode, read_file
from memcfg.onnx._onnx_writing import OPSET, write_file
from memcfg.onnx._rounded_products import quantize, quantized_inputs
from memcfg.onnx._symbolic_lengths import Length, fit
from memcfg.onnx._traced_graph import Traces

__all__ = [
    "OPSET",
    "RULES",
    "Held",
    "Length",
    "OnnxGraph",
    "OnnxInput",
    "OnnxNode",
    "Traces",
    "emit",
    "exported_by",
    "fit",
    "quantize",
    "quantized_inputs",
    "read_file",
    "write_file",
]
