"""Batches of similar lengths: which elements are together, padding, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memcfg as mc

Dataset, TensorSpec = mc.data.Dataset, mc.data.TensorSpec
SPEC = (TensorSpec((None,), "int64"), TensorSpec((), "int64"))


def rows_of(lengths):
    return [(np.arange(1, n + 1), np.int64(i)) for i, n in enumerate(lengths)]


def dataset_of(lengths, spec=SPEC):
    return Dataset.from_generator(lambda: iter(rows_of(lengths)), output_signature=spec)


def expected(lengths, bounds, sizes, *, drop, boundary):
    """The indices of each batch and its width, by hand."""
    waiting, batches = {}, []
    for index, length in enumerate(lengths):
        bucket = sum(length >= bound for bound in bounds)
        waiting.setdefault(bucket, []).append(index)
        if len(waiting[bucket]) == sizes[bucket]:
            batches.append((bucket, waiting.pop(bucket)))
    if not drop:
        batches += sorted(waiting.items())
    return [
        (row, bounds[k] - 1 if boundary else max(lengths[i] for i in row))
        for k, row in batches
    ]


@given(
    st.lists(st.integers(0, 11), max_size=12),
    st.sampled_from([[4], [2, 7], [3, 5, 12]]),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
)
def test_each_element_is_with_others_of_its_bucket(
    lengths, bounds, size, drop, boundary
):
    sizes = [size + k for k in range(len(bounds) + 1)]
    if boundary:
        lengths = [n for n in lengths if n < bounds[-1]]
    data = dataset_of(lengths).bucket_by_sequence_length(
        lambda row, index: len(row),
        bounds,
        sizes,
        padding_values=(np.int64(-1), None),
        pad_to_bucket_boundary=boundary,
        drop_remainder=drop,
    )
    assert data.element_spec[0].shape == (None, None)
    assert data.cardinality() == mc.data.UNKNOWN_CARDINALITY
    found = list(data)
    wanted = expected(lengths, bounds, sizes, drop=drop, boundary=boundary)
    assert [list(indices) for _, indices in found] == [row for row, _ in wanted]
    for (rows, indices), (_, width) in zip(found, wanted, strict=True):
        assert rows.shape == (len(indices), width)
        for row, index in zip(rows, indices, strict=True):
            own = lengths[index]
            assert list(row) == [*range(1, own + 1), *[-1] * (width - own)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"bucket_boundaries": []}, "must ascend"),
        ({"bucket_boundaries": [5, 5], "bucket_batch_sizes": [1] * 3}, "must ascend"),
        ({"bucket_boundaries": [0]}, "boundary"),
        ({"bucket_batch_sizes": [1]}, "make 2 buckets, and bucket_batch_sizes has 1"),
        ({"no_padding": True, "pad_to_bucket_boundary": True}, "excludes"),
    ],
)
def test_what_cannot_be_is_refused_at_once(words, message):
    given_words = {"bucket_boundaries": [4], "bucket_batch_sizes": [2, 2]} | words
    with pytest.raises(ValueError, match=message):
        dataset_of([1]).bucket_by_sequence_length(
            lambda row, i: len(row), **given_words
        )


@pytest.mark.parametrize(
    ("lengths", "words", "message"),
    [
        ([3, 4], {"pad_to_bucket_boundary": True}, "length 4, .* less than the last"),
        ([1, 2], {"no_padding": True}, "no_padding: component 0 .* shapes"),
        ([1, 3], {"padded_shapes": ([2], [])}, "cannot be padded to"),
    ],
)
def test_what_does_not_fit_is_refused_in_the_pass(lengths, words, message):
    data = dataset_of(lengths).bucket_by_sequence_length(
        lambda row, i: len(row), [4], [2, 2], **words
    )
    with pytest.raises(ValueError, match=message):
        list(data)
