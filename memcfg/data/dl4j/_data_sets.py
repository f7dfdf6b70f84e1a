"""Batches as DL4J has them: features, labels, and masks of both.

Owns what each array stands for. Refuses what is done to all of them alike, which is
`Examples`'.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from memcfg.data.dl4j._example_arrays import Array, Arrays, checked
from memcfg.data.dl4j._examples import Examples

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    import numpy.typing as npt

__all__ = ["DataSet", "MultiDataSet"]

_ROLES = ("features", "labels", "features_mask", "labels_mask")
_GROUPS = ("features", "labels", "features_masks", "labels_masks")


class DataSet(Examples):
    """Examples with their labels.

    Its arrays may be written to, but not replaced: what changes a data set makes
    another one.

    Parameters
    ----------
    features : array_like
        What a model reads, shape ``(n, ...)``. An array is taken as it is, uncopied.
    labels : array_like, optional
        What it is to say, shape ``(n, ...)``.
    features_mask : array_like, optional
        Which steps of the features count, shape ``(n, ...)``.
    labels_mask : array_like, optional
        Which steps of the labels count, shape ``(n, ...)``.

    Raises
    ------
    TypeError
        If an array is masked or of objects.
    ValueError
        If it is a scalar or ragged, or first axes differ, or a mask masks nothing.

    Notes
    -----
    DL4J's methods change a data set where it is; here `detach`, `migrate` and `shuffle`
    return another, so that who keeps a data set never finds it changed by who was given
    it.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> data = mc.data.DataSet(np.ones((10, 3)), np.arange(10))
    >>> train, test = data.split_test_and_train(0.7)
    >>> train.num_examples, test.labels
    (7, array([7, 8, 9]))
    """

    def __init__(
        self,
        features: npt.ArrayLike,
        labels: npt.ArrayLike | None = None,
        features_mask: npt.ArrayLike | None = None,
        labels_mask: npt.ArrayLike | None = None,
    ) -> None:
        first = checked(features, "features")
        given = (labels, features_mask, labels_mask)
        if labels is None and labels_mask is not None:
            raise ValueError("labels_mask masks no labels")
        self._arrays = (
            first,
            *(
                None if value is None else checked(value, name, len(first))
                for name, value in zip(_ROLES[1:], given, strict=True)
            ),
        )

    @property
    def features(self) -> Array:
        """What a model reads, shape ``(n, ...)``."""
        return cast("Array", self._arrays[0])

    @property
    def labels(self) -> Array | None:
        """What it is to say, shape ``(n, ...)``."""
        return self._arrays[1]

    @property
    def features_mask(self) -> Array | None:
        """Which steps of the features count, shape ``(n, ...)``."""
        return self._arrays[2]

    @property
    def labels_mask(self) -> Array | None:
        """Which steps of the labels count, shape ``(n, ...)``."""
        return self._arrays[3]

    def _with(self, arrays: Sequence[Array | None]) -> Self:
        made = object.__new__(type(self))
        made._arrays = tuple(arrays)
        return made

    def _names(self) -> list[str]:
        return list(_ROLES)

    @classmethod
    def _restored(cls, arrays: Mapping[str, Array]) -> Self:
        if not set(arrays) <= set(_ROLES):
            raise ValueError("there are other names")
        return cls(**arrays)


class MultiDataSet(Examples):
    """Examples with several arrays of features, of labels, or of both.

    Parameters
    ----------
    features : array_like, or list or tuple of them
        What a model reads, each of shape ``(n, ...)``; at least one. An array alone is
        a list of one. Arrays are taken as they are, uncopied.
    labels : array_like, or list or tuple of them, optional
        What it is to say, each of shape ``(n, ...)``.
    features_masks : list or tuple of (array_like or None), optional
        Which steps of each of the features count.
    labels_masks : list or tuple of (array_like or None), optional
        Which steps of each of the labels count.

    Raises
    ------
    TypeError
        If an array is masked or of objects, or masks are no list or tuple.
    ValueError
        If an array is a scalar or ragged, first axes differ, there are no features, or
        more or fewer masks than arrays.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> data = mc.data.MultiDataSet([np.ones((4, 3)), np.zeros((4, 2))], np.arange(4))
    >>> data.num_examples, len(data.features), data.features_masks
    (4, 2, (None, None))
    """

    def __init__(
        self,
        features: Any,
        labels: Any = (),
        features_masks: Sequence[npt.ArrayLike | None] | None = None,
        labels_masks: Sequence[npt.ArrayLike | None] | None = None,
    ) -> None:
        groups = [_listed(features), _listed(() if labels is None else labels)]
        if not groups[0]:
            raise ValueError("a data set needs features")
        given = (features_masks, labels_masks)
        for masks, of, name in zip(given, tuple(groups), _GROUPS[2:], strict=True):
            groups.append(_masks(masks, len(of), name))
        self._sizes = tuple(map(len, groups))
        examples = len(checked(groups[0][0], "features[0]"))
        self._arrays = tuple(
            None if value is None else checked(value, name, examples)
            for name, value in zip(self._names(), chain(*groups), strict=True)
        )

    @property
    def features(self) -> tuple[Array, ...]:
        """What a model reads, each of shape ``(n, ...)``."""
        return cast("tuple[Array, ...]", self._group(0))

    @property
    def labels(self) -> tuple[Array, ...]:
        """What it is to say, each of shape ``(n, ...)``."""
        return cast("tuple[Array, ...]", self._group(1))

    @property
    def features_masks(self) -> Arrays:
        """Which steps of each of the features count; None: all."""
        return self._group(2)

    @property
    def labels_masks(self) -> Arrays:
        """Which steps of each of the labels count; None: all."""
        return self._group(3)

    def _group(self, number: int) -> Arrays:
        start = sum(self._sizes[:number])
        return self._arrays[start : start + self._sizes[number]]

    def _with(self, arrays: Sequence[Array | None]) -> Self:
        made = object.__new__(type(self))
        made._arrays, made._sizes = tuple(arrays), self._sizes
        return made

    def _names(self) -> list[str]:
        return [
            f"{group}[{place}]"
            for group, size in zip(_GROUPS, self._sizes, strict=True)
            for place in range(size)
        ]

    @classmethod
    def _restored(cls, arrays: Mapping[str, Array]) -> Self:
        groups: dict[str, dict[int, Array]] = {name: {} for name in _GROUPS}
        for name, array in arrays.items():
            group, _, place = name.removesuffix("]").partition("[")
            groups[group][int(place)] = array
        features, labels = (
            [groups[name][place] for place in range(len(groups[name]))]
            for name in _GROUPS[:2]
        )
        masks = [
            [groups[name].pop(place, None) for place in range(len(of))]
            for name, of in zip(_GROUPS[2:], (features, labels), strict=True)
        ]
        if groups[_GROUPS[2]] or groups[_GROUPS[3]]:
            raise ValueError("it has masks of nothing")
        return cls(features, labels, *masks)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _masks(value: Any, wanted: int, name: str) -> list[Any]:
    if value is None:
        return [None] * wanted
    if not isinstance(value, list | tuple):
        raise TypeError(f"{name} is a list of masks, one of each array, not {value!r}")
    if len(value) != wanted:
        raise ValueError(f"{name} has {len(value)} masks for {wanted} arrays")
    return list(value)
