"""Files that state what they do not have are refused in words."""

from __future__ import annotations

import os

import numpy as np
import pytest
from onnx_runs import onnx

from memcfg.errors import FormatError
from memcfg.onnx import read_file

helper, tensor = onnx.helper, onnx.helper.make_tensor
FLOAT = onnx.TensorProto.FLOAT


def model(nodes, arrays=(), shape=("N", 3), opset=20, outputs=("y",), **more):
    """A model whose input x has a shape."""
    x = helper.make_tensor_value_info("x", FLOAT, shape)
    ends = [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "g", [x], ends, initializer=list(arrays))
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], **more
    )


def node(kind, inputs, outputs, **attributes):
    return helper.make_node(kind, inputs, outputs, name=f"the {kind}", **attributes)


RELU = node("Relu", ["x"], ["y"])


def external(location, offset="0", length="12", shape=(3,)):
    made = onnx.TensorProto(name="w", dims=shape, data_type=FLOAT)
    made.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        made.external_data.add(key=key, value=value)
    return made


def test_what_a_file_has_is_read(tmp_path):
    weight = tensor("w", FLOAT, (3,), np.arange(3, dtype="f4").tobytes(), raw=True)
    made = model([node("Add", ["x", "w"], ["z"]), node("Relu", ["z"], ["y"])], [weight])
    path = tmp_path / "m.onnx"
    onnx.save(made, path)
    for source in (path, str(path), path.read_bytes(), made):
        graph = read_file(source)
        assert [each.type for each in graph.nodes] == ["Add", "Relu"]
        assert graph.inputs[0] == ("x", "float32", ("N", 3))
        assert graph.opset == 20
        np.testing.assert_array_equal(graph.arrays["w"].read(), [0, 1, 2])
        assert graph.readers["z"] == [1]


def test_arrays_of_other_files_are_read_in_place(tmp_path):
    (tmp_path / "w.bin").write_bytes(bytes(64) + np.arange(3, dtype="<f4").tobytes())
    made = model([node("Add", ["x", "w"], ["y"])], [external("w.bin", "64")])
    path = tmp_path / "m.onnx"
    path.write_bytes(made.SerializeToString())
    np.testing.assert_array_equal(read_file(path).arrays["w"].read(), [0, 1, 2])
    with pytest.raises(FormatError, match="read the file by path"):
        read_file(path.read_bytes())


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (external("../w.bin"), "no file of its folder"),
        (external("/etc/passwd"), "no file of its folder"),
        (external("link"), "no file of its folder"),
        (external("absent"), "no file of its folder"),
        (external(""), "no file of its folder"),
        (external("w.bin", "60"), "needs 12 bytes"),
        (external("w.bin", "-4"), "needs 12 bytes"),
        (external("w.bin", "x"), "begins at no number"),
        (external("w.bin", shape=(2**40,)), "needs 4398046511104 bytes"),
        (external("w.bin", length="8"), "needs 12 bytes"),
    ],
)
def test_arrays_outside_of_the_folder_or_too_large_are_refused(
    tmp_path, array, message
):
    folder = tmp_path / "folder"
    folder.mkdir()
    for path in (tmp_path / "w.bin", folder / "w.bin"):
        path.write_bytes(bytes(64))
    os.symlink(tmp_path / "w.bin", folder / "link")
    path = folder / "m.onnx"
    path.write_bytes(model([RELU], [array]).SerializeToString())
    with pytest.raises(FormatError, match=message):
        read_file(path)


def stated(dims, data=b"", kind=FLOAT):
    return onnx.TensorProto(name="w", dims=dims, data_type=kind, raw_data=data)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (model([RELU], [stated([2**60])]), "needs 4611686018427387904 bytes"),
        (model([RELU], [stated([-1], bytes(4))]), "negative length"),
        (model([RELU], [stated([2], bytes(4))]), "needs 8 bytes or numbers, and has 4"),
        (model([RELU], [stated([1], bytes(4))] * 2), "two arrays are named 'w'"),
        (model([node("Relu", ["z"], ["y"])]), "reads 'z' before it is made"),
        (
            model([node("Add", ["x", "y"], ["z"]), node("Relu", ["z"], ["y"])]),
            "reads 'y' before it is made",
        ),
        (model([RELU, RELU]), "makes 'y', which there is"),
        (model([RELU], outputs=("q",)), "no node makes the output 'q'"),
        (model([RELU], outputs=()), "no outputs"),
        (b"\x08not protobuf", "not an ONNX file"),
        (b"", "is not an ONNX file: it states no opset"),
    ],
)
def test_damaged_models_are_refused(made, message):
    with pytest.raises(FormatError, match=message):
        read_file(made)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (model([RELU], opset=6), "has the opset 6"),
        (model([RELU], opset=99), "has the opset 99"),
        (
            model(
                [helper.make_node("Gelu", ["x"], ["y"], "g", domain="com.microsoft")]
            ),
            r"node 'g' \(Gelu\) is of the domain 'com.microsoft'",
        ),
        (
            model([RELU], [stated([2], bytes(2), onnx.TensorProto.FLOAT8E4M3FN)]),
            "dtype FLOAT8E4M3FN",
        ),
        (
            model([node("If", ["x"], ["y"], then_branch=model([RELU]).graph)]),
            "attribute 'then_branch', a graph",
        ),
        *(
            (
                model([node(kind, ["x"], ["y"], body=model([RELU]).graph)]),
                rf"\({kind}\) has an attribute 'body', a graph, which is not supported",
            )
            for kind in ("Loop", "Scan")
        ),
    ],
)
def test_what_is_not_supported_is_said(made, message):
    with pytest.raises(NotImplementedError, match=message):
        read_file(made)


def test_functions_of_a_model_are_expanded():
    body = helper.make_function(
        "own",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 20)],
    )
    made = model(
        [helper.make_node("Twice", ["x"], ["y"], domain="own")], functions=[body]
    )
    made.opset_import.append(helper.make_opsetid("own", 1))
    assert [each.type for each in read_file(made).nodes] == ["Add"]


def test_other_objects_are_refused():
    with pytest.raises(TypeError, match="not int"):
        read_file(3)
