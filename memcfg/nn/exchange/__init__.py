"""Objects and models in Keras's form: configurations, JSON and files."""

from __future__ import annotations

__all__: list[str] = []
