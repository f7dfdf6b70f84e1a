"""Collectives as ops of graphs, on two ranks that are threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import memcfg as mc
from memcfg import ops
from memcfg.errors import GraphError, KernelError
from memcfg.graph import Builder
from memcfg.runtime import Executor

RANKS = 2


def built(group, append):
    """Return a graph of ops that `append` adds, with the inputs a and b."""
    builder = Builder("collectives")
    a = builder.tensor("a", (3,), "float32", role="input")
    b = builder.tensor("b", (2, 2), "float32", role="input")
    first = {"shape": (1,), "value": 0.0, "dtype": "float32"}
    (token,) = builder.apply("fill", (), first)
    of = {"group": group, "ranks": RANKS, "work_bytes": 0}
    return builder.build(keep=append(builder, token, a, b, of))


def results(append, policy=None):
    """Run a graph on each rank and return what it keeps, by rank."""
    group = mc.parallel.in_process_group(RANKS, timeout=20.0)

    def call(communicator):
        name = f"test/{communicator.rank}"
        ops.add_group(name, communicator)
        graph = built(name, append)
        device = mc.config.logical_device("/CPU:0")
        executor = Executor(device, name=name)
        executor.load({"": graph}, policy or mc.plan.auto(), {})
        a = np.arange(3, dtype=np.float32) + 10 * communicator.rank
        b = np.arange(4, dtype=np.float32).reshape(2, 2) - communicator.rank
        with executor.lock.step():
            executor.feed("", "a")[...] = a
            executor.feed("", "b")[...] = b
            executor.run("")
            return [
                np.array(executor.fetch("", graph.tensors[each].name))
                for each in graph.keep
            ]

    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(call, group))


def test_several_tensors_are_summed_by_one_op():
    def append(builder, token, a, b, of):
        return builder.apply("all_reduce", (token, a, b), of)[1:]

    for a, b in results(append):
        assert a.tolist() == [10, 12, 14]
        assert b.tolist() == [[-1, 1], [3, 5]]


def test_encoded_sums_are_those_of_values_of_one_magnitude():
    def append(builder, token, a, b, of):
        (size,) = builder.apply("sign", (a,))  # rank 0 has 0, 1, 1, rank 1 has 1, 1, 1
        (sign,) = builder.apply("sign", (b,))
        encoded = of | {"encoded": True}
        return builder.apply("all_reduce", (token, size, sign), encoded)[1:]

    for a, b in results(append):
        assert a.tolist() == [1, 2, 2]
        assert b.tolist() == [[-1, 1], [2, 2]]


def test_a_tensor_that_is_read_again_keeps_its_value():
    def append(builder, token, a, b, of):
        _, total = builder.apply("all_reduce", (token, a), of)
        return builder.apply("subtract", (total, a))

    for rank, (rest,) in enumerate(results(append)):
        other = 1 - rank
        assert rest.tolist() == [10 * other, 1 + 10 * other, 2 + 10 * other]


def test_parts_of_a_sum_are_gathered_to_the_sum():
    def append(builder, token, a, b, of):
        token, part = builder.apply("reduce_scatter", (token, a), of)
        assert builder.shape(part) == (2,)
        _, whole = builder.apply("all_gather", (token, part), of | {"shape": (3,)})
        return [part, whole]

    parts, wholes = zip(*results(append), strict=True)
    assert [each.tolist() for each in parts] == [[10, 12], [14, 0]]
    assert [each.tolist() for each in wholes] == [[10, 12, 14]] * 2


@pytest.mark.parametrize("given", ["a", "b"])
def test_a_part_of_a_sum_is_what_a_scattered_sum_gives(given):
    def append(builder, token, a, b, of):
        tensor = {"a": a, "b": b}[given]
        token, scattered = builder.apply("reduce_scatter", (token, tensor), of)
        _, whole = builder.apply("all_reduce", (token, tensor), of)
        place = {"rank": int(of["group"][-1]), "ranks": RANKS}
        return [scattered, *builder.apply("part", (whole,), place)]

    for scattered, part in results(append):
        assert scattered.tolist() == part.tolist()


def test_one_rank_gives_its_values_to_all():
    def append(builder, token, a, b, of):
        return builder.apply("broadcast", (token, a), of | {"root": 1})[1:]

    assert [each.tolist() for (each,) in results(append)] == [[10, 11, 12]] * 2


@pytest.mark.parametrize(
    ("kind", "inputs", "attributes", "words"),
    [
        ("all_reduce", ("a", "a"), {}, "the first input is a token"),
        ("all_reduce", ("token",), {}, "1 to 64 tensors, not 0"),
        ("broadcast", ("token", "a"), {"root": 2}, "there is no rank 2 of 2"),
        ("all_gather", ("token", "a"), {"shape": (3,)}, r"parts of \(3,\) are \(2,\)"),
        ("reduce_scatter", ("token", "half"), {}, "not bfloat16"),
        ("all_reduce", ("token", "n"), {"encoded": True}, "no encoding of int32"),
        ("part", ("a",), {"rank": 2}, "there is no rank 2 of 2"),
    ],
)
def test_operands_that_no_rank_could_use_are_refused(kind, inputs, attributes, words):
    def append(builder, token, a, b, of):
        known = {"token": token, "a": a, "half": builder.cast(a, "bfloat16")}
        known["n"] = builder.cast(a, "int32")
        builder.apply(kind, [known[each] for each in inputs], of | attributes)
        return []

    with pytest.raises(GraphError, match=words):
        built("none", append)


def test_a_group_that_is_gone_is_an_error_of_the_step():
    with pytest.raises(KernelError, match="no group of ranks 'gone'"):
        ops.group_of("gone")
