"""Elements of datasets: nests, specs and conversion."""

__all__: list[str] = []
