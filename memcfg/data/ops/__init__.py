"""The steps of a pipeline, one noun a module."""

__all__: list[str] = []
