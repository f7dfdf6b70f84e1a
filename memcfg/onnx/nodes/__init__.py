"""Functions that write the ONNX nodes of ops, a family of ops in each module."""

__all__: list[str] = []
