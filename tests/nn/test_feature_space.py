"""Columns of tables as numbers, by plain loops of Python."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import memcfg as mc

layers, Space = mc.nn.layers, mc.nn.utils.FeatureSpace
TABLE = {
    "size": np.array([2.0, 4.0, 6.0, 8.0]),
    "kind": np.array(["b", "a", "b", "c"]),
    "age": np.array([30, 40, 30, 30]),
}
ROWS = [dict(zip(TABLE, row, strict=True)) for row in zip(*TABLE.values(), strict=True)]


def space(**options):
    features = {"size": "float_normalized", "kind": "string_categorical"}
    return Space(features | {"age": "integer_categorical"}, **options)


def wanted(row):
    """Age, kind, size: the most frequent token first, unknown ones before."""
    ages = [row["age"] not in (30, 40), row["age"] == 30, row["age"] == 40]
    kinds = [row["kind"] not in "abc", *(row["kind"] == each for each in "bca")]
    return [*ages, *kinds, (row["size"] - 5) / 5**0.5]


@pytest.mark.parametrize("how", ["table", "rows", "batches"])
def test_tables_datasets_and_rows(how):
    made = space()
    with pytest.raises(ValueError, match="call adapt"):
        made(TABLE)
    rows = mc.data.Dataset.from_tensor_slices(TABLE)
    made.adapt({"table": TABLE, "rows": rows, "batches": rows.batch(3)}[how])
    expected = [wanted(row) for row in ROWS]
    np.testing.assert_allclose(made(TABLE), expected, rtol=1e-6)
    for row, each in zip(rows.map(made), expected, strict=True):
        np.testing.assert_allclose(row, each, rtol=1e-6)
    other = {"size": 5.0, "kind": "z", "age": 99}
    np.testing.assert_allclose(made(other), wanted(other), atol=1e-7)
    again = pickle.loads(pickle.dumps(made))
    np.testing.assert_array_equal(again(TABLE), made(TABLE))
    made.adapt({**TABLE, "size": TABLE["size"] * 2})
    np.testing.assert_allclose(made(TABLE)[:, -1].mean(), -(5**0.5) / 2, rtol=1e-6)


def test_a_dict_of_columns_and_crosses():
    chosen = {
        "size": Space.float_discretized(3, [3.0, 7.0], output_mode="int"),
        "kind": Space.string_hashed(4),
        "own": Space.feature("string", layers.StringLookup(vocabulary=["x"]), "int"),
    }
    made = Space(chosen, "dict", [("kind", "size")], crossing_dim=5)
    table = {**TABLE, "own": ["x", "y", "x", "x"]}
    found = made(table)  # nothing is to be found in data
    assert {name: each.shape for name, each in found.items()} == {
        "kind": (4, 4),
        "own": (4, 1),
        "size": (4, 1),
        "kind_X_size": (4, 5),
    }
    assert found["size"].ravel().tolist() == [0, 1, 1, 2]
    assert found["own"].ravel().tolist() == [1, 0, 1, 1]
    assert (found["kind"].sum(1) == 1).all()
    assert (found["kind"][0] == found["kind"][2]).all()  # b and b
    assert made({k: v[0] for k, v in table.items()})["own"].shape == (1,)


def test_a_model_trains_on_encoded_rows():
    made = space()
    data = mc.data.Dataset.from_tensor_slices((TABLE, TABLE["age"] == 30))
    made.adapt(TABLE)
    data = data.map(lambda row, y: (made(row), np.float32(y))).batch(2)
    model = mc.nn.Sequential([mc.nn.Input((8,)), mc.nn.Dense(1, "sigmoid")])
    model.compile(mc.nn.Adam(0.3), "binary_crossentropy")
    kept = model.fit(data, epochs=20, verbose=0).history["loss"]
    assert kept[-1] < 0.1 < kept[0]
    model.close()


@pytest.mark.parametrize(
    ("call", "error", "told"),
    [
        (lambda: Space({}), ValueError, "must not be empty"),
        (lambda: Space({"a": "floats"}), ValueError, "did you mean|unknown kind"),
        (lambda: Space({"a": "float"}, "list"), ValueError, "unknown output_mode"),
        (lambda: Space({"a": "float"}, crosses=[("a", "b")]), ValueError, "'b', which"),
        (lambda: Space.cross(["a"], 3, "float"), ValueError, "unknown output_mode"),
        (lambda: Space.feature("string", "lookup", "int"), TypeError, "is a layer"),
        (lambda: Space({"a": "float"})({"b": 1.0}), ValueError, "no column 'a'"),
        (lambda: Space({"a": "float"})([1.0]), ValueError, "dict of columns"),
        (
            lambda: Space({"a": "float"})({"a": mc.nn.Input((1,))}),
            TypeError,
            r"Dataset\.map",
        ),
        (
            lambda: Space({"a": Space.integer_hashed(3, "int")})({"a": [1]}),
            ValueError,
            "'a' has integers",
        ),
        (
            lambda: Space({"a": Space.feature("f", layers.Identity(), "one_hot")})(
                {"a": [1.0]}
            ),
            ValueError,
            "to be one_hot",
        ),
        (lambda: Space({"a": "float"}).get_inputs(), AttributeError, "Dataset.map"),
        (lambda: Space({"a": "float"}).save("x"), AttributeError, "pickle"),
    ],
)
def test_what_cannot_be_honoured(call, error, told):
    with pytest.raises(error, match=told):
        call()


def test_a_name_is_that_of_the_layer_that_prepares_a_column():
    kinds = mc.nn.utils.FeatureSpace
    made = [
        *(kinds.float(name="a"), kinds.float_rescaled(name="a")),
        *(kinds.float_normalized(name="a"), kinds.float_discretized(4, name="a")),
        *(kinds.integer_categorical(name="a"), kinds.string_categorical(name="a")),
        *(kinds.string_hashed(4, name="a"), kinds.integer_hashed(4, name="a")),
    ]
    assert {each.preprocessor.name for each in made} == {"a_preprocessor"}
