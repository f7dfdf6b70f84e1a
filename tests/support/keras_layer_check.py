"""The checks of a layer that Keras's tests ask for, over `memcfg.nn`."""

from __future__ import annotations

from typing import Any

import numpy as np
from keras_stand_in import (
    AbsentError,
    as_array,
    as_dtype,
    as_tensor,
    is_shape,
    leaves_of,
    map_shapes,
    map_structure,
)

import memcfg as mc


class LayerCheck:
    """Checks a layer as the arguments of Keras's `run_layer_test` say.

    Layers of memcfg's hold a seed and no generators, so those are not counted.
    """

    def __init__(self, layer_cls, init_kwargs, **wanted):
        if wanted.get("input_sparse") or wanted.get("input_ragged"):
            raise AbsentError("sparse and ragged tensors")
        self.kind, self.arguments = layer_cls, init_kwargs or {}
        self.wanted = wanted
        self.options = wanted.get("call_kwargs") or {}
        shape, data = wanted.get("input_shape"), wanted.get("input_data")
        if data is None and shape is not None:
            dtypes = wanted.get("input_dtype") or map_shapes(lambda _: "float32", shape)
            data = _draw(shape, dtypes)
        self.data: Any = None if data is None else map_structure(as_tensor, data)
        if self.data is not None:
            self.shapes = shape or map_structure(np.shape, self.data)

    def make(self, **more):
        """Return a new layer."""
        return self.kind(**{**self.arguments, **more})

    def run(self):
        """Check it on shapes, on symbolic tensors, on arrays and in training."""
        masking = self.wanted.get("supports_masking")
        if masking is not None:
            assert self.make().supports_masking == masking
        if self.data is None:
            return
        self.builds()
        self.connects()
        self.computes()
        if self.wanted.get("run_mixed_precision_check", True):
            self.computes_in_bfloat16()

    def called(self, layer, inputs):
        """Return the result of a call."""
        if isinstance(inputs, dict):
            return layer(**inputs, **self.options)
        return layer(inputs, **self.options)

    def builds(self):
        """Check the weights of a layer that was built for shapes, or needs none."""
        layer = self.make()
        if isinstance(self.shapes, dict):
            layer.build(**self.shapes)
        else:
            layer.build(self.shapes)
        self.has_weights(layer)
        if self.wanted.get("assert_built_after_instantiation"):
            assert self.make().built

    def has_weights(self, layer):
        """Check that a layer is built, and the number of its weights."""
        assert layer.built
        for kind in ("trainable_weights", "non_trainable_weights"):
            wanted = self.wanted.get(f"expected_num_{kind}")
            assert wanted is None or len(getattr(layer, kind)) == wanted

    def connects(self):
        """Check shapes, dtypes, losses and masks of a call on symbolic tensors."""
        layer, inputs = self.make(), map_structure(_input, self.data)
        made = self.called(layer, inputs)
        self.has_weights(layer)
        self.has_shape(made)
        number = self.wanted.get("expected_num_losses")
        if number is not None and not isinstance(inputs, dict):
            assert _losses(mc.nn.Model(inputs, made), self.data) == number
        shape = self.wanted.get("expected_mask_shape")
        if shape is not None:
            assert layer.compute_mask(inputs).shape == tuple(shape)

    def has_shape(self, made):
        """Check the shape and the dtype of a result."""
        shape = self.wanted.get("expected_output_shape")
        if shape is not None:
            found = map_structure(lambda x: tuple(x.shape), made)
            assert _listed(found) == _listed(shape)
        dtype = self.wanted.get("expected_output_dtype")
        if dtype is not None:
            found = [as_dtype(each.dtype) for each in leaves_of(made)]
            assert found == leaves_of(dtype)

    def computes(self):
        """Check the result of a call on arrays, and a step of training."""
        layer = self.make()
        made = self.called(layer, self.data)
        self.has_shape(made)
        wanted = self.wanted.get("expected_output")
        if wanted is not None:
            for pair in zip(leaves_of(wanted), leaves_of(made), strict=True):
                np.testing.assert_allclose(*map(as_array, pair), rtol=1e-6, atol=1e-6)
        if self.wanted.get("run_training_check", True):
            _train(layer, self.data, made)

    def computes_in_bfloat16(self):
        """Check that weights are float32 in the other dtype policy."""
        layer = self.make(dtype="mixed_bfloat16")
        self.called(layer, self.data)
        kinds = {as_dtype(weight.dtype) for weight in layer.weights}
        assert {each for each in kinds if "float" in each} <= {"float32"}


def _train(layer, inputs, outputs):
    """Train a model of a layer for a step."""

    class TestModel(mc.nn.Model):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def call(self, x, training=False):
            return self.layer(x, training=training)

    class TestLoss(mc.nn.Loss):
        def call(self, y_true, y_pred):
            y_pred = mc.nn.ops.cast(y_pred, "float32")
            axes = [*range(1, len(y_pred.shape))]
            return mc.nn.ops.sum(y_pred, axis=axes) if axes else y_pred

    def data():
        while True:
            yield inputs, outputs

    model = TestModel(layer)
    model.compile(optimizer="sgd", loss=TestLoss())
    model.fit(data(), steps_per_epoch=1, verbose=0)


def _losses(model, inputs):
    """Return the number of losses of a model's layers."""
    found = []

    @mc.function
    def call(x):
        y = model(x)
        found.append(len(model.losses))
        return y

    call(inputs)
    return found[0]


def _input(x):
    """Return the symbolic tensor of a batch."""
    return mc.nn.Input(batch_shape=x.shape, dtype=as_dtype(x.dtype))


def _listed(shapes):
    """Return a structure of shapes with lists around them."""
    if is_shape(shapes):
        return tuple(shapes)
    if isinstance(shapes, dict):
        return {key: _listed(each) for key, each in shapes.items()}
    return [_listed(each) for each in shapes]


def _draw(shapes, dtypes):
    """Return numbers from 0 to 3 in a structure of shapes."""
    if is_shape(shapes):
        dtype = dtypes if isinstance(dtypes, str) else "float32"
        return (np.random.default_rng(0).random(shapes) * 3).astype(dtype)
    if isinstance(shapes, dict):
        return {
            key.removesuffix("_shape"): _draw(each, dtypes[key])
            for key, each in shapes.items()
        }
    return type(shapes)(map(_draw, shapes, dtypes))
