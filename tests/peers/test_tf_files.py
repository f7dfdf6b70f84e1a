"""Files that TensorFlow writes are read equal here, and the other way round."""

from __future__ import annotations

import gzip
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow", reason="needs TensorFlow: tox run -e parity")

pytestmark = pytest.mark.parity

RECORDS = [b"", b"\0", b"one", b"zeros\0\0", bytes(range(256)) * 40]
COMPRESSIONS = [None, "GZIP", "ZLIB"]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_records(tmp_path, compression):
    theirs, ours = str(tmp_path / "theirs"), str(tmp_path / "ours")
    options = tf.io.TFRecordOptions(compression_type=compression or "")
    for path, writer in (
        (theirs, tf.io.TFRecordWriter(theirs, options)),
        (ours, mc.data.TFRecordWriter(ours, compression)),
    ):
        with writer:
            for record in RECORDS:
                writer.write(record)
        for module in (tf, mc):
            data = module.data.TFRecordDataset(path, compression)
            found = data.as_numpy_iterator()
            assert [bytes(record) for record in found] == RECORDS
    if compression is None:
        with open(theirs, "rb") as one, open(ours, "rb") as other:
            assert one.read() == other.read()


@pytest.mark.parametrize("reads", [None, 1, 2, 3, 5])
def test_the_order_of_several_files(tmp_path, reads):
    paths = [str(tmp_path / f"{n}") for n in range(4)]
    for n, path in enumerate(paths):
        with mc.data.TFRecordWriter(path) as writer:
            for k in range(n + 2):
                writer.write(f"{n}-{k}".encode())
    theirs, ours = (
        list(
            module.data.TFRecordDataset(
                paths, num_parallel_reads=reads
            ).as_numpy_iterator()
        )
        for module in (tf, mc)
    )
    assert theirs == ours


def test_a_damaged_file(tmp_path):
    path = str(tmp_path / "file")
    with mc.data.TFRecordWriter(path) as writer:
        for record in RECORDS:
            writer.write(record)
    with open(path, "rb") as file:
        data = file.read()
    for place in range(90):
        with open(path, "wb") as file:
            file.write(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        found = []
        for module in (tf, mc):
            before = []
            with pytest.raises((tf.errors.DataLossError, mc.errors.FormatError)):
                before.extend(
                    map(bytes, module.data.TFRecordDataset(path).as_numpy_iterator())
                )
            found.append(before)
        assert found[0] == found[1], place


FEATURES = st.dictionaries(
    st.sampled_from("abcde"),
    st.one_of(
        st.tuples(
            st.just("int64"), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6)
        ),
        st.tuples(
            st.just("float32"),
            st.lists(st.floats(width=32, allow_nan=False), max_size=6),
        ),
        st.tuples(
            st.just("string"),
            st.lists(
                st.binary(max_size=4).map(lambda text: text.rstrip(b"\0")), max_size=4
            ),
        ),
    ),
)
LISTS = {
    "int64": ("int64_list", "Int64List"),
    "float32": ("float_list", "FloatList"),
    "string": ("bytes_list", "BytesList"),
}


def example(train, drawn):
    features = {}
    for name, (dtype, values) in drawn.items():
        field, kind = LISTS[dtype]
        part = getattr(train, kind)(value=values)
        features[name] = train.Feature(**{field: part})
    return train.Example(features=train.Features(feature=features))


@given(st.lists(FEATURES, min_size=1, max_size=3))
@settings(deadline=None)
def test_examples(drawn):
    for features in drawn:
        theirs = example(tf.train, features).SerializeToString()
        ours = example(mc.data, features).SerializeToString()
        assert tf.train.Example.FromString(ours) == tf.train.Example.FromString(theirs)
        specs = {n: dtype for n, (dtype, _) in features.items()}
        if not specs:
            continue
        for data in (theirs, ours):
            one = tf.io.parse_single_example(
                data, {n: tf.io.VarLenFeature(dtype) for n, dtype in specs.items()}
            )
            other = mc.data.parse_single_example(
                data, {n: mc.data.VarLenFeature(dtype) for n, dtype in specs.items()}
            )
            for name, dtype in specs.items():
                assert one[name].values.numpy().tolist() == other[name].tolist()
                size = len(features[name][1])
                if size:
                    fixed = [
                        np.asarray(
                            module.parse_single_example(
                                data, {name: module.FixedLenFeature([size], dtype)}
                            )[name]
                        ).tolist()
                        for module in (tf.io, mc.data)
                    ]
                    assert fixed[0] == fixed[1]
    dtypes = {}
    for features in drawn:
        for name, (dtype, _) in features.items():
            dtypes.setdefault(name, dtype)
    batch = [
        example(
            tf.train, {n: f for n, f in each.items() if dtypes[n] == f[0]}
        ).SerializeToString()
        for each in drawn
    ]
    if not dtypes:
        return
    one = tf.io.parse_example(
        batch, {n: tf.io.VarLenFeature(dtype) for n, dtype in dtypes.items()}
    )
    other = mc.data.parse_example(
        np.array(batch),
        {n: mc.data.VarLenFeature(dtype) for n, dtype in dtypes.items()},
    )
    for name in dtypes:
        dense = tf.sparse.to_dense(one[name]).numpy()
        assert dense.shape == other[name].shape
        assert dense.tolist() == other[name].tolist()


SEQUENCES = [[1.5, 2.0, 3.0, 4.0], [], [5.0, 6.0]]


def test_fixed_features_defaults_and_sequences():
    batch = [
        example(
            mc.data,
            {"v": ("float32", values)} | ({"n": ("int64", [7])} if values else {}),
        ).SerializeToString()
        for values in SEQUENCES
    ]
    found = [
        module.parse_example(
            batch,
            {
                "v": module.FixedLenSequenceFeature(
                    [2], "float32", allow_missing=True, default_value=-1.0
                ),
                "n": module.FixedLenFeature([1], "int64", default_value=[3]),
                "s": module.FixedLenFeature([], "string", default_value=b"none"),
            },
        )
        for module in (tf.io, mc.data)
    ]
    for name in "vns":
        theirs, ours = np.asarray(found[0][name]), found[1][name]
        assert theirs.shape == ours.shape
        assert theirs.tolist() == ours.tolist()


@pytest.mark.parametrize(
    "features",
    [
        {"a": ("FixedLenFeature", [2], "int64")},
        {"a": ("FixedLenFeature", [3], "float32")},
        {"b": ("FixedLenFeature", [], "int64")},
        {"a": ("VarLenFeature", "string")},
    ],
)
def test_both_refuse(features):
    data = example(mc.data, {"a": ("int64", [1, 2, 3])}).SerializeToString()
    for module in (tf.io, mc.data):
        wanted = {
            name: getattr(module, kind)(*args)
            for name, (kind, *args) in features.items()
        }
        with pytest.raises((tf.errors.InvalidArgumentError, mc.errors.FormatError)):
            module.parse_single_example(data, wanted)


TEXTS = [
    b"a\r\nb\rc\n\n\r\nlast\r",
    b"",
    b"\n",
    b"x",
    b"\n\n",
    b"x" * 300_000 + b"\ny",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_lines(tmp_path, text, compression):
    path = str(tmp_path / "file")
    with open(path, "wb") as file:
        file.write(gzip.compress(text) if compression else text)
    theirs, ours = (
        list(module.data.TextLineDataset(path, compression).as_numpy_iterator())
        for module in (tf, mc)
    )
    assert theirs == ours


@pytest.mark.parametrize("length", [24, 25, 26, 3, 0])
@pytest.mark.parametrize("compression", [None, "GZIP"])
@pytest.mark.parametrize("sizes", [(4, None, None), (5, 2, 3), (25, 0, 0), (1, 1, 2)])
def test_records_of_one_length(tmp_path, length, compression, sizes):
    path = str(tmp_path / "file")
    data = bytes(range(length))
    with open(path, "wb") as file:
        file.write(gzip.compress(data) if compression else data)
    outcomes = []
    for module in (tf, mc):
        found = []
        try:
            found.extend(
                module.data.FixedLengthRecordDataset(
                    path, *sizes, compression_type=compression
                ).as_numpy_iterator()
            )
        except Exception:
            found = "an error"
        outcomes.append(found)
    assert outcomes[0] == outcomes[1]


DTYPES = ("int32", "int64", "float32", "float64", "string")


def written(row):
    return [(np.asarray(x).dtype.kind, repr(np.asarray(x).tolist())) for x in row]


CELLS = st.one_of(
    st.integers(-(2**40), 2**40).map(str),
    st.sampled_from(
        ["", " 1", "NA", "1.5", "-0", "+7", "1e3", "nan", '"8"', '""', '"a,b"', "x"]
    ),
    st.text('ab",\n\r 1', max_size=4),
)


@given(
    st.lists(st.lists(CELLS, min_size=1, max_size=3), max_size=4),
    st.lists(
        st.sampled_from([*DTYPES, 5, 2.5, "d"]),
        min_size=1,
        max_size=3,
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "header": st.booleans(),
            "use_quote_delim": st.booleans(),
            "na_value": st.sampled_from(["", "NA", "x"]),
            "field_delim": st.sampled_from([",", ";"]),
        },
    ),
)
@settings(deadline=None)
def test_csv(tmp_path_factory, table, defaults, options):
    path = str(tmp_path_factory.mktemp("csv") / "file")
    delimiter = options.get("field_delim", ",")
    with open(path, "w", newline="") as file:
        file.write("".join(delimiter.join(row) + "\n" for row in table))
    outcomes = []
    for module in (tf, mc):
        kinds = [
            tf.as_dtype(each) if module is tf and each in DTYPES else each
            for each in defaults
        ]
        found = []
        try:
            data = module.data.experimental.CsvDataset(path, kinds, **options)
            found.extend(map(written, data.as_numpy_iterator()))
        except Exception:
            found.append("an error")
        outcomes.append(found)
    assert outcomes[0] == outcomes[1]


@given(
    st.integers(0, 20),
    st.tuples(
        st.integers(1, 6),
        st.none() | st.integers(1, 8),
        st.integers(1, 4),
        st.booleans(),
    ),
)
@settings(deadline=None)
def test_windows(count, arguments):
    found = []
    for module in (tf, mc):
        data = module.data.Dataset.range(count).window(*arguments)
        numbers = [[int(n) for n in window] for window in data]
        found.append((numbers, int(data.cardinality())))
    assert found[0] == found[1]


def test_windows_of_nests():
    nest = {"x": np.arange(7.0), "y": np.arange(7)}
    found = []
    for module in (tf, mc):
        data = module.data.Dataset.from_tensor_slices(nest).window(3, 2)
        found.append(
            [
                {
                    key: [float(n) for n in each[key].as_numpy_iterator()]
                    for key in sorted(each)
                }
                for each in data
            ]
        )
    assert found[0] == found[1]


@pytest.mark.parametrize("seed", [None, 0, 7])
def test_names_of_files(tmp_path, seed):
    for name in ("b", "a", ".hidden", "c.txt", "d.txt"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "e.txt").touch()
    for pattern in ("*", "*.txt", "[ab]", "*/*", "?"):
        found = []
        for module in (tf, mc):
            data = module.data.Dataset.list_files(
                f"{tmp_path}/{pattern}", shuffle=seed is not None, seed=seed
            )
            found.append(
                [
                    [
                        name if isinstance(name, str) else name.decode()
                        for name in data.as_numpy_iterator()
                    ]
                    for _ in range(3)
                ]
            )
        assert found[0] == found[1], pattern
    for module in (tf, mc):
        with pytest.raises((tf.errors.InvalidArgumentError, FileNotFoundError)):
            module.data.Dataset.list_files(f"{tmp_path}/none*")


TABLES = {
    "plain": "a,b,c,d\n1,2.5,x,7\n2,,y,3000000000\n3,1e39,,\n4,0.5,z,5\n",
    "text": "name,value\nann,1\n,\nbob,2.5\n",
    "quotes": 'x,y\n"1","a, b"\n"2","c""d"\n',
}


def columns(batch):
    return {
        name: (value.dtype.kind.replace("O", "S"), value.tolist())
        for name, value in batch.items()
    }


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": False, "num_epochs": 1},
        {"shuffle": False, "num_epochs": 2},
        {"shuffle_seed": 3, "num_epochs": 3, "shuffle_buffer_size": 3},
        {"shuffle": False},
        {"shuffle": False, "num_epochs": 1, "select_columns": [1]},
        {"shuffle": False, "num_epochs": 1, "num_rows_for_inference": 1},
        {"shuffle": False, "num_epochs": 1, "num_parallel_reads": 2},
    ],
)
def test_columns_by_name(tmp_path, table, options):
    for number in range(2):
        with open(tmp_path / f"{number}.csv", "w") as file:
            file.write(TABLES[table])
    outcomes = []
    for module in (tf, mc):
        found = []
        try:
            data = module.data.experimental.make_csv_dataset(
                f"{tmp_path}/*.csv", 3, **options
            )
            batches = data.take(4).as_numpy_iterator()
            found.extend(map(columns, batches))
            if module is mc:
                batches.close()  # waits for its thread
        except Exception:
            found.append("an error")
        outcomes.append(found)
    assert outcomes[0] == outcomes[1]
