"""What an element is: nests, specs, conversion, and arrays of batches."""

__all__: list[str] = []
