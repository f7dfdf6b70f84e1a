"""The library that reads and writes ONNX's protobuf."""

from __future__ import annotations

from typing import Any

from memcfg.errors import MissingDependencyError

__all__ = ["the_library"]


def the_library() -> Any:
    """Return onnx; MissingDependencyError with advice if it is not installed."""
    try:
        import onnx
        import onnx.inliner
    except ImportError as error:
        raise MissingDependencyError(
            "ONNX files are read and written by onnx: pip install memcfg[onnx]"
        ) from error
    return onnx
