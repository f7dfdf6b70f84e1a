"""Saved tensors under a limit: what autograd keeps for backward, in fewer bytes.

Owns when what is packed, and where it goes. Refuses to encode or to copy: codecs and
lanes are the core's. Works on what PyTorch's hooks see, so that a model need not be
traced: whatever saves a tensor, saves it here.

See docs/decisions/0032-saved-tensors-packed-late.md.
"""

from __future__ import annotations

import heapq
import os
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, WeakSet, WeakValueDictionary, ref

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import register_module_forward_pre_hook

from memcfg._caller import outside
from memcfg._checks import named_arguments, unknown
from memcfg._core import codec_bounds, encode_bytes
from memcfg._core._machine import machine_bytes
from memcfg.torch.limit._out_of_memory import OutOfMemoryError
from memcfg.torch.saved._account import AHEAD, ENCODED, KEPT, Account
from memcfg.torch.saved._codes import Code, Encoder, decode, is_lossless, split
from memcfg.torch.saved._passes import Passes
from memcfg.torch.saved._saved_bytes import Ahead, SavedBytes, SavedTensor, Spilled
from memcfg.torch.saved._saved_report import SavedCodingEntry, SavedTensorsReport
from memcfg.torch.spill._media import Files, HostMemory
from memcfg.torch.spill._store import Store
from memcfg.torch.spill._stores import folder_of
from memcfg.units import format_bytes, parse_bytes, warn_of_few_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

    from memcfg.torch.spill._media import Medium
    from memcfg.torch.spill._store import Copy

__all__ = ["SavedTensors", "saved_tensors"]

_SMALLEST = 1024  # bytes: what is smaller is never packed
_SIGNS = "mask"  # a codec that keeps signs only
_AHEAD = 16  # storages that are looked at to be read ahead
_FILE = 4  # times the limit: the size of a file, unless it is said
_CODECS = ("zvc",)  # unless they are said
_GPU = "cuda"  # the type of a device
_Heap = list[tuple[tuple[int, int], int, "ReferenceType[SavedBytes]"]]


@named_arguments
def saved_tensors(
    limit: int | str,
    codecs: Sequence[str] | None = None,
    *,
    spill_to: str | os.PathLike[str] | None = None,
    spill_limit: int | str | None = None,
) -> SavedTensors:
    """Keep what autograd saves for backward within a limit.

    Parameters
    ----------
    limit : int or str
        The most bytes of saved tensors that are held in memory at any time: a number of
        bytes, a string such as ``"2GiB"``, or a share of the machine's memory such as
        ``"25%"``.
    codecs : sequence of str or None, default None
        What tensors on the CPU are encoded with: the first one that saves an eighth of
        the bytes, and later ones where that is not enough for the limit, and there is
        no file.
        ``"zvc"``, ``"csr"``, ``"rle"`` and ``"planes_zstd"`` give the same bits back;
        ``"fp16"``, ``"fp10"``, ``"fp8"``, ``"group8"``, ``"group4"`` and ``"group2"``
        round, and encode float32 alone. Empty: none. None is ``("zvc",)``, and none for
        tensors on a GPU, which none encodes.
    spill_to : str, path or None, default None
        A folder for a file, to which goes what codecs leave over, of tensors on the
        CPU. Or ``"host"``: page-locked memory of the host, for tensors on a GPU, which
        streams of their own copy; for tensors on the CPU it changes nothing.
    spill_limit : int, str or None, default None
        The file's size, taken when the context is entered, or that of the page-locked
        memory, taken when the first tensor leaves; None is four times `limit`.

    Returns
    -------
    SavedTensors
        A context manager. It holds for the operations inside, in the thread that
        entered it; backward may run inside or afterwards. It can be entered again, and
        knows then how long tensors were held the last time.

    Raises
    ------
    MissingDependencyError
        If a codec needs a library that is not installed.
    TypeError
        If an argument is of another type.
    ValueError
        If `limit` or `spill_limit` is not a size or 0; if a codec is unknown, named
        twice, or keeps signs only; if `spill_to` is empty; or if there is a
        `spill_limit` without it.

    Notes
    -----
    Inside, the operation that saves too much raises `OutOfMemoryError`, with the
    numbers and what to try; then everything that was held is released.

    What counts is the storages that are held for backward, whole ones, and codes, and
    what is read ahead. Memory that codes have left waits for the next ones within the
    limit, too, but for parts of pages; `SavedTensors.trim` gives it back. Not counted
    are parameters, and buffers and inputs of modules as long as somebody else holds
    them: they are there anyway. Nor is what an operation of backward reads, which is
    decoded for it and goes with it.

    Largest and longest-lived storages are packed first: those with the largest product
    of bytes and of the time between forward and backward in the last pass that saved
    the same sizes. In the first pass that is not known, and the largest go first.

    Losses and gradients have the same bits as without, unless a codec rounds. Tensors
    that were changed in place after they were saved are an error in backward, as in
    PyTorch, where the tensor still exists; where it does not, backward reads the bytes
    as they were saved. A change through ``Tensor.data``, which PyTorch does not see
    either, is not noticed.

    Sparse, quantized and nested tensors and subclasses are left as they are, and
    counted where they have bytes. An operation that saves a tensor of a GPU raises
    `NotImplementedError` if codecs or a folder are given, and one of another device in
    any case. Tensors of a GPU that left in the last pass are copied from when they are
    saved on, as long as they may stay beside. Inside of `torch.utils.checkpoint`
    without reentry, other hooks are at work.

    References
    ----------
    .. [1] M. Rhu, M. O'Connor, N. Chatterjee, J. Pool, Y. Kwon and S. W. Keckler,
       "Compressing DMA Engine: Leveraging Activation Sparsity for Training Deep Neural
       Networks", HPCA 2018 (``"zvc"``).
    .. [2] A. Jain, A. Phanishayee, J. Mars, L. Tang and G. Pekhimenko, "Gist: Efficient
       Data Encoding for Deep Neural Network Training", ISCA 2018 (``"csr"``,
       ``"fp16"``, ``"fp10"``, ``"fp8"``).

    Examples
    --------
    >>> import torch
    >>> import memcfg.torch as mt
    >>> x = torch.ones(64, 1024, requires_grad=True)
    >>> with mt.saved_tensors("600KiB", ["rle"]) as saved:
    ...     y = (x - 1).relu().exp().relu().exp()
    >>> saved.peak_bytes <= saved.limit_bytes
    True
    >>> y.sum().backward()
    >>> saved.current_bytes
    0
    """
    return SavedTensors(limit, codecs, spill_to=spill_to, spill_limit=spill_limit)


@dataclass
class _Tally:
    """What happened in a pass."""

    tensors: int = 0
    shared: int = 0
    saved_bytes: int = 0
    codings: dict[str, list[int]] = field(default_factory=dict)
    spilled_bytes: int = 0
    read_bytes: int = 0
    read_ahead_bytes: int = 0

    def encoded(self, code: Code, times: int = 1) -> None:
        """Count a code."""
        row = self.codings.setdefault(code.codec, [0, 0, 0])
        for at, more in enumerate((1, code.nbytes, code.held_bytes)):
            row[at] += times * more

    def forget(self, code: Code) -> None:
        """Count a code no longer, which was encoded anew."""
        self.encoded(code, -1)


class SavedTensors:
    """Keeps what autograd saves within a limit. Made by `saved_tensors`.

    Parameters
    ----------
    limit, codecs, spill_to, spill_limit : int, sequence of str, path, int
        As `saved_tensors` takes them.

    Attributes
    ----------
    limit_bytes : int
        The limit in bytes.
    codecs : tuple of str
        The codecs, in the order in which they are tried.
    folder : str or None
        Where the file lies; None: there is none.
    file_bytes : int
        The file's size; 0 where there is none.
    """

    def __init__(
        self,
        limit: int | str,
        codecs: Sequence[str] | None = None,
        *,
        spill_to: str | os.PathLike[str] | None = None,
        spill_limit: int | str | None = None,
    ) -> None:
        self._arguments = (limit, codecs, spill_to, spill_limit)
        self.limit_bytes = _size(limit, "limit")
        self.codecs = _codecs(_CODECS if codecs is None else codecs)
        self._asked_codecs = bool(codecs)
        self.folder = _folder(spill_to)
        elsewhere = _FILE * self.limit_bytes
        if spill_limit is not None:
            if spill_to is None:
                raise ValueError("spill_limit is for spill_to: give 'host' or a folder")
            elsewhere = _size(spill_limit, "spill_limit")
        self.file_bytes = 0 if self.folder is None else elsewhere
        self._host_bytes = elsewhere if spill_to == "host" else 0
        self._store: Store | None = None  # of files while entered, or of the host
        if self._host_bytes:  # which is locked for the first tensor of a GPU
            self._store = _store_of(HostMemory(), self._host_bytes)
        self._lock = threading.RLock()
        self._account = Account(self.limit_bytes)
        self._encoder = Encoder(self._account)
        self._entered: list[Any] = []
        self._hook: Any = None  # on modules
        self._passes = Passes()
        self._tally = _Tally()
        self._largest = 0  # bytes of what was saved in this pass
        self._to_encode: _Heap = []
        self._to_spill: _Heap = []
        self._coded: _Heap = []
        self._count = count()
        self._alive: WeakSet[SavedBytes] = WeakSet()
        self._left: WeakSet[SavedTensor] = WeakSet()  # as they are
        self._indexed: WeakValueDictionary[int, SavedBytes] = WeakValueDictionary()
        self._by_storage: WeakValueDictionary[int, SavedBytes] = WeakValueDictionary()
        self._modules: WeakSet[torch.nn.Module] = WeakSet()
        self._states: dict[int, StorageWeakRef] = {}  # of modules
        self._inputs: dict[int, StorageWeakRef] = {}  # of modules
        self._callers: list[ReferenceType[SavedBytes]] = []  # inputs that are saved
        _all.add(self)

    @property
    def current_bytes(self) -> int:
        """Bytes that are held now."""
        with self._lock:
            return self._account.settle()

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were held at a time; never more than the limit."""
        return self._account.peak

    def memory_report(self) -> SavedTensorsReport:
        """Return what the pass that runs, or ran last, has saved, and where it is.

        Returns
        -------
        SavedTensorsReport
            The numbers; ``print`` writes them as text.
        """
        with self._lock:
            current, tally = self._account.settle(), self._tally
            locked = 0 if self._host is None else self._host.nbytes
            return SavedTensorsReport(
                limit_bytes=self.limit_bytes,
                peak_bytes=self._account.peak,
                current_bytes=current,
                by_kind=dict(self._account.by_kind),
                tensors=tally.tensors,
                shared=tally.shared,
                saved_bytes=tally.saved_bytes,
                codings=tuple(
                    SavedCodingEntry(codec, *row)
                    for codec, row in tally.codings.items()
                    if row[0]
                ),
                spilled_bytes=tally.spilled_bytes,
                read_bytes=tally.read_bytes,
                read_ahead_bytes=tally.read_ahead_bytes,
                file_bytes=self.file_bytes or locked,
                is_on_host=locked > 0,
            )

    def trim(self) -> int:
        """Give memory back that codes have left, and that the next ones would take.

        Returns
        -------
        int
            The bytes given back.
        """
        with self._lock:
            return self._encoder.trim()

    def __enter__(self) -> Self:
        """Pack what this thread saves from now on.

        Raises
        ------
        OSError
            If the disk has not the file's bytes.
        """
        # A function of this entry's own, by which its hooks are found again.
        hooks = torch.autograd.graph.saved_tensors_hooks(
            partial(self._pack), self._unpack
        )
        try:
            with self._lock:
                if not self._entered:
                    self._open_file()
                    self._modules.clear()  # their tensors may have moved
                    if self._hook is not None:  # an interrupt left it, or its name
                        self._hook.remove()
                    self._hook = register_module_forward_pre_hook(self._note)
                self._entered.append(hooks)
                hooks.__enter__()
            return self
        except BaseException:
            self._drop_entry(hooks)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave what is saved from now on to others; what was saved stays packed."""
        hooks: Any = None
        try:
            hooks = self._innermost()
            self._drop_entry(hooks)
        except BaseException:  # an interrupt: nobody calls this again
            self._drop_entry(hooks or self._innermost())
            raise

    def _innermost(self) -> Any:
        """Return the hooks of this thread's last entry."""
        return next(filter(_is_on_top, self._entered), self._entered[-1])

    def _drop_entry(self, hooks: Any) -> None:
        """Undo what is left of an entry: whoever was interrupted calls it again."""
        if _is_on_top(hooks):
            hooks.__exit__()
        with self._lock:
            self._entered = [each for each in self._entered if each is not hooks]
            self._leave_modules()

    def _leave_modules(self) -> None:
        if not self._entered and self._hook is not None:
            self._hook.remove()
            self._hook = None
            if self.folder is not None:
                self._store = None  # its file goes with the last tensor that is there

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle by the arguments: saved tensors are this process's own."""
        return _remake, self._arguments

    def __repr__(self) -> str:
        return (
            f"<saved_tensors: {format_bytes(self.current_bytes)} of "
            f"{format_bytes(self.limit_bytes)} in use>"
        )

    def _open_file(self) -> None:
        if self.folder is not None:
            store = _store_of(Files(self.folder), self.file_bytes)
            store.take(1)  # the whole file, at once; it is given back
            self._store = store

    @property
    def _file(self) -> Store | None:
        """Where tensors of the CPU go; None: nowhere, or nobody has entered."""
        return None if self.folder is None else self._store

    @property
    def _host(self) -> Store | None:
        """Where tensors of a GPU go; None: nowhere."""
        return self._store if self.folder is None else None

    # What modules have anyway.

    def _note(self, module: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
        """Learn what a module that is called holds, and what it was given."""
        if torch.compiler.is_compiling():  # it would become a part of the program
            return
        if not self._entered:  # an interrupt of the exit left this hook
            with self._lock:
                self._leave_modules()
            return
        if module not in self._modules:
            self._modules.add(module)
            for state in (*module._parameters.values(), *module._buffers.values()):
                if state is not None and _is_plain(state):
                    storage = StorageWeakRef(state.untyped_storage())
                    self._states[storage.cdata] = storage
        for each in arguments:
            if (
                isinstance(each, torch.Tensor)
                and each.grad_fn is None
                and not each.requires_grad
                and _is_plain(each)
            ):
                storage = StorageWeakRef(each.untyped_storage())
                self._inputs[storage.cdata] = storage

    # Saving.

    def _pack(self, tensor: torch.Tensor) -> SavedTensor:
        """Save a tensor, as autograd asks for it."""
        with self._lock:
            self._tally.tensors += 1
            self._begin_pass()
            if _is_leaf(tensor) or _is_leaf(tensor._base):  # the graph holds it
                self._tally.shared += 1
                return SavedTensor(None, 0, tensor)
            self._check_device(tensor)
            if not _is_plain(tensor):
                return self._leave_as_it_is(tensor)
            self._claim()
            address = tensor.untyped_storage()._cdata
            if address in self._states:
                self._tally.shared += 1
                return SavedTensor(None, 0, tensor)
            known = self._by_storage.get(address)
            if known is not None:
                again = known.add(tensor)
                if again is not None:
                    self._tally.shared += 1
                    return again
                known.spoil()
            return self._save(tensor, address)

    def _check_device(self, tensor: torch.Tensor) -> None:
        """Raise NotImplementedError for what is not done on a tensor's device."""
        if tensor.device.type in ("cpu", "meta"):
            return
        what = f"{_describe(tensor)} is on {tensor.device}"
        if tensor.device.type != _GPU:
            raise NotImplementedError(
                f"saved_tensors holds tensors of the CPU and of GPUs: {what}"
            )
        if self._asked_codecs:
            raise NotImplementedError(
                f"codecs encode tensors of the CPU, and {what}: leave codecs out, and "
                "give spill_to='host'"
            )
        if self.folder is not None:
            raise NotImplementedError(
                f"a file takes tensors of the CPU, and {what}: give spill_to='host'"
            )

    def _save(self, tensor: torch.Tensor, address: int) -> SavedTensor:
        """Save a tensor over a storage that is not saved."""
        saved = SavedBytes(tensor)
        made = saved.add(tensor)
        assert made is not None
        self._alive.add(saved)
        self._by_storage[address] = saved
        if address in self._inputs:  # the caller's; counted when it lets go
            self._tally.shared += 1
            self._callers.append(ref(saved))
            return made
        self._keep(saved, _describe(tensor))
        return made

    def _keep(self, saved: SavedBytes, what: str) -> None:
        """Make room for a storage, and hold it."""
        nbytes = saved.storage_bytes
        index = len(self._passes.records)
        saved.record = index, self._passes.add(nbytes)
        self._indexed[index] = saved
        self._tally.saved_bytes += nbytes
        if nbytes >= _SMALLEST:
            if self._codecs_of(saved):
                self._largest = max(self._largest, nbytes)
                self._offer(self._to_encode, saved, nbytes)
            else:
                self._offer(self._to_spill, saved, nbytes)
        self._make_room(saved)
        if saved.is_kept:
            saved.charge = self._account.charge(KEPT, nbytes)
            if saved.charge is None:
                self._fail(what, nbytes, saved.device)
            self._begin_to_leave(saved)

    def _begin_to_leave(self, saved: SavedBytes) -> None:
        """Copy early what will probably have to leave, while others compute."""
        if saved.device.type != _GPU or saved.record is None:
            return
        if saved.record[1].leaves:
            saved.leaving = self._begin_to_copy(saved)

    def _leave_as_it_is(self, tensor: torch.Tensor) -> SavedTensor:
        """Save what cannot be packed, or has no bytes."""
        nbytes = _host_bytes(tensor)
        made = SavedTensor(None, 0, tensor)
        if nbytes == 0:
            if _is_empty(tensor):  # and holds no storage for nothing
                made.alias = torch.empty_strided(
                    tensor.shape,
                    tensor.stride(),
                    dtype=tensor.dtype,
                    device=tensor.device,
                )
                made.version = made.alias._version
            return made
        self._tally.saved_bytes += nbytes
        while nbytes > self._account.room() and self._pack_one():
            pass
        made.charge = self._account.charge(KEPT, nbytes)
        if made.charge is None:
            self._fail(_describe(tensor), nbytes, tensor.device)
        self._left.add(made)
        return made

    def _begin_pass(self) -> None:
        """Begin a pass, if this is the first tensor after backward."""
        passes = self._passes
        if not passes.records:
            return
        in_backward = torch._C._current_graph_task_id() != -1
        if len(self._alive) > 0 and (in_backward or not passes.was_read):
            return
        passes.begin()
        self._encoder.trim(self._account.code_peak)
        self._account.code_peak = self._account.by_kind[ENCODED]
        self._tally = _Tally(tensors=1)
        self._indexed = WeakValueDictionary()
        self._largest = 0
        self._to_encode = _living(self._to_encode)
        self._to_spill = _living(self._to_spill)
        self._coded = _living(self._coded)
        _drop_expired(self._inputs)
        _drop_expired(self._states)

    def _claim(self) -> None:
        """Count inputs that nobody else holds any more."""
        for each in list(self._callers):
            saved = each()
            if saved is None or not saved.is_kept:
                self._callers.remove(each)
            elif not saved.is_held_elsewhere():
                self._callers.remove(each)
                self._keep(saved, "the input of a module, which nobody else holds now")

    def _offer(self, heap: _Heap, saved: SavedBytes, nbytes: int) -> None:
        assert saved.record is not None
        weight, order = self._passes.weight(*saved.record, nbytes)
        heapq.heappush(heap, ((-weight, -order), next(self._count), ref(saved)))

    def _make_room(self, new: SavedBytes) -> None:
        """Pack until a storage can be held as well, or is packed itself.

        Room is left for the code of the largest that may have one, and as long as
        something can be packed, for pages that codes had: taking them anew takes time.
        """
        nbytes = new.storage_bytes
        spare = min(self._largest, self.limit_bytes // 2)
        while new.is_kept:
            beside = max(spare, self._encoder.free_bytes())
            if nbytes + beside <= self._account.room() or not self._pack_one():
                return

    def _pack_one(self) -> bool:
        """Have saved tensors take less memory; whether anything could be done."""
        return (
            self._drop_copies()
            or self._encode_one()
            or self._spill_one()
            or self._round_one()
        )

    def _drop_copies(self) -> bool:
        """Forget what was decoded or read ahead, which is elsewhere, too."""
        if self._account.by_kind[AHEAD] == 0:
            return False
        for saved in list(self._alive):
            saved.drop_copy()
        return True

    def _encode_one(self) -> bool:
        """Encode the first storage for which there is the room."""
        later: _Heap = []
        done = False
        while self._to_encode and not done:
            entry = heapq.heappop(self._to_encode)
            saved = entry[2]()
            if saved is None or not saved.is_kept:
                continue
            if not saved.spoil():
                done = True
                continue
            code = self._encoded(saved)
            if isinstance(code, Code):
                self._tally.encoded(code)
                self._replace(saved, code=code)
                self._offer(self._coded, saved, code.held_bytes)
                done = True
            elif code:
                later.append(entry)
            elif self._file is not None:
                self._offer(self._to_spill, saved, saved.storage_bytes)
        for entry in later:
            heapq.heappush(self._to_encode, entry)
        return done

    def _encoded(self, saved: SavedBytes) -> Code | bool:
        """Encode by the first codec that saves enough; True if there is not the room.

        False if there is none.
        """
        source = saved.source().numpy()
        wants_room = False
        for codec in self._codecs_of(saved):
            code = self._encoder.encode(codec, source)
            if isinstance(code, Code):
                return code
            wants_room |= code
            if not code and saved.record is not None:
                saved.record[1].refused.add(codec)
        return wants_room

    def _codecs_of(self, saved: SavedBytes) -> list[str]:
        """List the codecs that may save bytes, as far as is known."""
        assert saved.record is not None
        if saved.device.type == _GPU:
            return []
        refused = saved.record[1].refused
        return [
            codec
            for codec in self.codecs
            if codec not in refused and (is_lossless(codec) or saved.is_float32)
        ]

    def _round_one(self) -> bool:
        """Encode a code anew by a later codec that makes it smaller.

        The bytes are decoded meanwhile, which only an operation of backward does else.
        """
        while self._coded:
            saved = heapq.heappop(self._coded)[2]()
            code = None if saved is None else saved.code
            if saved is None or code is None or saved.record is None:
                continue
            later = self.codecs[self.codecs.index(code.codec) + 1 :]
            for codec in later:
                if not (is_lossless(codec) or saved.is_float32):
                    continue
                if codec_bounds(code.nbytes)[codec] >= code.held_bytes:
                    continue
                copy = self._decoded(saved)
                self._tally.forget(code)
                saved.record[1].refused.add(code.codec)
                saved.code = code = None
                made = self._encoder.encode(codec, copy.numpy())
                assert isinstance(made, Code), "it is smaller than what has gone"
                self._tally.encoded(made)
                saved.code = made
                self._offer(self._coded, saved, made.held_bytes)
                return True
        return False

    def _spill_one(self) -> bool:
        """Write the first storage, or code, for which there is room elsewhere.

        What could be encoded only if there was more room goes as it is.
        """
        if self._store is None:
            return False
        later: _Heap = []
        done = False
        for heap in (self._to_spill, self._coded, self._to_encode):
            while heap and not done:
                entry = heapq.heappop(heap)
                saved = entry[2]()
                if saved is None or saved.spilled is not None or saved.lost:
                    continue
                if not saved.spoil() and saved.code is None:
                    continue
                done = self._spill(saved)
                if not done:
                    later.append(entry)
        for entry in later:
            heapq.heappush(self._to_spill, entry)
        return done

    def _spill(self, saved: SavedBytes) -> bool:
        """Write to the file, or to the host; whether it has room."""
        if saved.device.type == _GPU:
            return self._leave(saved)
        if self._file is None:
            return False
        code = saved.code
        if code is None:
            pieces = [saved.source()]
        else:
            pieces = [torch.from_numpy(each) for each in code.pieces()]
        nbytes = sum(piece.nbytes for piece in pieces)
        extent = self._file.take(nbytes)
        if extent is None:
            return False
        copies, at = [], 0
        for piece in pieces:
            copies.append(extent.copy_out(piece, at))
            at += piece.nbytes
        for each in copies:
            each.wait()
        self._tally.spilled_bytes += nbytes
        codec, sizes = (code.codec, code.sizes) if code is not None else (None, ())
        self._replace(saved, spilled=Spilled(extent, nbytes, codec, sizes))
        return True

    def _leave(self, saved: SavedBytes) -> bool:
        """Copy to the host, or wait for what is on its way; whether there is room."""
        leaving, saved.leaving = saved.leaving, None
        if leaving is None:
            leaving = self._begin_to_copy(saved)
        if leaving is None:
            for each in list(self._alive):  # what is there and may stay here
                each.leaving = None
            leaving = self._begin_to_copy(saved)
        if leaving is None:
            return False
        leaving.wait()
        self._tally.spilled_bytes += saved.nbytes
        if saved.record is not None:
            saved.record[1].left = True
        spilled = Spilled(leaving.extent, saved.nbytes, None, ())
        self._replace(saved, spilled=spilled)
        return True

    def _begin_to_copy(self, saved: SavedBytes) -> Copy | None:
        """Begin to copy to the host; None if it has no room, or nobody asked for it."""
        if self._host is None:
            return None
        extent = self._host.take(saved.nbytes)
        return None if extent is None else extent.copy_out(saved.source())

    @staticmethod
    def _replace(
        saved: SavedBytes, *, code: Code | None = None, spilled: Spilled | None = None
    ) -> None:
        """Hold the bytes elsewhere, and only there."""
        saved.code, saved.spilled = code, spilled
        saved.aliases = {}
        saved.charge = None

    def _fail(self, what: str, nbytes: int, device: torch.device) -> None:
        """Release everything, and say what did not fit."""
        held = {kind: n for kind, n in self._account.by_kind.items() if n}
        in_use = self._account.total
        self._release()
        name = "CPU" if device.type == "cpu" else str(device)
        raise OutOfMemoryError(
            f"{name} out of memory. Saved tensors do not fit the limit: {what} is one "
            "too many. All that were saved in this context have been released.",
            requested_bytes=nbytes,
            in_use_bytes=in_use,
            limit_bytes=self.limit_bytes,
            device=name,
            owners=held,
            hint=self._hint(device),
        )

    def _hint(self, device: torch.device) -> str:
        tries = ["a larger limit", "a smaller batch"]
        if device.type == _GPU:
            more = "saved_tensors(..., spill_to='host')"
            if self._host_bytes:
                more = f"a spill_limit above {format_bytes(self._host_bytes)}"
            tries.append(more)
            return f"Try {', '.join(tries[:-1])}, or {tries[-1]}."
        if not self.codecs:
            tries.append("codecs=['zvc']")
        elif all(map(is_lossless, self.codecs)):
            tries.append("a codec that rounds, such as codecs=['zvc', 'fp16']")
        if self.folder is None:
            tries.append("saved_tensors(..., spill_to=<a folder>)")
        else:
            tries.append(f"a spill_limit above {format_bytes(self.file_bytes)}")
        return f"Try {', '.join(tries[:-1])}, or {tries[-1]}."

    def _release(self) -> None:
        for saved in list(self._alive):
            saved.lose()
        for tensor in list(self._left):
            tensor.alias = tensor.charge = None
        self._callers.clear()
        self._account.settle()

    # Reading.

    def _unpack(self, tensor: SavedTensor) -> torch.Tensor:
        """Give a tensor back, as autograd asks for it."""
        with self._lock:
            alias = tensor.check()
            saved = tensor.saved
            if saved is None:
                assert alias is not None
                return alias
            if not tensor.read:
                tensor.read = True
                saved.waiting -= 1
            if saved.record is not None:
                index, record = saved.record
                self._passes.read(index, record)
                self._read_ahead(index)
            return alias if alias is not None else tensor.view(self._copy(saved))

    def _copy(self, saved: SavedBytes) -> torch.Tensor:
        """Return the bytes in memory, which others that wait for them share."""
        copy = saved.decoded
        if copy is None:
            copy = self._decoded(saved)
            if saved.waiting > 0:
                saved.decoded_charge = self._account.charge(AHEAD, copy.nbytes)
                if saved.decoded_charge is not None:
                    saved.decoded = copy
        elif saved.waiting == 0:
            saved.drop_copy()
        return copy

    def _decoded(self, saved: SavedBytes) -> torch.Tensor:
        """Make the bytes anew, from the code or from the file."""
        spilled, code = saved.spilled, saved.code
        if spilled is not None and spilled.codec is None:
            return self._read(saved, spilled)
        assert saved.device.type != _GPU
        copy = torch.empty(saved.nbytes, dtype=torch.uint8, device="cpu")
        target = copy.numpy()
        if code is not None:
            decode(code.codec, code.pieces(), target)
            return copy
        assert spilled is not None
        assert spilled.codec is not None
        pieces = split(self._read(saved, spilled).numpy(), spilled.sizes)
        decode(spilled.codec, pieces, target)
        return copy

    def _read(self, saved: SavedBytes, spilled: Spilled) -> torch.Tensor:
        """Return what is elsewhere."""
        self._tally.read_bytes += spilled.nbytes
        ahead, saved.ahead = saved.ahead, None
        if ahead is not None:
            self._tally.read_ahead_bytes += spilled.nbytes
            ahead.copy.wait()
            return ahead.buffer
        buffer, reading = _begin_to_read(saved, spilled)
        reading.wait()
        return buffer

    def _read_ahead(self, index: int) -> None:
        """Begin to read what comes next from the file, as long as there is room."""
        if self._tally.spilled_bytes == 0 and self._file is None:
            return
        for following in self._passes.next_after(index, _AHEAD):
            saved = self._indexed.get(following)
            spilled = None if saved is None else saved.spilled
            if saved is None or spilled is None or saved.waiting == 0:
                continue
            if not spilled.extent.is_ours:
                return
            if saved.ahead is None and saved.decoded is None:
                charge = self._account.charge(AHEAD, spilled.nbytes)
                if charge is None:
                    return
                saved.ahead = Ahead(*_begin_to_read(saved, spilled), charge)


def _begin_to_read(saved: SavedBytes, spilled: Spilled) -> tuple[torch.Tensor, Copy]:
    """Begin to read bytes into new ones of their device."""
    buffer = torch.empty(spilled.nbytes, dtype=torch.uint8, device=saved.device)
    return buffer, spilled.extent.copy_in(buffer)


def _store_of(medium: Medium, nbytes: int) -> Store:
    """Return a store of one piece of memory."""
    return Store(medium, nbytes, least_bytes=nbytes)


def _remake(
    limit: int | str, codecs: Sequence[str] | None, spill_to: Any, spill_limit: Any
) -> SavedTensors:
    return SavedTensors(limit, codecs, spill_to=spill_to, spill_limit=spill_limit)


def _is_on_top(hooks: Any) -> bool:
    """Return whether these are the innermost hooks of this thread."""
    top = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return top is not None and top[0] is hooks.pack_hook


def _size(value: int | str, what: str) -> int:
    nbytes = parse_bytes(value, total_bytes=machine_bytes())
    if nbytes == 0:
        raise ValueError(f"{what} is at least a byte")
    if isinstance(value, int):
        warn_of_few_bytes(value, f"{what}={value}", stacklevel=outside())
    return nbytes


def _codecs(names: Sequence[str]) -> tuple[str, ...]:
    """Check codecs, and that their libraries are there."""
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"codecs is a list of names such as ['zvc'], not {names!r}")
    for name in names:
        if name not in codec_bounds(0):
            raise unknown("codec", name, codec_bounds(0))
        if name == _SIGNS:
            raise ValueError(
                "'mask' keeps nothing but signs, and nobody knows here whether the "
                "gradient needs more: name another codec"
            )
        encode_bytes(name, b"", bytearray(codec_bounds(0)[name]))
    if len(set(names)) < len(names):
        raise ValueError(f"a codec is named twice: {list(names)}")
    return tuple(names)


def _folder(spill_to: str | os.PathLike[str] | None) -> str | None:
    """Return the folder of the file; None: there is none."""
    folder = None if spill_to is None else folder_of(spill_to)
    if folder == "":
        raise ValueError("spill_to is empty: give 'host', or a folder")
    return folder


def _is_leaf(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and tensor.requires_grad and tensor.is_leaf


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether it is a view of a storage of bytes in memory."""
    return _is_strided(tensor) and tensor.numel() > 0


def _is_empty(tensor: torch.Tensor) -> bool:
    return _is_strided(tensor) and tensor.numel() == 0


def _is_strided(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.device.type in ("cpu", _GPU)
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not torch._is_functional_tensor(tensor)
    )


def _host_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of memory that something that is not plain has."""
    if tensor.device.type == "meta" or tensor.numel() == 0:
        return 0
    if tensor.layout is torch.sparse_coo:
        return int(tensor._indices().nbytes + tensor._values().nbytes)
    with suppress(RuntimeError, NotImplementedError):  # there is no storage
        return int(tensor.untyped_storage().nbytes())
    with suppress(RuntimeError, NotImplementedError):
        return int(tensor.numel() * tensor.element_size())
    return 0


def _describe(tensor: torch.Tensor) -> str:
    shape = "a nested tensor" if tensor.is_nested else list(tensor.shape)
    return f"{shape} of {tensor.dtype}"


def _drop_expired(storages: dict[int, StorageWeakRef]) -> None:
    for address, storage in list(storages.items()):
        if storage.expired():
            del storages[address]


def _living(heap: _Heap) -> _Heap:
    kept = [entry for entry in heap if entry[2]() is not None]
    heapq.heapify(kept)
    return kept


_all: WeakSet[SavedTensors] = WeakSet()


def _forget_locks() -> None:
    """Make new locks in the child of a fork, where no thread holds them."""
    for each in _all:
        each._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)
