"""The zoo's MobileNet is Keras's: its lists of weights give its outputs."""

from __future__ import annotations

import numpy as np
import pytest
from beside_keras import MARKS, keras

import memcfg as mc

pytestmark = MARKS


@pytest.mark.parametrize(("side", "alpha"), [(64, 1.0), (65, 0.25)])
def test_mobilenet_is_kerass(side, alpha):
    shape = (side, side, 3)
    theirs = keras.applications.MobileNet(
        shape, alpha, weights=None, classes=6, classifier_activation=None
    )
    ours = mc.models.mobilenet(shape, 6, alpha)
    assert [w.shape for w in ours.weights] == [w.shape for w in theirs.weights]
    assert [w.name for w in ours.weights] == [w.name for w in theirs.weights]
    rng = np.random.default_rng(4)
    weights = [
        rng.uniform(0.5, 1.5, w.shape) if w.ndim == 1 else rng.normal(0, 0.3, w.shape)
        for w in theirs.get_weights()
    ]
    x = rng.normal(size=(2, *shape)).astype(np.float32)
    outputs = []
    for model in (ours, theirs):
        model.set_weights(weights)
        outputs.append(model.predict(x, verbose=0))
    ours.close()
    scale = np.abs(outputs[1]).max()
    np.testing.assert_allclose(*outputs, rtol=1e-4, atol=1e-4 * scale)


def test_mobilenet_has_as_many_parameters():
    theirs = keras.applications.MobileNet(weights=None)
    assert mc.models.mobilenet().count_params() == theirs.count_params() == 4_253_864
