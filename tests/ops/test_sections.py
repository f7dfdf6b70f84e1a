"""Reads of sections: what the op makes, its order, and products by parts."""

from __future__ import annotations

import gc
import itertools

import numpy as np
import pytest

from memcfg import ops
from memcfg.errors import GraphError, KernelError
from memcfg.graph import Builder, chain_collectives, simplify
from memcfg.ops import Spec, add_source, op_type


class Numbers:
    """Sections of equal numbers."""

    def read_section(self, section, out, work, part=None):
        assert part is None
        work[:] = 0xFF
        out[...] = section

    def read_codes(self, first, count, out):
        out[:] = np.arange(first, first + count)

    def decode_section(self, section, code, out):
        assert code.tolist() == [section]
        out[...] = section


def attributes(section, shape=(2, 3), source="numbers"):
    return {"source": source, "section": section, "shape": shape, "dtype": "float32"}


def test_a_section_is_read_from_the_source_of_its_name():
    source = Numbers()
    add_source("numbers", source)
    kind = op_type("read_section")
    work, out = np.zeros(4, np.float32), np.zeros((2, 3), np.float32)
    specs = kind.infer([Spec((4,), "float32")], attributes(7))
    assert [spec[:2] for spec in specs] == [((4,), "float32"), ((2, 3), "float32")]
    kind.numpy(attributes(7), [work], [work, out])
    np.testing.assert_array_equal(out, np.full((2, 3), 7))
    with pytest.raises(GraphError, match="no scratch of uint8"):
        kind.infer([Spec((4,), "uint8")], attributes(7))
    del source
    gc.collect()
    with pytest.raises(KernelError, match="no source 'numbers': it has been closed"):
        ops.source_of("numbers")


def test_a_product_by_codes_is_that_of_the_sections():
    source = Numbers()
    add_source("numbers", source)
    work, codes = np.zeros(4, np.float32), np.zeros(3, np.uint8)
    made = {"source": "numbers", "section": 5, "sections": 3, "nbytes": 3}
    op_type("read_codes").numpy(made, [work], [work, codes])
    assert codes.tolist() == [5, 6, 7]
    kind = op_type("coded_dense")
    made = {"source": "numbers", "section": 5, "ends": [1, 2, 3], "entries": 1}
    made |= {"columns": 3, "units": 8}
    (spec,) = kind.infer([Spec((2, 4), "float32"), Spec((3,), "uint8")], made)
    assert spec.shape == (2, 8)
    y = np.zeros((2, 8), np.float32)
    kind.numpy(made, [np.ones((2, 4), np.float32), codes], [y])
    np.testing.assert_array_equal(y[0], [20, 20, 20, 24, 24, 24, 28, 28])
    with pytest.raises(GraphError, match="no codes in"):
        kind.infer([Spec((2, 4), "float32"), Spec((2,), "uint8")], made)
    assert source is not None


def reading(columns, transposed=False):
    """Trace a product with a matrix in sections of some columns."""
    b = Builder("reading")
    x = b.tensor("x", (5, 4), "float32", role="input")
    zeros = {"shape": (8,), "value": 0.0, "dtype": "float32"}
    (work,) = b.apply("fill", (), zeros)
    parts = [
        b.apply("read_section", (work,), attributes(i, (4, width)))[1]
        for i, width in enumerate(columns)
    ]
    (whole,) = b.apply("concatenate", parts, {"axis": 1})
    (y,) = b.apply("dense", (x, whole))
    keep = [y, *b.apply("transpose", (whole,), {"axes": (1, 0)})] if transposed else [y]
    return b.build(keep=keep)


def test_products_are_made_part_by_part():
    graph = simplify(reading((3, 3, 2)), lambda _: False, differentiates=False)
    kinds = [op.type for op in graph.ops]
    assert kinds.count("dense") == 3
    assert [op.type for op in graph.ops if "/part" not in op.name][-1] == "concatenate"
    largest = max(graph.tensors, key=lambda tensor: tensor.nbytes)
    assert largest.nbytes <= 5 * 8 * 4
    shapes = [graph.tensors[op.outputs[0]].shape for op in graph.ops]
    assert shapes[-1] == (5, 8)


def test_a_matrix_that_others_read_stays_whole():
    graph = reading((4, 4), transposed=True)
    simplified = simplify(graph, lambda _: False, differentiates=False)
    assert [op.type for op in simplified.ops].count("dense") == 1


def test_reads_have_one_order():
    """That of the scratch that they hand on, in place."""
    graph = chain_collectives(reading((3, 3, 2)))
    reads = [op for op in graph.ops if op.type == "read_section"]
    for before, after in itertools.pairwise(reads):
        assert after.inputs == before.outputs[:1]
        assert after.in_place == ((after.inputs[0], after.outputs[0]),)
