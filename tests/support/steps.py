"""Steps of pipelines for tests, and passes over steps."""

from __future__ import annotations

import numpy as np

from memcfg.data._options import Options
from memcfg.data.engine._iterator import DatasetIterator
from memcfg.data.ops._node import INFINITE, Node
from memcfg.data.ops._sources import Slices
from memcfg.data.rows._range_rows import range_rows


class Items(Node):
    """Elements one by one, never as rows.

    Parameters
    ----------
    items : sequence
        Elements. A callable is called for the element, an exception is raised.
    endless : bool
        Whether they begin anew at the end, for ever.
    """

    def __init__(self, items, endless=False):
        self.items = items
        self.endless = endless
        self.begun = 0
        self.pulled = 0

    inputs = ()
    element_spec = None

    @property
    def cardinality(self):
        return INFINITE if self.endless else len(self.items)

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


def rows(count):
    """The same as rows."""
    return Slices(range_rows(range(count), np.int64), "range")


def passing(node, resource=None):
    """Begin a pass."""
    return DatasetIterator(node, Options(), resource)


def listed(node, resource=None):
    """Make a pass, and list Python's values."""
    with passing(node, resource) as elements:
        return [element.tolist() for element in elements]
