"""Layers that make numbers of text and categories: steps of a pipeline of data."""

__all__: list[str] = []
