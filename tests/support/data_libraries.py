"""memcfg and TensorFlow, as programs over datasets see them."""

from __future__ import annotations

import os

import numpy as np


class _Library:
    """What both have in common.

    Parameters
    ----------
    folder : path
        For files; each program has its own.
    """

    def __init__(self, folder):
        self._folder = folder
        self._programs = 0

    def begin(self):
        """Begin a program."""
        self._programs += 1

    def path(self, name):
        return os.path.join(self._folder, f"{self._programs}-{name}")


class Memcfg(_Library):
    """memcfg's datasets and NumPy's functions."""

    def __init__(self, folder):
        super().__init__(folder)
        from memcfg import data

        self._data = data
        self.Dataset = data.Dataset

    def function(self, function):
        return function

    def spec(self, shape, dtype):
        return self._data.TensorSpec(shape, str if dtype == "string" else dtype)

    def stack(self, arrays):
        return np.stack(arrays)

    def cast(self, array, dtype):
        return np.asarray(array).astype(dtype)

    def sum(self, array):
        return np.sum(array, dtype=array.dtype)

    def equal(self, array, number):
        return array == number

    def range(self, count):
        return np.arange(count, dtype=count.dtype)

    def refuse(self, array, number):
        if array == number:
            raise ValueError(f"no {number}")
        return array

    def elements(self, dataset):
        return dataset.as_numpy_iterator()

    def is_known(self, dataset):
        return not dataset._node.is_probed

    def spec_words(self, dataset):
        try:
            return _spec_words(dataset.element_spec)
        except ValueError:
            if self.is_known(dataset):
                raise
            return None


class TensorFlow(_Library):
    """tf.data's datasets and TensorFlow's functions."""

    def __init__(self, folder):
        super().__init__(folder)
        import tensorflow as tf

        self._tf = tf
        self.Dataset = tf.data.Dataset

    def function(self, function):
        return self._tf.autograph.experimental.do_not_convert(function)

    def spec(self, shape, dtype):
        return self._tf.TensorSpec(shape, dtype)

    def stack(self, arrays):
        return self._tf.stack(arrays)

    def cast(self, array, dtype):
        return self._tf.cast(array, dtype)

    def sum(self, array):
        return self._tf.reduce_sum(array)

    def equal(self, array, number):
        return self._tf.equal(array, self._tf.cast(number, array.dtype))

    def range(self, count):
        return self._tf.range(count)

    def refuse(self, array, number):
        check = self._tf.debugging.assert_none_equal(
            array, self._tf.cast(number, array.dtype)
        )
        with self._tf.control_dependencies([check]):
            return self._tf.identity(array)

    def elements(self, dataset):
        """What TensorFlow adds on its own is left away: it reads ahead."""
        options = self._tf.data.Options()
        options.autotune.enabled = False
        options.experimental_optimization.inject_prefetch = False
        options.experimental_optimization.map_parallelization = False
        return dataset.with_options(options).as_numpy_iterator()

    def is_known(self, dataset):
        return True

    def spec_words(self, dataset):
        return _spec_words(dataset.element_spec)


def _spec_words(spec):
    if isinstance(spec, tuple):
        name = "point" if hasattr(spec, "_fields") else "tuple"
        return {name: [_spec_words(child) for child in spec]}
    if isinstance(spec, dict):
        return {"dict": {key: _spec_words(spec[key]) for key in sorted(spec)}}
    dtype, shape = spec.dtype, spec.shape
    text = getattr(dtype, "kind", "") in tuple("SU") or dtype.name == "string"
    if hasattr(shape, "rank"):
        shape = None if shape.rank is None else shape.as_list()
    shape = None if shape is None else list(shape)
    return ["string" if text else dtype.name, shape]
