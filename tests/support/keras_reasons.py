"""Why a test of Keras's does not pass: what memcfg does not have, or does otherwise."""

from __future__ import annotations

import json
import re
from pathlib import Path

NAMES = json.loads(Path(__file__).with_name("keras_names.json").read_text())
_PUBLIC = {name for room in NAMES.values() if isinstance(room, dict) for name in room}

SKIPPED = "skipped by Keras for such a backend"
OTHER = "another behaviour"

# What a test needs that memcfg documents as absent, in the order of the search.
ABSENT = {
    "JAX, TensorFlow, PyTorch or Grain": (
        r"^AbsentError: (jax|tensorflow|torch|grain|flax|orbax)|module_utils|'torch'"
    ),
    "sparse or ragged tensors": r"sparse|ragged|Ragged",
    "quantization": (
        r"quantiz|gptq|awq|_from_(mixed|float)|float8|Quantiz|AbsMax|int4|int8"
    ),
    "LoRA": r"lora",
    "other dtypes than float32 and int32": (
        r"symbolic tensors in|weights in|dtype must be|a dtype policy is|\bfloat16|"
        r"uint8|integers are int32|classes are int32|must be float32|[Dd]ata type '|"
        r"AutocastScope|dtype_policies|complex"
    ),
    "another default of data_format": r"another default of data_format",
    "serialization and files": (
        r"saving|model's file name|object_scope|to_json|load_own_variables|"
        r"ends? in '\.memcfg'|legacy"
    ),
    "an argument that is refused": (
        r"does not support the Keras argument|is not supported|supports data_format|"
        r"must be None|must be True, got False|must be False, got True|must be left out"
    ),
    "samples without axes": r"known lengths and no batch, .*; got \(\)$",
    "lengths that are unknown": (
        r"known lengths|must be positive, got -1|are unknown or do not give|"
        r"must be given: (shapes|edges) are static"
    ),
    "a state without a batch size": r"needs a fixed batch size",
    "the batch as an axis of an op": (
        r"include the batch|is the batch|is the batch and|; axis 0|the batch in both|"
        r"and the batch|of samples\b"
    ),
    "values of tensors while tracing": r"has no values?\b|has no truth value",
    "a model that prepares data": r"computes on arrays, not in a model",
}
_ATTRIBUTE = re.compile(r"has no attribute '(\w+)'")
_NAME = re.compile(r"^AbsentError: ([\w.]+)")
_OF_IMAGES = re.compile(r"ops\.image\.[a-z_]+$")  # functions of keras.ops.image
_INTEGERS = re.compile(
    r"floats, not int32|and bfloat16, not int32|float32, got.* int32"
)
_OF_TESTS = re.compile(r"\w+\.test_\w+\.<locals>\.")  # names that say nothing


def reason_of(text):
    """Return the reason for an error, and whether it is that something is absent."""
    text = _OF_TESTS.sub("", text)
    for reason, pattern in ABSENT.items():
        if re.search(pattern, text):
            return reason, True
    if "unlike Keras's" in text:
        return "an attribute that is absent", True
    if found := _ATTRIBUTE.search(text):
        private = found[1].startswith("_")
        return ("Keras's private names", True) if private else ("an attribute", False)
    if "Invalid backend" in text:  # the module begins with the class of one
        return "Keras's private names", True
    if found := _NAME.search(text):
        public = found[1].split(".")[-1] in _PUBLIC or _OF_IMAGES.match(found[1])
        return ("a name that is absent" if public else "Keras's private names"), True
    if _INTEGERS.search(text):
        return "arithmetic of integers", False
    if text.startswith("AssertionError"):
        return "another result", False
    return OTHER, False
