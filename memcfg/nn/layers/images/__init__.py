"""Layers that crop, resize and vary images: steps of a pipeline, or of a model."""

__all__: list[str] = []
