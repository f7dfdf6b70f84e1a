"""Lengths of axes that depend on symbols, such as the size of the batch.

A network is traced at several values of each symbol, and what differs between the
traces is solved for: a length is a constant, or a multiple of a product of symbols plus
a constant, as are those of all layers of `memcfg.nn`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from memcfg.errors import GraphError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Length", "Number", "Symbols", "fit", "is_number"]


class Length(NamedTuple):
    """A length that is not the same for all runs: factor * product(symbols) + term.

    Parameters
    ----------
    factor : int
        The factor.
    symbols : tuple of str
        The names of what is multiplied, such as ``batch``.
    term : int
        What is added.
    """

    factor: int
    symbols: tuple[str, ...]
    term: int

    def times(self, by: int) -> Length:
        """Return the product with a number.

        Parameters
        ----------
        by : int
            The number.

        Returns
        -------
        Length
            The product.
        """
        return Length(self.factor * by, self.symbols, self.term * by)

    def plus(self, term: int) -> Length:
        """Return the sum with a number.

        Parameters
        ----------
        term : int
            The number.

        Returns
        -------
        Length
            The sum.
        """
        return self._replace(term=self.term + term)


Number: TypeAlias = int | Length
Symbols: TypeAlias = Mapping[str, int]


def is_number(value: Any) -> bool:
    """Return whether a value is a number that `fit` may solve for."""
    return isinstance(value, int) and not isinstance(value, bool)


def fit(values: Sequence[Any], settings: Sequence[Symbols]) -> Any:
    """Return what traces at several settings have in common, with lengths solved for.

    Parameters
    ----------
    values : sequence
        What each trace has; tuples and mappings are fitted by element.
    settings : sequence of mapping of str to int
        The value of each symbol in each trace.

    Returns
    -------
    object
        The value that all have, with a `Length` where integers differ.

    Raises
    ------
    GraphError
        If values differ in another way than lengths do.
    """
    first = values[0]
    if all(type(each) is type(first) and each == first for each in values):
        return first
    if all(isinstance(each, dict) and each.keys() == first.keys() for each in values):
        return {key: fit([each[key] for each in values], settings) for key in first}
    are_lists = all(isinstance(each, list | tuple) for each in values)
    if are_lists and len({len(each) for each in values}) == 1:
        return tuple(fit(each, settings) for each in zip(*values, strict=True))
    if all(map(is_number, values)):
        found = _solve(values, settings)
        if found is not None:
            return found
    shown = ", ".join(str(each)[:40] for each in values[:2])
    raise GraphError(f"has {shown} for {dict(settings[0])} and {dict(settings[1])}")


def _solve(values: Sequence[int], settings: Sequence[Symbols]) -> Length | None:
    names = list(settings[0])
    for count in range(1, len(names) + 1):
        for symbols in combinations(names, count):
            products = [prod(each[name] for name in symbols) for each in settings]
            place = next(
                (i for i, each in enumerate(products) if each != products[0]), None
            )
            if place is None:
                continue
            factor, rest = divmod(
                values[place] - values[0], products[place] - products[0]
            )
            term = values[0] - factor * products[0]
            if not rest and all(
                factor * product + term == value
                for product, value in zip(products, values, strict=True)
            ):
                return Length(factor, symbols, term)
    return None
