"""Ranks that are processes of MPI, and sum arrays where they lie."""

from __future__ import annotations

import os
import pickle
import signal
from functools import lru_cache
from hashlib import blake2b
from importlib import import_module
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memcfg.errors import CommunicationError, MissingDependencyError
from memcfg.ops import EncodedTotals
from memcfg.ops.collectives import MOST_TENSORS
from memcfg.parallel.encoding._encoded_round import encoded_rounds, round_words
from memcfg.parallel.processes._mpi_link import (
    COLLECTIVES,
    EXCHANGES,
    Call,
    Link,
    end_all_at_exit,
    wait_while,
)
from memcfg.parallel.processes._rank_parts import round_bytes, rounds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memcfg.parallel.processes._rank_parts import Message, Piece

__all__ = ["MpiCommunicator", "mpi_communicator", "mpi_size"]

_SOON_SECONDS = 10.0  # in which ranks answer that have raised an error

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

# The number of processes, as launchers tell it: that of MPICH and those derived from
# it, Open MPI's, MVAPICH's, and Slurm's with PMIx.
_SIZES = (
    ("PMI_SIZE", "PMI_RANK"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("SLURM_STEP_NUM_TASKS", "PMIX_RANK"),
)


def mpi_size() -> int:
    """Return how many processes a launcher of MPI has started, this one included.

    MPI itself is not loaded.

    Returns
    -------
    int
        1 if no launcher has started this process.
    """
    for size, rank in _SIZES:
        if rank in os.environ and os.environ.get(size, "").isdecimal():
            return int(os.environ[size])
    return 1


def mpi_communicator(comm: Any = None, *, timeout: float = 300.0) -> MpiCommunicator:
    """Return this process's communicator of a group of processes of MPI.

    All processes of `comm` call this together, in their main threads. ``mpiexec -n 4
    python train.py`` starts four. Launchers end all processes when one is killed; where
    they do not, the others get an error by the timeout. So they do when one hangs.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, optional
        Whose processes are the ranks; it is duplicated. The default is
        ``MPI.COMM_WORLD``.
    timeout : float
        Seconds that a rank waits for others, in a collective and at exit. It must be
        longer than ranks differ in the time of a step, compilation and checkpoints
        included.

    Returns
    -------
    MpiCommunicator
        To be closed. Its collectives may be called from any thread, one at a time.

    Raises
    ------
    MissingDependencyError
        If mpi4py, or a library of MPI, is not installed.
    CommunicationError
        If MPI was initialized without support for threads, or the other processes do
        not call this within the timeout.
    ValueError
        If the timeout is not positive.
    """
    if not timeout > 0:
        raise ValueError(f"timeout is positive seconds, not {timeout}")
    mpi = _mpi()
    if mpi.Query_thread() < mpi.THREAD_MULTIPLE:
        raise CommunicationError(
            "MPI was initialized without MPI_THREAD_MULTIPLE, and collectives run in "
            'threads: set mpi4py.rc.thread_level = "multiple" before mpi4py.MPI is '
            "imported, or use a library of MPI that has it"
        )
    comm = mpi.COMM_WORLD if comm is None else comm
    _survive_others()
    copy = _duplicated(mpi, comm, timeout)
    return MpiCommunicator(Link(mpi, copy, timeout))


def _duplicated(mpi: Any, comm: Any, timeout: float) -> Any:
    """Duplicate a communicator of MPI, when all of its processes do."""
    copy, request = comm.Idup()
    if not wait_while(lambda: not request.Test(), timeout):
        end_all_at_exit(comm)
        raise CommunicationError(
            f"not all processes called mpi_communicator within {timeout:g} s"
        )
    copy.Set_errhandler(mpi.ERRORS_RETURN)
    return copy


def _survive_others() -> None:
    """Keep this process when another is gone.

    MPICH's launcher tells it by SIGUSR1 if it does not end all processes, and the
    library has no handler. One of the program stays.
    """
    if (
        "PMI_RANK" in os.environ
        and current_thread() is main_thread()
        and signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    ):
        signal.signal(signal.SIGUSR1, lambda number, frame: None)


def _mpi() -> Any:
    try:
        return import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:  # no mpi4py, or no library for it
        reason = str(error).partition("\n")[0]
        raise MissingDependencyError(
            "Ranks over MPI need mpi4py and a library of MPI: pip install memcfg[mpi] "
            f"({reason})."
        ) from None


class MpiCommunicator:
    """The collectives of one process of MPI; see `memcfg.ops.Communicator`.

    Each rank sums a part of the arrays, which all send it, and sends it to all. Long
    pieces are sent and received where they lie.

    Attributes
    ----------
    rank : int
        The number of this process, from 0.
    size : int
        The number of processes.
    encoded_totals : EncodedTotals
        What `all_reduce_encoded` has encoded and sent so far.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self.rank = link.rank
        self.size = link.size
        self.encoded_totals = EncodedTotals()

    @property
    def rate(self) -> None:
        """Return None: plans assume a nominal network."""
        return

    def work_bytes(self, collective: str, nbytes: int, item_bytes: int) -> int:
        """Return the scratch: what a round receives from and sends to each other rank.

        Parameters
        ----------
        collective : str
            ``all_reduce``, ``all_reduce_encoded``, ``reduce_scatter``, ``all_gather``
            or ``broadcast``.
        nbytes : int
            Bytes of whole arrays, in all.
        item_bytes : int
            Bytes of an element, of the largest if they differ.

        Returns
        -------
        int
            Bytes, the same on all ranks.
        """
        others = self.size - 1
        slots = {
            "all_reduce": 2 * others,  # to receive, and to pack
            "all_reduce_encoded": self.size,  # a round's encodings of all ranks
            "reduce_scatter": max(0, others - 1),  # one is received in the result
            "broadcast": 0,
            "all_gather": 0,
        }[collective]
        return slots * self._slot_bytes(collective, nbytes, item_bytes)

    def _slot_bytes(self, collective: str, nbytes: int, item_bytes: int) -> int:
        if collective == "all_reduce_encoded":
            return 4 * round_words(nbytes // item_bytes, MOST_TENSORS)
        return round_bytes(nbytes, self.size, item_bytes)

    def fail(self, reason: str) -> None:
        """Make the collectives of all ranks raise CommunicationError from now on.

        Parameters
        ----------
        reason : str
            The message of that error.
        """
        self._link.fail(reason, (self.rank,))

    def renewed(self) -> MpiCommunicator:
        """Return a communicator of the same processes, after one of them has failed.

        All of them call this soon after it has told them of its error.

        Returns
        -------
        MpiCommunicator
            To be closed.

        Raises
        ------
        CommunicationError
            If one does not answer, because it has ended or hangs.
        """
        link = self._link
        if link.failure is None or link.misses_ranks:
            link.check()
            raise CommunicationError("no rank has failed")
        seconds = min(link.timeout, _SOON_SECONDS)
        try:
            copy = _duplicated(link.mpi, link.comm, seconds)
        except link.mpi.Exception as error:
            raise CommunicationError(f"a process does not answer: {error}") from None
        return MpiCommunicator(Link(link.mpi, copy, link.timeout))

    def close(self) -> None:
        """Leave the group, and wait until all ranks have.

        Ranks that wait for this one in a collective get CommunicationError.

        Raises
        ------
        CommunicationError
            If a rank has not left it within the timeout.
        """
        self._link.close()

    def all_reduce(self, arrays: Sequence[Array], work: Array) -> None:
        """Replace arrays by their sums over the ranks.

        Parameters
        ----------
        arrays : sequence of ndarray
            C-contiguous, of the same lengths and dtypes on all ranks.
        work : ndarray
            Scratch of `work_bytes` in uint8.

        Raises
        ------
        CommunicationError
            If a rank has failed, does not arrive, or calls something else.
        ValueError
            If the scratch is too small, or an array is not C-contiguous.
        """
        flats = [_flat(each) for each in arrays]
        slots = self._slots("all_reduce", flats, work)
        received, packed = slots[: self.size - 1], slots[self.size - 1 :]
        with self._call("all_reduce", flats) as call, np.errstate(all="ignore"):
            for parts in _rounds(_kinds(flats), self.size) if received else ():
                self._exchange_parts(call, flats, parts, received, packed)
                sums = self._sum_messages(flats, parts[self.rank], received, packed)
                self._exchange_sums(call, flats, parts, sums, packed)
            call.wait()

    def all_reduce_encoded(self, arrays: Sequence[Array], work: Array) -> None:
        """Replace arrays of 0, T and -T by their sums over the ranks.

        Each rank sends all others encodings of its arrays, of a MiB at a time.

        Parameters
        ----------
        arrays : sequence of ndarray
            C-contiguous and in float32, of the same lengths on all ranks, 64 at most.
        work : ndarray
            Scratch of `work_bytes` in uint8.

        Raises
        ------
        CommunicationError
            If a rank has failed, does not arrive, or calls something else.
        ValueError
            If the scratch is too small, an array is not C-contiguous, or there are
            other values.
        """
        flats = [_flat(each) for each in arrays]
        slots = self._slots("all_reduce_encoded", flats, work)
        words = [each.view(np.int32) for each in slots]
        length = entries = 0
        with self._call("all_reduce_encoded", flats) as call, np.errstate(all="ignore"):
            for each in encoded_rounds(flats):
                used, count = each.encode(words[self.rank])
                length, entries = length + used, entries + count
                for rank in self._link.others:
                    call.receive(rank, words[rank])
                    call.send(rank, words[self.rank][:used])
                call.wait()
                each.clear()
                for encoding in words:
                    each.add(encoding)
            call.wait()
        elements = sum(each.size for each in flats)
        others = self.size - 1
        self.encoded_totals = self.encoded_totals.plus(
            EncodedTotals(elements, entries, 4 * length * others, 4 * elements * others)
        )

    def reduce_scatter(self, whole: Array, part: Array, work: Array) -> None:
        """Write this rank's part of the sum of flat arrays, which are not changed.

        Parameters
        ----------
        whole : ndarray
            Flat and C-contiguous, of the same length and dtype on all ranks.
        part : ndarray
            Flat, of the length of `whole` divided by the number of ranks, rounded up.
        work : ndarray
            Scratch of `work_bytes` in uint8.

        Raises
        ------
        CommunicationError
            If a rank has failed, does not arrive, or calls something else.
        ValueError
            If the part has another length or dtype.
        """
        self._check_part(part, whole)
        flats = [_flat(whole)]
        slots = self._slots("reduce_scatter", flats, work)
        begin = self.rank * part.size
        with self._call("reduce_scatter", flats) as call, np.errstate(all="ignore"):
            for parts in _rounds(_kinds(flats), self.size):
                own = [message.pieces[0] for message in parts[self.rank]]  # 1, or none
                results = [part[each.start - begin : each.stop - begin] for each in own]
                received = [*(_bytes(each) for each in results), *slots]
                self._exchange_parts(call, flats, parts, received, ())
                for piece, result in zip(own, results, strict=True):
                    self._add(_of(flats, piece), result, received, 0)
            call.wait()
        part[max(0, whole.size - begin) :] = 0

    def all_gather(self, part: Array, whole: Array, work: Array) -> None:
        """Write the parts of all ranks to a flat array.

        Parameters
        ----------
        part : ndarray
            Flat and C-contiguous, of the same length and dtype on all ranks.
        whole : ndarray
            Flat and C-contiguous, of the same length on all ranks.
        work : ndarray
            Not used.

        Raises
        ------
        CommunicationError
            If a rank has failed, does not arrive, or calls something else.
        ValueError
            If parts are too short together, or of another dtype.
        """
        del work
        self._check_part(part, whole, at_least=True)
        part, whole = _flat(part), _flat(whole)
        shares = [
            whole[rank * part.size : (rank + 1) * part.size]
            for rank in range(self.size)
        ]
        own = part[: shares[self.rank].size]
        with self._call("all_gather", [part, whole]) as call:
            for rank in self._link.others:
                call.receive(rank, shares[rank])
                call.send(rank, own)
            np.copyto(shares[self.rank], own)
            call.wait()

    def broadcast(self, arrays: Sequence[Array], root: int) -> None:
        """Replace arrays by those of a rank.

        The rank sends each other one a part, and all send their parts to each other.

        Parameters
        ----------
        arrays : sequence of ndarray
            C-contiguous, of the same lengths and dtypes on all ranks.
        root : int
            The rank whose arrays are copied.

        Raises
        ------
        CommunicationError
            If a rank has failed, does not arrive, or calls something else.
        ValueError
            If there is no such rank.
        """
        if not 0 <= root < self.size:
            raise ValueError(f"there is no rank {root} of {self.size}")
        flats = [_flat(each) for each in arrays]
        with self._call(f"broadcast from rank {root}", flats) as call:
            for parts in _rounds(_kinds(flats), self.size, packed=False):
                self._broadcast_parts(call, flats, parts, root)
            call.wait()

    def exchange(self, value: Any) -> list[Any]:
        """Return what each rank has given, in the order of ranks.

        It may be called while a collective runs in another thread.

        Parameters
        ----------
        value : object
            What can be pickled, and is small.

        Returns
        -------
        list of object
            Copies of those of the other ranks.

        Raises
        ------
        CommunicationError
            If a rank has failed or does not arrive.
        """
        data = pickle.dumps(value)
        values = {self.rank: value}
        with Call(self._link, EXCHANGES, "exchange", bytes(16), len(data)) as call:
            for rank in self._link.others:
                call.send(rank, data)
            arriving = {r: bytearray(length) for r, length in call.lengths().items()}
            for rank, buffer in arriving.items():
                call.receive(rank, buffer)
            call.wait()
        values |= {rank: pickle.loads(buffer) for rank, buffer in arriving.items()}
        return [values[rank] for rank in range(self.size)]

    def _call(self, name: str, flats: Sequence[Array]) -> Call:
        return Call(self._link, COLLECTIVES, *_described(name, _kinds(flats)))

    def _check_part(self, part: Array, whole: Array, *, at_least: bool = False) -> None:
        length = -(-whole.size // self.size)
        fits = part.size == length or (at_least and part.size > length)
        if not fits or part.ndim != 1 or part.dtype != whole.dtype:
            raise ValueError(
                f"parts of {whole.size} elements in {whole.dtype} are {(length,)} in "
                f"that dtype, not {part.shape} in {part.dtype}"
            )

    def _slots(
        self, collective: str, flats: Sequence[Array], work: Array
    ) -> list[Bytes]:
        """Divide the scratch; ValueError if it is too small."""
        nbytes = sum(each.nbytes for each in flats)
        item = max((each.itemsize for each in flats), default=1)
        needed = self.work_bytes(collective, nbytes, item)
        if work.nbytes < needed:
            raise ValueError(
                f"{collective} needs {needed} bytes of scratch, not {work.nbytes}"
            )
        length = self._slot_bytes(collective, nbytes, item)
        return [work[i : i + length] for i in range(0, needed, length or 1)]

    def _exchange_parts(
        self,
        call: Call,
        flats: Sequence[Array],
        parts: Sequence[Sequence[Message]],
        received: Sequence[Bytes],
        packed: Sequence[Bytes],
    ) -> None:
        """Send each rank its part, and receive the own part of all others."""
        for i, rank in enumerate(self._link.others):
            for _, begin, end in _spans(parts[self.rank]):
                call.receive(rank, received[i][begin:end])
            for message, begin, end in _spans(parts[rank]):
                data = _of(flats, message.pieces[0])
                if len(message.pieces) > 1:
                    data = packed[i][begin:end].view(data.dtype)
                    _pack(flats, message, data)
                call.send(rank, data)
        call.wait()

    def _sum_messages(
        self,
        flats: Sequence[Array],
        messages: Sequence[Message],
        received: Sequence[Bytes],
        packed: Sequence[Bytes],
    ) -> list[Array]:
        """Sum the own part, and return what others are sent: in place, or packed."""
        sums = []
        for message, begin, end in _spans(messages):
            own = result = _of(flats, message.pieces[0])
            if len(message.pieces) > 1:
                own = packed[0][begin:end].view(own.dtype)
                result = received[0][begin:end].view(own.dtype)
                _pack(flats, message, own)
            self._add(own, result, received, begin)
            if len(message.pieces) > 1:
                _unpack(flats, message, result)
            sums.append(result)
        return sums

    def _add(
        self, own: Array, result: Array, received: Sequence[Bytes], begin: int
    ) -> None:
        """Add arrays that were received to the own one, in the order of ranks."""
        if self.size == 1:
            np.copyto(result, own)
            return
        end = begin + own.nbytes
        operands = [slot[begin:end].view(own.dtype) for slot in received]
        operands.insert(self.rank, own)
        # Sums of all but the last lie in an operand that was received and is read.
        total, scratch = operands[0], operands[0 if self.rank else 1]
        for each in operands[1:-1]:
            np.add(total, each, out=scratch)
            total = scratch
        np.add(total, operands[-1], out=result)

    def _exchange_sums(
        self,
        call: Call,
        flats: Sequence[Array],
        parts: Sequence[Sequence[Message]],
        sums: Sequence[Array],
        packed: Sequence[Bytes],
    ) -> None:
        """Send the sums of the own part to all others, and receive theirs."""
        arriving = []
        for i, rank in enumerate(self._link.others):
            for message, begin, end in _spans(parts[rank]):
                target = _of(flats, message.pieces[0])
                if len(message.pieces) > 1:
                    target = packed[i][begin:end].view(target.dtype)
                    arriving.append((message, target))
                call.receive(rank, target)
            for data in sums:
                call.send(rank, data)
        call.wait()
        for message, data in arriving:
            _unpack(flats, message, data)

    def _broadcast_parts(
        self,
        call: Call,
        flats: Sequence[Array],
        parts: Sequence[Sequence[Message]],
        root: int,
    ) -> None:
        """Receive the own part from a rank, and those of others from them."""
        views = [[_of(flats, message.pieces[0]) for message in each] for each in parts]
        if self.rank != root:
            for view in views[self.rank]:
                call.receive(root, view)
            call.wait()
        for rank in self._link.others:
            for view in views[rank] * (self.rank == root) + views[self.rank]:
                if rank != root:
                    call.send(rank, view)
            for view in views[rank] * (self.rank != root):
                call.receive(rank, view)
        call.wait()


def _flat(array: Array) -> Array:
    """Return a flat view; ValueError if there is none."""
    if not array.flags.c_contiguous:
        raise ValueError("collectives need C-contiguous arrays")
    return array.reshape(-1)


def _bytes(array: Array) -> Bytes:
    return array.view(np.uint8)


def _of(flats: Sequence[Array], piece: Piece) -> Array:
    return flats[piece.array][piece.start : piece.stop]


def _kinds(flats: Sequence[Array]) -> tuple[tuple[int, str], ...]:
    """Return sizes and dtypes, these by a character, as names take longer to find."""
    return tuple((each.size, each.dtype.char) for each in flats)


def _spans(messages: Sequence[Message]) -> Iterator[tuple[Message, int, int]]:
    """Yield messages with the bytes where each begins and ends in a slot."""
    end = 0
    for message in messages:
        begin, end = end, end + message.nbytes
        yield message, begin, end


def _pack(flats: Sequence[Array], message: Message, data: Array) -> None:
    np.concatenate([_of(flats, piece) for piece in message.pieces], out=data)


def _unpack(flats: Sequence[Array], message: Message, data: Array) -> None:
    end = 0
    for piece in message.pieces:
        target = _of(flats, piece)
        begin, end = end, end + target.size
        target[...] = data[begin:end]


def _describe(name: str, kinds: tuple[tuple[int, str], ...]) -> tuple[str, bytes]:
    """Return what a collective is called in errors, and a digest of all about it."""
    elements = sum(size for size, _ in kinds)
    dtypes = ", ".join(sorted({np.dtype(char).name for _, char in kinds}))
    count = f"{len(kinds)} array{'s' * (len(kinds) != 1)}"
    text = f"{name} of {elements} elements in {count} of {dtypes}"
    return text, blake2b(repr((name, kinds)).encode(), digest_size=16).digest()


# A step calls the same few collectives each time.
_described = lru_cache(maxsize=256)(_describe)
_rounds = lru_cache(maxsize=256)(rounds)
