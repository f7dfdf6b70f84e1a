"""Saved tensors under a limit: what autograd keeps for backward, in fewer bytes.

Owns the choice of which tensors are packed, when, and where. Encoding and copying
belong to the codecs and lanes of the core. It works through PyTorch's hooks for saved
tensors, so a model need not be traced.

See docs/decisions/0032-saved-tensors-packed-late.md.
"""

from __future__ import annotations

import heapq
import os
import threading
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, WeakSet, WeakValueDictionary, ref

import torch
from torch.autograd import _get_sequence_nr
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
from memcfg.units import ALIGNMENT, format_bytes, parse_bytes, warn_of_few_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from memcfg.torch.spill._media import Medium
    from memcfg.torch.spill._store import Copy

__all__ = ["SavedTensors", "saved_tensors"]

_SMALLEST = 1024  # bytes: smaller storages are never packed
_SIGNS = "mask"  # a codec that keeps signs only
_AHEAD = 16  # storages that are considered for reading ahead
_FILE = 4  # the default size of the file, in limits
_CODECS = ("zvc",)  # the default
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
    """Keep the tensors that autograd saves for backward within a limit.

    Parameters
    ----------
    limit : int or str
        The most bytes of saved tensors that are held in memory at any time: a number of
        bytes, a string such as ``"2GiB"``, or a share of the machine's memory such as
        ``"25%"``.
    codecs : sequence of str or None, default None
        The codecs for tensors on the CPU. The first one that saves an eighth of the
        bytes is used, and later ones if that is not enough for the limit and there is
        no file. ``"zvc"``, ``"csr"``, ``"rle"`` and ``"planes_zstd"`` give the same
        bits back; ``"fp16"``, ``"fp10"``, ``"fp8"``, ``"group8"``, ``"group4"`` and
        ``"group2"`` round, and encode only float32. An empty sequence encodes nothing.
        None means ``("zvc",)``. Tensors on a GPU are never encoded.
    spill_to : str, path or None, default None
        A folder for a file, which takes tensors of the CPU that still do not fit after
        encoding. Or ``"host"``, page-locked memory of the host for tensors on a GPU,
        which are copied by separate streams; it has no effect for tensors on the CPU.
    spill_limit : int, str or None, default None
        The size of the file, which is allocated when the context is entered, or of the
        page-locked memory, which is allocated when the first tensor leaves. None means
        four times `limit`.

    Returns
    -------
    SavedTensors
        A context manager. It applies to the operations inside, in the thread that
        entered it; backward may run inside or afterwards. It can be entered again, and
        then knows how long tensors were held the last time.

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
    numbers and advice, and everything that was held is released.

    The limit counts whole storages that are held for backward, codes, and what is read
    ahead. Memory that codes have freed is kept for the next ones, within the limit
    except for parts of pages; `SavedTensors.trim` returns it. Parameters are not
    counted, nor are buffers and inputs of modules as long as others hold them, since
    they exist anyway. The copy that an operation of backward reads is not counted
    either; it is freed after that operation.

    Storages are packed in the order of their bytes times the time between forward and
    backward, the largest product first. The time is that of the last pass that saved
    the same sizes. It is unknown in the first pass, where the largest storages are
    packed first.

    Losses and gradients have the same bits as without the context, unless a codec
    rounds. If a tensor was changed in place after it was saved, backward raises an
    error, as in PyTorch, if the tensor still exists; otherwise it reads the bytes as
    they were saved. A change through ``Tensor.data`` is not noticed, as in PyTorch.

    Sparse, quantized and nested tensors and subclasses are not packed, and are counted
    if they have bytes. An operation that saves a tensor of a GPU raises
    `NotImplementedError` if codecs or a folder are given, and one that saves a tensor
    of any other device always does. Tensors of a GPU that left in the last pass are
    copied as soon as they are saved, and freed when their bytes are needed. Inside
    `torch.utils.checkpoint` without reentry, other hooks apply.

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
    """Counts of what happened in a pass."""

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
        """Remove a code, which is replaced by another, from the counts."""
        self.encoded(code, -1)


class SavedTensors:
    """A context that keeps what autograd saves within a limit, made by `saved_tensors`.

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
        Where the file is; None if there is none.
    file_bytes : int
        The size of the file; 0 if there is none.
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
        self._store: Store | None = None  # of the file while entered, or of the host
        if self._host_bytes:  # it is locked when the first tensor of a GPU leaves
            self._store = _store_of(HostMemory(), self._host_bytes)
        self._lock = threading.RLock()
        self._account = Account(self.limit_bytes)
        self._encoder = Encoder(self._account)
        self._entered: list[Any] = []
        self._hook: Any = None  # on calls of modules
        self._passes = Passes()
        self._tally = _Tally()
        self._largest = 0  # bytes of the largest storage to encode in this pass
        self._to_encode: _Heap = []
        self._to_spill: _Heap = []
        self._coded: _Heap = []
        self._count = count()
        self._alive: WeakSet[SavedBytes] = WeakSet()
        self._left: WeakSet[SavedTensor] = WeakSet()  # tensors that are not packed
        self._indexed: WeakValueDictionary[int, SavedBytes] = WeakValueDictionary()
        self._by_storage: WeakValueDictionary[int, SavedBytes] = WeakValueDictionary()
        self._modules: WeakSet[torch.nn.Module] = WeakSet()
        self._states: dict[int, StorageWeakRef] = {}  # of modules
        self._inputs: dict[int, StorageWeakRef] = {}  # of modules
        self._callers: list[ReferenceType[SavedBytes]] = []  # inputs that were saved
        self._may_encode = True  # False if it was planned that all fits
        # saved tensors and their bytes by the number of their node, if it is recorded
        self._readers: dict[int, list[tuple[ReferenceType[SavedTensor], int]]] | None
        self._readers = None
        _all.add(self)

    @property
    def current_bytes(self) -> int:
        """Bytes that are held now."""
        with self._lock:
            return self._account.settle()

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were held at a time, which never exceed the limit."""
        return self._account.peak

    def memory_report(self) -> SavedTensorsReport:
        """Return what the current or the last pass has saved, and where it is held.

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

    def _leave_beside(self, nbytes: int, *, wanted: int = 0) -> None:
        """Leave bytes of the limit to others from now on.

        Parameters
        ----------
        nbytes : int
            The bytes to leave.
        wanted : int, default 0
            Bytes to free besides, if anything can be packed for them.

        Raises
        ------
        OutOfMemoryError
            If what is held cannot be packed into the rest. It is released.
        """
        with self._lock:
            account = self._account
            while account.limit - account.settle() < nbytes + wanted:
                if not self._pack_one():
                    break
            account.beside = nbytes
            if account.room() < 0:
                self._fail("what is in use besides", nbytes, torch.device("cpu"))

    @property
    def _kept_bytes(self) -> int:
        """Bytes of tensors that are held as they were saved."""
        with self._lock:
            self._account.settle()
            return self._account.by_kind[KEPT]

    def _node_bytes(self) -> tuple[dict[int, int], dict[int, int], int]:
        """Return what nodes of the pass read, and what is freed after they have run.

        Both are bytes by the number of a node; the node that was made first runs last.
        What others hold, too, is not freed. The third number is of bytes by which the
        allocator rounds up what is held.
        """
        read: dict[int, int] = {}
        last: dict[SavedBytes | SavedTensor, int] = {}
        with self._lock:
            for number, saved in (self._readers or {}).items():
                read[number] = sum(nbytes for _, nbytes in saved)
                for each in [made for weak, _ in saved if (made := weak()) is not None]:
                    own = each if each.saved is None else each.saved
                    last[own] = min(last.get(own, number), number)
            freed: Counter[int] = Counter()
            padding = 0
            for own, number in last.items():
                if own.charge is not None:
                    padding += -own.charge.nbytes % ALIGNMENT
                alone = isinstance(own, SavedTensor) or (
                    own.is_kept and not own.is_held_elsewhere()
                )
                if alone and own.charge is not None:
                    freed[number] += own.charge.nbytes
        return read, freed, padding

    def _is_charged(self, tensor: torch.Tensor) -> bool:
        """Return whether the storage of a tensor is held, and counted."""
        if tensor.layout is not torch.strided:
            return False
        with self._lock:
            saved = self._by_storage.get(tensor.untyped_storage()._cdata)
            return saved is not None and saved.is_kept and saved.charge is not None

    @property
    def _room_bytes(self) -> int:
        """Bytes of the limit that are neither held nor left to others."""
        with self._lock:
            return self._account.room()

    @property
    def _is_saving(self) -> bool:
        """Whether it is this context that the running thread saves tensors in."""
        return any(map(_is_on_top, self._entered))

    @contextmanager
    def _without_notes(self, modules: Iterable[torch.nn.Module]) -> Iterator[None]:
        """Call a module without the hook on all modules, which would be compiled.

        Its modules are noted before.
        """
        for each in modules:
            self._note(each, ())
        hook = self._hook
        hooks = None if hook is None else hook.hooks_dict_ref()
        own = None if hook is None or hooks is None else hooks.pop(hook.id, None)
        try:
            yield
        finally:
            if own is not None and hooks is not None and hook is self._hook:
                hooks[hook.id] = own

    @property
    def _is_packed(self) -> bool:
        """Whether anything is held in another form than it was saved in."""
        with self._lock:
            return any(not each.is_kept and not each.lost for each in self._alive)

    def trim(self) -> int:
        """Return memory to the system that codes have freed.

        Returns
        -------
        int
            The bytes returned to the system.
        """
        with self._lock:
            return self._encoder.trim()

    def __enter__(self) -> Self:
        """Apply to the tensors that this thread saves from now on.

        Raises
        ------
        OSError
            If the disk has too little room for the file.
        """
        # Its own function object identifies the hooks of this entry.
        hooks = torch.autograd.graph.saved_tensors_hooks(
            partial(self._pack), self._unpack
        )
        try:
            with self._lock:
                if not self._entered:
                    self._open_file()
                    # the storages of their tensors may have changed
                    self._modules.clear()
                    if self._hook is not None:  # left by an interrupt
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
        """Stop applying to newly saved tensors; those already saved stay packed."""
        hooks: Any = None
        try:
            hooks = self._innermost()
            self._drop_entry(hooks)
        except BaseException:  # interrupted: it is not called again
            self._drop_entry(hooks or self._innermost())
            raise

    def _innermost(self) -> Any:
        """Return the hooks of this thread's last entry."""
        return next(filter(_is_on_top, self._entered), self._entered[-1])

    def _drop_entry(self, hooks: Any) -> None:
        """Undo what remains of an entry; it may be called again after an interrupt."""
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
                self._store = None  # the file is deleted with the last tensor in it

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle by the arguments, without the saved tensors."""
        return _remake, self._arguments

    def __repr__(self) -> str:
        return (
            f"<saved_tensors: {format_bytes(self.current_bytes)} of "
            f"{format_bytes(self.limit_bytes)} in use>"
        )

    def _open_file(self) -> None:
        if self.folder is not None:
            store = _store_of(Files(self.folder), self.file_bytes)
            store.take(1)  # allocates the whole file; the extent is freed at once
            self._store = store

    @property
    def _file(self) -> Store | None:
        """The store of tensors of the CPU, or None."""
        return None if self.folder is None else self._store

    @property
    def _host(self) -> Store | None:
        """The store of tensors of a GPU, or None."""
        return self._store if self.folder is None else None

    # Memory that modules hold anyway.

    def _note(self, module: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
        """Record the state of a called module, and its inputs."""
        # it would become a part of the compiled graph
        if torch.compiler.is_compiling():
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
        """Save a tensor for autograd."""
        with self._lock:
            self._tally.tensors += 1
            self._begin_pass()
            made = self._packed(tensor)
            if self._readers is not None:  # whose node was made last
                known = self._readers.setdefault(_get_sequence_nr() - 1, [])
                known.append((ref(made), _host_bytes(tensor)))
            return made

    def _packed(self, tensor: torch.Tensor) -> SavedTensor:
        """Save a tensor, in the form that there is room for."""
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
        """Raise NotImplementedError for tensors of a device that cannot be held."""
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
        """Save a tensor over a storage that is not yet saved."""
        saved = SavedBytes(tensor)
        made = saved.add(tensor)
        assert made is not None
        self._alive.add(saved)
        self._by_storage[address] = saved
        # the caller holds it; it is counted once the caller drops it
        if address in self._inputs:
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
        """Copy early what will probably have to leave, while the GPU computes."""
        if saved.device.type != _GPU or saved.record is None:
            return
        if saved.record[1].leaves:
            saved.leaving = self._begin_to_copy(saved)

    def _leave_as_it_is(self, tensor: torch.Tensor) -> SavedTensor:
        """Save a tensor that cannot be packed, or has no bytes."""
        nbytes = _host_bytes(tensor)
        made = SavedTensor(None, 0, tensor)
        if nbytes == 0:
            if _is_empty(tensor):  # do not hold its storage
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
        """Pack until there is room for a storage, or it is packed itself.

        It leaves room for the code of the largest storage that may be encoded. As long
        as something can be packed, it also leaves room for free pages of codes, since
        returning and taking pages takes time.
        """
        nbytes = new.storage_bytes
        spare = min(self._largest, self.limit_bytes // 2) if self._may_encode else 0
        while new.is_kept:
            beside = max(spare, self._encoder.free_bytes())
            if nbytes + beside <= self._account.room() or not self._pack_one():
                return

    def _pack_one(self) -> bool:
        """Reduce the memory of saved tensors; return whether anything could be done."""
        return (
            self._drop_copies()
            or self._encode_one()
            or self._spill_one()
            or self._round_one()
        )

    def _drop_copies(self) -> bool:
        """Drop bytes that were decoded or read ahead, which are also held elsewhere."""
        if self._account.by_kind[AHEAD] == 0:
            return False
        for saved in list(self._alive):
            saved.drop_copy()
        return True

    def _encode_one(self) -> bool:
        """Encode the first storage for whose code there is room."""
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
        """Return the code of the first codec that saves enough.

        Returns True if a codec needs more room, and False if none saves enough.
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
        """Encode a code again by a later codec that makes it smaller.

        The decoded bytes exist meanwhile, uncounted, as they do in operations of
        backward.
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
        """Move the first storage, or code, for which the store has room.

        A storage for whose code there was no room moves unencoded.
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
        """Copy to the store, and return whether it has room."""
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
        """Move a GPU's storage to the host, and return whether there is room."""
        leaving, saved.leaving = saved.leaving, None
        if leaving is None:
            leaving = self._begin_to_copy(saved)
        if leaving is None:
            # cancel early copies of storages that may stay
            for each in list(self._alive):
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
        """Begin to copy to the host; None if it has no room or was not requested."""
        if self._host is None:
            return None
        extent = self._host.take(saved.nbytes)
        return None if extent is None else extent.copy_out(saved.source())

    @staticmethod
    def _replace(
        saved: SavedBytes, *, code: Code | None = None, spilled: Spilled | None = None
    ) -> None:
        """Hold the bytes only as a code, or only in the store."""
        saved.code, saved.spilled = code, spilled
        saved.aliases = {}
        saved.charge = None

    def _fail(self, what: str, nbytes: int, device: torch.device) -> None:
        """Release everything, and raise the error of what did not fit."""
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
        """Return a tensor to autograd."""
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
        """Return the bytes in memory, shared by the saved tensors that need them."""
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
        """Return a new copy of the bytes, from the code or from the store."""
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
        """Return the bytes in the store."""
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
        """Begin to read what is needed next from the store, while there is room."""
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
    """Begin to read bytes into a new tensor on their device."""
    buffer = torch.empty(spilled.nbytes, dtype=torch.uint8, device=saved.device)
    return buffer, spilled.extent.copy_in(buffer)


def _store_of(medium: Medium, nbytes: int) -> Store:
    """Return a store with one piece of memory."""
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
    """Return the codecs, checked, or raise if one of them lacks its library."""
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
    """Return the folder of the file, or None."""
    folder = None if spill_to is None else folder_of(spill_to)
    if folder == "":
        raise ValueError("spill_to is empty: give 'host', or a folder")
    return folder


def _is_leaf(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and tensor.requires_grad and tensor.is_leaf


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor views a storage of bytes in memory."""
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
    """Return the bytes in memory of a tensor that is not plain."""
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
    """Replace the locks in the child of a fork, where nobody can release them."""
    for each in _all:
        each._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)
