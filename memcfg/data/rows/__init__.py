"""Data whose elements have numbers: arrays, ranges and files."""

__all__: list[str] = []
