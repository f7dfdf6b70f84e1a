"""The steps of a pipeline."""

__all__: list[str] = []
