"""What to do where memory does not suffice, in a sentence."""

from __future__ import annotations

__all__ = ["larger_limit_or"]


def larger_limit_or(
    batch_size: int | None, *others: str, first: str = "raise the limit"
) -> str:
    """Return the advice to raise a limit, lower the batch size, or do something else.

    One sample cannot be fewer; None is a batch whose size is not known.
    """
    ways = [first, *(["lower the batch size"] if batch_size != 1 else []), *others]
    if len(ways) > 2:
        text = f"{', '.join(ways[:-1])}, or {ways[-1]}."
    else:
        text = f"{' or '.join(ways)}."
    return text[0].upper() + text[1:]
