"""DL4J's data sets and iterators."""

__all__: list[str] = []
