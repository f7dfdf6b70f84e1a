"""Models made of ONNX graphs: layers for nodes that have weights, ops for the others.

`imported` goes through the nodes; each other module has the functions of some. A value
is a `View` of a symbolic tensor, whose batch comes first whatever its axes are in ONNX,
or a `Known` array.
"""

from memcfg.nn.exchange.imports._importer import IMPORTED, imported

__all__ = ["IMPORTED", "imported"]
