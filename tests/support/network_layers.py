"""What networks consist of: classes, names and weights of layers, here and in Keras."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

RECORD = Path(__file__).with_name("keras_networks.json")
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def described(model):
    """Return the class, the name and the shapes of weights of each layer, in order.

    A name that was made for a layer without weights depends on others, and is left out.
    """
    rows = []
    for layer in model.layers:
        kind = type(layer).__name__
        shapes = [tuple(each.shape) for each in layer.weights]
        automatic = f"{_WORDS.sub('_', kind).lower()}(_\\d+)?"
        made = not shapes and re.fullmatch(automatic, layer.name)
        rows.append((kind, None if made else layer.name, shapes))
    return rows


def record(model):
    """Return what of it is kept in a file."""
    text = json.dumps(described(model)).encode()
    return {
        "name": model.name,
        "parameters": model.count_params(),
        "layers": len(model.layers),
        "weights": len(model.weights),
        "digest": hashlib.sha256(text).hexdigest()[:16],
    }
