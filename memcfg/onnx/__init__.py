"""ONNX files: graphs written as such, and checked nodes and arrays read from them.

`Model.export` traces a model for `emit`, and `memcfg.nn.models.from_onnx` makes layers
of what `read_file` returns. Layers are out of scope here.
"""

from memcfg.onnx._export import RULES, emit, exported_by
from memcfg.onnx._quantization import quantize, quantized_inputs
from memcfg.onnx._reading import Held, OnnxGraph, OnnxInput, OnnxNode, read_file
from memcfg.onnx._traced import Traces
from memcfg.onnx._writing import OPSET, write_file

__all__ = [
    "OPSET",
    "RULES",
    "Held",
    "OnnxGraph",
    "OnnxInput",
    "OnnxNode",
    "Traces",
    "emit",
    "exported_by",
    "quantize",
    "quantized_inputs",
    "read_file",
    "write_file",
]
