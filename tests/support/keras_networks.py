"""Keras's applications, without values of weights unless they are asked for."""

from __future__ import annotations

import random
from contextlib import nullcontext

import keras
from keras.src.applications import nasnet

# Keras refuses the constructor of this one with PyTorch; what that calls works.
_MOBILE = {
    "penultimate_filters": 1056,
    "num_blocks": 4,
    "stem_block_filters": 32,
    "skip_reduction": False,
    "filter_multiplier": 2,
    "default_size": 224,
    "name": "nasnet_mobile",
}
CONSTRUCTORS = [name for name in dir(keras.applications) if name[0].isupper()]


def theirs(name, *args, valued=False, **options):
    """Return a network of Keras's; its weights have values if it is `valued`."""
    make = getattr(keras.applications, name)
    if name == "NASNetMobile":
        make, options = nasnet.NASNet, {**_MOBILE, **options}
    keras.backend.clear_session()
    random.seed(0)  # set_random_seed would seed TensorFlow's datasets, too
    with nullcontext() if valued else keras.device("meta"):
        return make(*args, **options)
