"""Data that can be indexed by row: arrays, ranges and files."""

__all__: list[str] = []
