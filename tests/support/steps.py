"""Datasets whose elements tests make, and passes over datasets."""

from __future__ import annotations

import numpy as np
from internals import Node

from memcfg.data import INFINITE_CARDINALITY, Dataset, DatasetIterator


class Items(Node):
    """Elements one by one, never as rows.

    Parameters
    ----------
    items : sequence
        Elements. A callable is called for the element, an exception is raised.
    endless : bool
        Whether they begin anew at the end, for ever.
    """

    name = "items"

    def __init__(self, items, endless=False):
        self.items = items
        self.endless = endless
        self.begun = 0
        self.pulled = 0

    inputs = ()
    element_spec = None
    is_probed = False

    @property
    def cardinality(self):
        return INFINITE_CARDINALITY if self.endless else len(self.items)

    @property
    def dataset(self):
        return Dataset(self)

    def elements(self, run):
        self.begun += 1
        return self._elements()

    def _elements(self):
        while True:
            for item in self.items:
                self.pulled += 1
                if isinstance(item, BaseException):
                    raise item
                yield item() if callable(item) else item
            if not self.endless:
                return


def numbers(count):
    """int64 scalars, one by one."""
    return Items([np.int64(number) for number in range(count)])


def passing(dataset, resource=None):
    """Begin a pass, with arrays from a resource of the test's own."""
    return DatasetIterator(dataset._node, dataset.options(), resource)


def listed(dataset, resource=None):
    """Make a pass, and list Python's values."""
    with passing(dataset, resource) as elements:
        return [element.tolist() for element in elements]
