"""Damaged files for every reader, in a process that may not take much memory.

``python damaged_files.py SEED COUNT`` reads COUNT of each kind, and ends with a
traceback where a reader raises what it does not say, changes what it should not, or
needs more memory than the limit. The same seed gives the same files.
"""

from __future__ import annotations

import io
import json
import pickle
import random
import resource
import struct
import sys
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg import compression, memory, nn
from memcfg._core.rows import crc32c
from memcfg.data import DataSet, Dataset
from memcfg.errors import FormatError, GraphError, PlanError, WeightsError
from memcfg.graph import Graph, Op, Tensor
from memcfg.memory import Trace
from memcfg.plan import Plan, read_buffers, share, unchecked_claims, violations

if TYPE_CHECKING:
    from collections.abc import Callable

ROOM = 2**28  # bytes of addresses beyond those that the imports took
EXTREMES = (0, 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)


@dataclass(frozen=True)
class Kind:
    """A reader, bytes that it reads, and what it may raise for others.

    `finish` makes a file of the bytes: with right checksums and lengths, so that damage
    gets past them.
    """

    good: bytes
    read: Callable[[Path], Any]
    errors: tuple[type[Exception], ...] = (FormatError,)
    finish: Callable[[bytes], bytes] = bytes


def main(seed: int, count: int) -> None:
    kinds = make_kinds()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        for kind in kinds.values():
            path.write_bytes(kind.finish(kind.good))
            kind.read(path)  # what is not damaged is read
        size = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, size + ROOM))
        for name, kind in kinds.items():
            draws = random.Random(f"{seed} {name}")
            refused = 0
            for number in range(count):
                path.write_bytes(kind.finish(damaged(kind.good, draws)))
                try:
                    kind.read(path)
                except kind.errors:
                    refused += 1
                except BaseException:
                    print(f"{name}, number {number}: {path.read_bytes()[:2000]!r}")
                    raise
            print(f"{name}: {refused} of {count} refused")


def damaged(data: bytes, draws: random.Random) -> bytes:
    """Change a few bytes, mostly in ways that lengths and structure suffer from."""
    found = bytearray(data)
    for _ in range(draws.choice((1, 1, 1, 2, 5))):
        place = draws.randrange(len(found) + 1)
        length = draws.choice((1, 1, 2, 4, 8, 64))
        match draws.randrange(7):
            case 0:
                del found[place:]
            case 1 if place < len(found):
                found[place] ^= 1 << draws.randrange(8)
            case 2:
                number = draws.choice(EXTREMES) % 256 ** min(length, 8)
                order = draws.choice(("little", "big"))
                found[place : place + length] = number.to_bytes(length, order)
            case 3:
                del found[place : place + length]
            case 4:
                found[place:place] = found[place : place + 8 * length]
            case 5:
                found[place:place] = (
                    draws.choice((b"[", b"(", b"9", b"-")) * 20 * length
                )
            case 6:
                found[place : place + length] = draws.randbytes(length)
    return bytes(found)


def make_kinds() -> dict[str, Kind]:
    graph = small_graph()
    plan = share()(graph)
    documents = (FormatError, GraphError, PlanError)

    def judged(path: Path) -> None:
        read = Plan.from_json(text(path))
        violations(graph, read)
        unchecked_claims(graph, read)

    def planned(path: Path) -> None:
        share()(Graph.from_json(text(path)))

    trace = Trace(
        action=[0, 0, 1, 2],
        address=[64, 128, 64, 0],
        nbytes=[10, 20, 10, 9],
        tags=("", "weights"),
        tag=[0, 1, 0, 0],
        stack=[0, -1, 0, -1],
        stacks=[[("train.py", 3, "step")]],
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        trace.save(path)
        archive = path.read_bytes()
        trace.to_csv(path, overwrite=True)
        log = path.read_bytes()
        DataSet(np.ones((3, 2), np.float32), np.arange(3)).save(path, overwrite=True)
        data_set = path.read_bytes()
        path.unlink()
        list(elements(path))
        cache = path.read_bytes()
        model = nn.Sequential([nn.Input((2,)), nn.Dense(3), nn.Dense(1)])
        path.unlink()
        model.save_weights(path)
        weights = path.read_bytes()
        path = path.with_suffix(".mcz")
        model.set_weights([np.round(each) for each in model.get_weights()])
        compression.CompressedModel(model).save(path)
        compressed = path.read_bytes()
    exported = onnx_file()
    names = json.dumps({"tags": trace.tags, "stacks": trace.stacks}).encode()
    snapshot = {"device_traces": [[], snapshot_events()], "segments": [segment()]}
    return {
        "graph": Kind(graph.to_json().encode(), planned, documents),
        "plan": Kind(plan.to_json().encode(), judged, documents),
        "buffers": Kind(
            b"id,lower,upper,size\na,0,3,5\nb,1,4,6\n",
            lambda path: read_buffers(text(path)),
        ),
        "log": Kind(log, Trace.from_csv),
        "trace": Kind(archive, Trace.load),
        "names of a trace": Kind(
            names, Trace.load, finish=lambda data: with_entry(archive, "names", data)
        ),
        "array of a trace": Kind(
            entry_of(archive, "address"),
            Trace.load,
            finish=lambda data: packed(archive, "address", data),
        ),
        "snapshot": Kind(
            pickle.dumps(snapshot, 4),
            lambda path: Trace.from_snapshot(path, device=1),
            (FormatError, ValueError),  # there may be no device 1
        ),
        "snapshot of protocol 2": Kind(
            pickle.dumps(snapshot, 2),
            lambda path: Trace.from_snapshot(path, device=1),
            (FormatError, ValueError),
        ),
        "replay": Kind(
            archive,
            lambda path: memory.replay(path, memory.Pool(limit="1MiB")),
        ),
        "data set": Kind(data_set, DataSet.load),
        "cache": Kind(cache, lambda path: list(elements(path))),
        "form of a cache": Kind(
            form_of(cache),
            lambda path: list(elements(path)),
            finish=lambda data: with_form(cache, data),
        ),
        "weights": Kind(weights, unchanged(model), (WeightsError,)),
        "onnx": Kind(
            exported,
            nn.models.from_onnx,
            (FormatError, NotImplementedError, ValueError),
        ),
        "header of weights": Kind(
            weights[8 : 8 + int.from_bytes(weights[:8], "little")],
            unchanged(model),
            (WeightsError,),
            finish=lambda data: with_header(weights, data),
        ),
        "compressed model": Kind(
            compressed[16:],
            lambda path: compression.load(path).model(),
            (FormatError, WeightsError),
            finish=lambda data: compressed[:16] + data,
        ),
        "header and codes of a compressed model": Kind(
            unpacked_model(compressed),
            lambda path: compression.load(path).model(),
            (FormatError, WeightsError, TypeError, ValueError, MemoryError),
            finish=packed_model,
        ),
    }


def text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise FormatError(str(error)) from error


def small_graph() -> Graph:
    tensors = (
        Tensor("x", 64, "input"),
        Tensor("w", 64, "parameter", (16,), "float32"),
        Tensor("y", 128, "activation"),
        Tensor("z", 64, "output"),
    )
    ops = (
        Op("f", "f", "forward", (0, 1), (2,), seconds=0.5),
        Op("g", "g", "forward", (2,), (3,), scratch_bytes=64),
    )
    return Graph("g", tensors, ops, (3,))


def elements(path: Path) -> Any:
    return Dataset.from_tensor_slices(np.arange(6.0).reshape(3, 2)).cache(path)


def snapshot_events() -> list[dict[str, Any]]:
    frames = [{"filename": "train.py", "line": 3, "name": "step"}]
    return [
        {"action": "alloc", "addr": 4096, "size": 9, "time_us": 5, "frames": frames},
        {"action": "free_completed", "addr": 4096, "size": 9, "time_us": 6},
        {"action": "oom", "size": 2**40, "user_metadata": "x", "frames": frames},
    ]


def segment() -> dict[str, Any]:
    blocks = [{"size": 512, "requested_size": 500, "state": "active_allocated"}]
    return {"device": 1, "address": 2**40, "total_size": 512, "blocks": blocks}


def onnx_file() -> bytes:
    """A convolution, a recurrent layer and attention in ONNX's format."""
    x = nn.Input((4, 4, 2))
    y = nn.layers.Reshape((8, 3))(nn.Conv2D(3, 3, padding="same")(x)[:, :2, :4])
    y = nn.LSTM(3, return_sequences=True)(y)
    y = nn.LayerNormalization()(nn.MultiHeadAttention(1, 2)(y, y))
    model = nn.Model(x, nn.Dense(2, "gelu")(nn.Flatten()(y)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        model.export(path)
        return path.read_bytes()


def entry_of(archive: bytes, name: str) -> bytes:
    with zipfile.ZipFile(io.BytesIO(archive)) as entries:
        return entries.read(f"{name}.npy")


def with_entry(archive: bytes, name: str, text: bytes) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.frombuffer(text, np.uint8))
    return packed(archive, name, stream.getvalue())


def packed(archive: bytes, name: str, data: bytes) -> bytes:
    """Put another entry into an archive, with its right checksum."""
    stream = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(archive)) as old,
        zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for each in old.namelist():
            new.writestr(each, data if each == f"{name}.npy" else old.read(each))
    return stream.getvalue()


_FORM = len(b"memcfg.cache/1\nF")


def form_of(cache: bytes) -> bytes:
    (length,) = struct.unpack_from("<I", cache, _FORM)
    return cache[_FORM + 4 : _FORM + 4 + length]


def with_form(cache: bytes, form: bytes) -> bytes:
    rest = cache[_FORM + 8 + len(form_of(cache)) :]
    head = struct.pack("<I", len(form)) + form + struct.pack("<I", zlib.crc32(form))
    return cache[:_FORM] + head + rest


def with_header(weights: bytes, header: bytes) -> bytes:
    length = int.from_bytes(weights[:8], "little")
    return len(header).to_bytes(8, "little") + header + weights[8 + length :]


_MARK = b"\n--\n"


def unpacked_model(data: bytes) -> bytes:
    """Return the header's text and the sections of a compressed model."""
    length = int.from_bytes(data[8:12], "little")
    return zlib.decompress(data[16 : 16 + length]) + _MARK + data[16 + length :]


def packed_model(data: bytes) -> bytes:
    """Put them into a file, with right checksums where there is something to check."""
    text, _, sections = data.partition(_MARK)
    try:
        document = json.loads(text)
        offset = 0
        for weight in document["weights"]:
            for section in weight["sections"]:
                end = min(offset + int(section[0]), len(sections))
                section[1] = crc32c(sections[offset:end])
                offset = end
        text = json.dumps(document).encode()
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
        pass
    packed = zlib.compress(text)
    head = len(packed).to_bytes(4, "little") + crc32c(packed).to_bytes(4, "little")
    return b"\x89mcz\r\n\x1a\n" + head + packed + sections


def unchanged(model: nn.Sequential) -> Callable[[Path], None]:
    """Load weights, of which none may be another one after an error."""
    before = model.get_weights()

    def read(path: Path) -> None:
        try:
            model.load_weights(path)
        except WeightsError:
            for weight, was in zip(model.get_weights(), before, strict=True):
                assert weight.tobytes() == was.tobytes()
            raise
        model.set_weights(before)

    return read


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
