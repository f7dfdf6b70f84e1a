# ruff: noqa: N802, N815, PT009, PT027  (the names are those of unittest)
"""The base class of Keras's tests, over memcfg.

A test may need something that is not to be had, although the rest of it can be judged:
that objects are serialized, or that an error has Keras's words. Such a need is noted in
`NEEDS`, and the test goes on.
"""

from __future__ import annotations

import random
import re
import shutil
import tempfile
from pathlib import Path

import numpy as np
from absl.testing import parameterized
from keras_layer_check import LayerCheck
from keras_stand_in import AbsentError, as_array, as_dtype

import memcfg as mc

NEEDS: list[str] = []  # of the test that runs


_REFUSALS = (TypeError, ValueError, NotImplementedError)  # of what cannot be honoured


class _Raises:
    """Checks that an error is raised; notes another class, or other words."""

    def __init__(self, case, wanted, regex=None):
        self.case, self.wanted, self.regex = case, wanted, regex
        self.exception = None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if error is None:
            self.case.fail(f"{self.wanted} not raised")
        if not isinstance(error, self.wanted):
            several = self.wanted if isinstance(self.wanted, tuple) else (self.wanted,)
            if not isinstance(error, _REFUSALS) or not {*several} & {*_REFUSALS}:
                return False
            NEEDS.append("the class of an error")
        elif self.regex is not None and not re.search(self.regex, str(error)):
            NEEDS.append("the words of an error")
        self.exception = error
        return True


class TestCase(parameterized.TestCase):
    """What the tests of Keras's call, over `memcfg.nn`."""

    maxDiff = None

    def setUp(self):
        """Make what a test draws the same in every run."""
        super().setUp()
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 - the tests use it
        mc.nn.set_random_seed(0)

    def get_temp_dir(self):
        """Return a folder that is removed after the test."""
        folder = tempfile.mkdtemp()
        self.addCleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        return folder

    def convert_to_numpy(self, x):
        """Return an array."""
        return as_array(x)

    def assertAllClose(
        self,
        actual,
        desired,
        atol=1e-6,
        rtol=1e-6,
        tpu_atol=None,
        tpu_rtol=None,
        msg=None,
    ):
        """Check values within tolerances, and shapes."""
        np.testing.assert_allclose(
            as_array(actual), as_array(desired), atol=atol, rtol=rtol, err_msg=msg or ""
        )

    def assertNotAllClose(self, x1, x2, atol=1e-6, rtol=1e-6, msg=None):
        """Check that a value differs."""
        try:
            self.assertAllClose(x1, x2, atol=atol, rtol=rtol)
        except AssertionError:
            return
        raise AssertionError(f"all values are close: {msg or ''}")

    def assertAlmostEqual(self, actual, desired, decimal=3, tpu_decimal=None, msg=None):
        """Check values to some digits after the point."""
        np.testing.assert_almost_equal(
            as_array(actual), as_array(desired), decimal=decimal, err_msg=msg or ""
        )

    def assertAllEqual(self, actual, desired, msg=None):
        """Check that values are equal."""
        np.testing.assert_array_equal(
            as_array(actual), as_array(desired), err_msg=msg or ""
        )

    def assertLen(self, iterable, expected_len, msg=None):
        """Check a length."""
        self.assertEqual(len(iterable), expected_len, msg=msg)

    def assertSparse(self, x, sparse=True):
        """Check that no tensor is wanted to be sparse."""
        if sparse:
            raise AbsentError("sparse and ragged tensors")

    assertRagged = assertSparse

    def assertDType(self, x, dtype, msg=None):
        """Check a dtype."""
        found = as_dtype(x.dtype if hasattr(x, "dtype") else type(x))
        self.assertEqual(found, as_dtype(dtype), msg=msg)

    def assertFileExists(self, path):
        """Check that there is a file."""
        assert Path(path).is_file(), path

    def assertRaises(self, expected_exception, *args, **options):
        """Check that an error is raised."""
        return self.assertRaisesRegex(expected_exception, None, *args, **options)

    def assertRaisesRegex(self, expected_exception, expected_regex, *args, **options):
        """Check that an error is raised; note if its words are not Keras's."""
        raises = _Raises(self, expected_exception, expected_regex)
        if not args:
            return raises
        with raises:
            args[0](*args[1:], **options)
        return None

    def run_class_serialization_test(self, instance, custom_objects=None):
        """Check that an object comes back from its configuration, both ways."""
        cls = type(instance)
        known = mc.nn.utils
        if not hasattr(instance, "get_config") or not hasattr(
            known, "serialize_keras_object"
        ):
            NEEDS.append("serialization")
            return instance
        config = instance.get_config()
        with known.custom_object_scope(custom_objects or {}):
            revived = cls.from_config(config)
        self.assertEqual(_plain(config), _plain(revived.get_config()))
        serialized = known.serialize_keras_object(instance)
        with known.custom_object_scope(custom_objects or {}):
            revived = known.deserialize_keras_object(serialized)
        self.assertEqual(_plain(config), _plain(revived.get_config()))
        self.assertEqual({*dir(instance)}, {*dir(revived)})
        return revived

    def run_layer_test(self, layer_cls, init_kwargs, custom_objects=None, **wanted):
        """Check a layer on shapes, symbolic tensors and arrays, and in training."""
        check = LayerCheck(layer_cls, init_kwargs, **wanted)
        self.run_class_serialization_test(check.make(), custom_objects)
        check.run()


def _plain(config):
    """Return a configuration with its objects as text."""
    if isinstance(config, dict):
        return {key: _plain(each) for key, each in config.items()}
    if isinstance(config, list | tuple):
        return [_plain(each) for each in config]
    if hasattr(config, "get_config"):
        return type(config).__name__, _plain(config.get_config())
    return config.tolist() if isinstance(config, np.ndarray) else config


def _never():
    return False


NAMES = {
    "TestCase": TestCase,
    **dict.fromkeys(
        (
            *("jax_uses_gpu", "jax_uses_tpu", "tensorflow_uses_gpu", "torch_uses_gpu"),
            *("tensorflow_uses_tpu", "uses_gpu", "uses_tpu"),
        ),
        _never,
    ),
}
