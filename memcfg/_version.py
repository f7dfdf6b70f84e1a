"""The version, in the one place that the build reads it from."""

from __future__ import annotations

__version__ = "0.1.0"
