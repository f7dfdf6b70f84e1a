"""The workspaces of a network's layers, by what their arrays are for.

Whoever runs the layers says which workspace each kind of array has.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, cast

import numpy as np

from memcfg._core import scope_out
from memcfg.config._workspace_config import Word
from memcfg.errors import WorkspaceConfigError, WorkspaceError
from memcfg.workspaces._moves import (
    current_workspace,
    generation_of,
    is_attached,
    is_in_scope,
    leverage_to,
    workspace_of,
)
from memcfg.workspaces._named import get_workspace
from memcfg.workspaces._workspace import check_valid, checked_config, detach, names_here

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Self

    from numpy.typing import DTypeLike, NDArray

    from memcfg.config import WorkspaceConfig
    from memcfg.workspaces._workspace import Array, Shape, Workspace


class ArrayType(Word):
    """What an array of a network is for.

    References
    ----------
    Deeplearning4j 1.0.0-M1, ``org.deeplearning4j.nn.workspace.ArrayType``.
    """

    INPUT = "input"
    """What a layer reads."""
    ACTIVATIONS = "activations"
    """What a layer gives to others."""
    ACTIVATION_GRAD = "activation_grad"
    """The gradient of what a layer read, for the layers before it."""
    FF_WORKING_MEM = "ff_working_mem"
    """What a layer needs while it runs forward, and nobody after."""
    BP_WORKING_MEM = "bp_working_mem"
    """What a layer needs while it runs backward, and nobody after."""
    RNN_FF_LOOP_WORKING_MEM = "rnn_ff_loop_working_mem"
    """What one time step of a recurrent layer needs, forward."""
    RNN_BP_LOOP_WORKING_MEM = "rnn_bp_loop_working_mem"
    """What one time step of a recurrent layer needs, backward."""
    UPDATER_WORKING_MEM = "updater_working_mem"
    """What an optimizer needs while it updates."""
    FF_CACHE = "ff_cache"
    """What a layer keeps from its forward pass for its backward pass."""


class WorkspaceMode(Word):
    """Where the tensors of a step lie; the numbers that come out are the same bits.

    References
    ----------
    Deeplearning4j 1.0.0-M1, ``org.deeplearning4j.nn.conf.WorkspaceMode``. SINGLE and
    SEPARATE mean what they meant in 0.9.1; since then DL4J takes both for ENABLED.
    """

    NONE = "none"
    """Each tensor is an allocation of its own, freed when its last reader is done."""
    ENABLED = "enabled"
    """The step is planned and compiled: every tensor has its offset beforehand."""
    SINGLE = "single"
    """One workspace for the iteration; nothing in it is freed before its end."""
    SEPARATE = "separate"
    """Workspaces by kind of array, in each of which bytes are used again."""


class WorkspaceSource(Protocol):
    """Where a manager finds workspaces by name."""

    def get(self, name: str) -> Workspace | None:
        """Return the workspace of a name; None if there is none.

        Parameters
        ----------
        name : str
            Its name.
        """

    def make(self, name: str, config: WorkspaceConfig | None) -> Workspace:
        """Return the workspace of a name; it is made if there is none.

        Parameters
        ----------
        name : str
            Its name.
        config : WorkspaceConfig or None
            What it is to be.
        """


class _ThisThread:
    """The workspaces of the running thread."""

    def get(self, name: str) -> Workspace | None:
        return names_here().get(name)

    def make(self, name: str, config: WorkspaceConfig | None) -> Workspace:
        return get_workspace(name, config)


class _Target(NamedTuple):
    """A workspace by its name, and what it is to be if it has to be made."""

    name: str
    config: WorkspaceConfig | None


class LayerScopes:
    """A ``with`` block in which workspaces are open, or `open` and `close`.

    Made by `LayerWorkspaceMgr.enter`. The workspace that was named last is current.
    """

    def __init__(self, scopes: Sequence[AbstractContextManager[object]]) -> None:
        self._scopes = scopes
        self._opened: ExitStack | None = None

    def open(self) -> Self:
        """Open all of them, or none if one cannot be opened.

        Raises
        ------
        WorkspaceError
            If one of them must be open and is not, or is lent already.
        ResourceExhaustedError
            If one of them must have a page and it cannot be allocated.
        """
        if self._opened is None:
            with ExitStack() as stack:
                for scope in self._scopes:
                    stack.enter_context(scope)
                self._opened = stack.pop_all()
        return self

    def close(self) -> None:
        """Close them, the last one first; nothing if they are closed.

        Raises
        ------
        WorkspaceLeakError
            If arrays outlive one with ``on_escape="error"``; the others are closed.
        """
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.__exit__(kind, error, trace)


class LayerWorkspaceMgr:
    """Gives layers memory by what it is for: each `ArrayType` has a workspace or none.

    The settings are `set`, `no_workspace_for` and the two defaults; each returns the
    manager. A kind of array with "no workspace" is made outside of all, in the memory
    that NumPy uses there.

    Parameters
    ----------
    source : WorkspaceSource or None, default None
        Where workspaces are found by name. None: `memcfg.workspace`, the running
        thread's.

    Raises
    ------
    ValueError
        By every method that is given an unknown kind of array.
    WorkspaceError
        By every method but the settings and `has_configuration`, of a kind that is not
        configured; by those that make or move arrays and by `borrow`, of one whose
        workspace is not open; by the settings, of a manager that cannot be changed.
    WorkspaceLeakError, WorkspaceStaleError
        By what reads an array whose bytes may be another's; see
        `memcfg.workspaces.is_valid`.
    ResourceExhaustedError
        Where there is no memory for an array.

    References
    ----------
    Deeplearning4j 1.0.0-M1, ``org.deeplearning4j.nn.workspace.LayerWorkspaceMgr``.

    Examples
    --------
    >>> import memcfg as mc
    >>> kinds, manager = mc.workspaces.ArrayType, mc.workspaces.LayerWorkspaceMgr()
    >>> manager = manager.set(kinds.ACTIVATIONS, "activations")
    >>> manager = manager.default_workspace("working memory")
    >>> with manager.enter(kinds.ACTIVATIONS, kinds.FF_WORKING_MEM):
    ...     y = manager.zeros(kinds.FF_WORKING_MEM, (2, 3))
    ...     y = manager.leverage_to(kinds.ACTIVATIONS, y + 1)
    ...     print(mc.workspace_of(y).name)
    activations
    >>> mc.destroy_all_workspaces()
    """

    _immutable: ClassVar[LayerWorkspaceMgr | None] = None

    def __init__(self, source: WorkspaceSource | None = None) -> None:
        self._source: WorkspaceSource = _ThisThread() if source is None else source
        self._targets: dict[ArrayType, _Target | None] = {}
        self._untouched: set[str] = set()
        self._helpers: dict[str, Any] = {}
        self._frozen = False

    @classmethod
    def no_workspaces(cls) -> Self:
        """Return a new manager that makes every array outside of all workspaces."""
        return cls().default_no_workspace()

    @staticmethod
    def no_workspaces_immutable() -> LayerWorkspaceMgr:
        """Return the one such manager that everybody shares and nobody can change."""
        if LayerWorkspaceMgr._immutable is None:
            made = LayerWorkspaceMgr.no_workspaces()
            made._frozen = True
            LayerWorkspaceMgr._immutable = made
        return LayerWorkspaceMgr._immutable

    def set(
        self, kind: ArrayType | str, name: str, config: WorkspaceConfig | None = None
    ) -> Self:
        """Name the workspace of a kind of array.

        Parameters
        ----------
        kind : ArrayType or str
            What the arrays are for.
        name : str
            The workspace.
        config : WorkspaceConfig or None, default None
            What it is to be when `enter` makes it. None takes it as it is.

        Raises
        ------
        TypeError
            If the name is not a string, or the configuration is none.
        WorkspaceConfigError
            If the same workspace has another configuration here.
        """
        self._assign([kind], name, config)
        return self

    with_ = set  # noqa: A003  (the method above)

    def no_workspace_for(self, *kinds: ArrayType | str) -> Self:
        """Have arrays of these kinds made outside of all workspaces.

        Parameters
        ----------
        *kinds : ArrayType or str
            What the arrays are for.
        """
        self._assign(kinds, None, None)
        return self

    def default_workspace(
        self, name: str, config: WorkspaceConfig | None = None
    ) -> Self:
        """Name the workspace of all kinds that are not configured yet.

        Parameters
        ----------
        name : str
            The workspace.
        config : WorkspaceConfig or None, default None
            What it is to be when `enter` makes it. None takes it as it is.

        Raises
        ------
        WorkspaceConfigError
            If the same workspace has another configuration here.
        """
        self._assign(self._unconfigured(), name, config)
        return self

    def default_no_workspace(self) -> Self:
        """Have arrays of all kinds that are not configured yet made outside."""
        self._assign(self._unconfigured(), None, None)
        return self

    def set_no_leverage_override(self, name: str) -> Self:
        """Leave arrays of a workspace where they are: `leverage_to` copies none of it.

        Parameters
        ----------
        name : str
            The workspace, such as that of an iterator's batches.
        """
        self._check_mutable()
        self._untouched.add(name)
        return self

    def set_helper_workspace(self, key: str, value: object) -> Self:
        """Keep something that helpers share, such as scratch that grows.

        Parameters
        ----------
        key : str
            Its name.
        value : object
            What is kept, as long as the manager is; None drops it.
        """
        self._check_mutable()
        self._helpers[key] = value
        return self

    def get_helper_workspace(self, key: str) -> Any:
        """Return what `set_helper_workspace` was given; None if there is none.

        Parameters
        ----------
        key : str
            Its name.
        """
        return self._helpers.get(key)

    def has_configuration(self, kind: ArrayType | str) -> bool:
        """Return whether a kind of array has a workspace, or was given "no workspace".

        Parameters
        ----------
        kind : ArrayType or str
            What the arrays are for.
        """
        return _checked(kind) in self._targets

    def workspace_name(self, kind: ArrayType | str) -> str | None:
        """Return the name of the workspace of a kind of array; None for no workspace.

        Parameters
        ----------
        kind : ArrayType or str
            What the arrays are for.
        """
        target = self._target(kind)
        return None if target is None else target.name

    def configuration(self, kind: ArrayType | str) -> WorkspaceConfig | None:
        """Return the configuration of the workspace of a kind of array.

        Parameters
        ----------
        kind : ArrayType or str
            What the arrays are for.

        Returns
        -------
        WorkspaceConfig or None
            What `set` or a default was given; None too where there is no workspace.
        """
        target = self._target(kind)
        return None if target is None else target.config

    def enter(self, *kinds: ArrayType | str) -> LayerScopes:
        """Open the workspaces of kinds of arrays for a ``with`` block.

        Parameters
        ----------
        *kinds : ArrayType or str
            What the arrays are for. Workspaces that do not exist are made. Where a kind
            has no workspace, the block is outside of all.

        Raises
        ------
        WorkspaceConfigError
            If a workspace exists and has another configuration.
        ResourceExhaustedError
            If a page of its initial size cannot be allocated.
        """
        targets = dict.fromkeys(self._target(kind) for kind in kinds)
        return LayerScopes(
            [
                scope_out() if target is None else self._source.make(*target)
                for target in targets
            ]
        )

    def notify_scope_entered(self, *kinds: ArrayType | str) -> LayerScopes:
        """Open the workspaces of kinds of arrays now, and `close` what is returned.

        Parameters
        ----------
        *kinds : ArrayType or str
            What the arrays are for.
        """
        return self.enter(*kinds).open()

    def borrow(self, kind: ArrayType | str) -> AbstractContextManager[object]:
        """Make the workspace of a kind of array current again for a ``with`` block.

        Parameters
        ----------
        kind : ArrayType or str
            What the arrays are for.

        Returns
        -------
        context manager
            To be entered. It raises WorkspaceError then if the workspace is lent
            already. Where the kind has no workspace, the block is outside of all.
        """
        workspace = self._open(kind)
        if workspace is None:
            return cast("AbstractContextManager[object]", scope_out())
        return cast("AbstractContextManager[object]", workspace.borrow())

    def create_uninitialized(
        self, kind: ArrayType | str, shape: Shape, dtype: DTypeLike = float
    ) -> NDArray[Any]:
        """Make an array that is not initialised.

        Parameters
        ----------
        kind : ArrayType or str
            What it is for.
        shape : int or tuple of int
            Its shape.
        dtype : data-type, default float64
            Its type.

        Returns
        -------
        numpy.ndarray
            In the workspace of its kind, whichever is current; or outside of all.
        """
        with self._at(kind):
            return np.empty(shape, dtype)

    empty = create_uninitialized

    def create(
        self, kind: ArrayType | str, shape: Shape, dtype: DTypeLike = float
    ) -> NDArray[Any]:
        """Make an array of zeros where `create_uninitialized` makes one.

        Parameters
        ----------
        kind, shape, dtype : ArrayType or str, int or tuple of int, data-type
            As for `create_uninitialized`.
        """
        with self._at(kind):
            return np.zeros(shape, dtype)

    zeros = create

    def dup(self, kind: ArrayType | str, array: Array) -> Array:
        """Copy an array, contiguous, to where `create_uninitialized` would make it.

        Parameters
        ----------
        kind : ArrayType or str
            What the copy is for.
        array : numpy.ndarray
            Any array.
        """
        check_valid(array, "copy it")
        with self._at(kind):
            return array.copy(order="K")

    def cast_to(
        self,
        kind: ArrayType | str,
        array: Array,
        dtype: DTypeLike,
        *,
        dup_if_same: bool = False,
    ) -> Array:
        """Convert an array to another type.

        Parameters
        ----------
        kind : ArrayType or str
            What the result is for.
        array : numpy.ndarray
            Any array.
        dtype : data-type
            The type wanted.
        dup_if_same : bool, default False
            Whether an array that has the type already is copied.

        Returns
        -------
        numpy.ndarray
            Where `create_uninitialized` would make it; or the array itself.
        """
        check_valid(array, "convert it")
        with self._at(kind):
            return array.astype(dtype, copy=dup_if_same)

    def leverage_to(self, kind: ArrayType | str, array: Array) -> Array:
        """Copy an array to the workspace of its kind.

        Parameters
        ----------
        kind : ArrayType or str
            What it is for.
        array : numpy.ndarray
            An array.

        Returns
        -------
        numpy.ndarray
            The array itself if it is attached to none, is there already, or is of a
            workspace that `set_no_leverage_override` names. Else a copy; outside of all
            workspaces where the kind has none.
        """
        owner = workspace_of(array)
        left_alone = owner is not None and owner.name in self._untouched
        if left_alone or not is_attached(array):
            return array
        workspace = self._open(kind)
        return detach(array) if workspace is None else leverage_to(array, workspace)

    def _at(self, kind: ArrayType | str) -> AbstractContextManager[object]:
        """Let NumPy make its arrays where those of a kind live."""
        workspace = self._open(kind)
        return scope_out() if workspace is None else workspace.inside()

    def _open(self, kind: ArrayType | str) -> Workspace | None:
        """Return the workspace of a kind, which must be open; None for none."""
        target = self._target(kind)
        if target is None:
            return None
        workspace = self._source.get(target.name)
        if workspace is None or not workspace.is_open:
            known = _checked(kind).name
            raise WorkspaceError(
                f"workspace {target.name!r} for array type {known} is not open: do "
                f"this in `with manager.enter(ArrayType.{known})`"
            )
        return workspace

    def validate_array_location(
        self,
        kind: ArrayType | str,
        array: Array,
        migrate_if_invalid: bool = False,
        error_if_detached: bool = False,
    ) -> Array:
        """Check that an array is where those of its kind live.

        Parameters
        ----------
        kind : ArrayType or str
            What it is for.
        array : numpy.ndarray
            An array.
        migrate_if_invalid : bool, default False
            Whether a copy in the right workspace is returned instead of an error.
        error_if_detached : bool, default False
            Whether an array of no workspace is wrong where its kind has one.

        Returns
        -------
        numpy.ndarray
            The array, or the copy.

        Raises
        ------
        WorkspaceError
            If the array is elsewhere: the message names both workspaces.
        """
        check_valid(array, "use it")
        wanted = self._open(kind)
        found = workspace_of(array)
        if not is_attached(array):
            right = wanted is None or not error_if_detached
        else:
            right = found is not None and found is wanted and is_in_scope(array)
        if right:
            return array
        if not migrate_if_invalid:
            raise WorkspaceError(_misplaced(_checked(kind), array, wanted))
        return self.dup(kind, array)

    def is_workspace_open(self, kind: ArrayType | str) -> bool:
        """Return whether the workspace of a kind of array is open, or it has none.

        Parameters
        ----------
        kind : ArrayType or str
            What the arrays are for.
        """
        target = self._target(kind)
        result = None if target is None else self._source.get(target.name)
        return target is None or (result is not None and result.is_open)

    def assert_open(self, kind: ArrayType | str, message: str = "") -> None:
        """Raise WorkspaceError unless the workspace of a kind of array is open.

        Parameters
        ----------
        kind : ArrayType or str
            What the arrays are for.
        message : str, default ""
            What is being done; it begins the error.
        """
        if not self.is_workspace_open(kind):
            raise WorkspaceError(
                f"{_begin(message)}workspace {self.workspace_name(kind)!r} for array "
                f"type {_checked(kind).name} should be open and is not: enter it first"
            )

    def assert_not_open(self, kind: ArrayType | str, message: str = "") -> None:
        """Raise WorkspaceError if the workspace of a kind of array is open.

        Parameters
        ----------
        kind, message : ArrayType or str, str
            As for `assert_open`.
        """
        name = self.workspace_name(kind)
        if name is not None and self.is_workspace_open(kind):
            raise WorkspaceError(
                f"{_begin(message)}workspace {name!r} for array type "
                f"{_checked(kind).name} should not be open: close it first"
            )

    def assert_current_workspace(
        self, kind: ArrayType | str, message: str = ""
    ) -> None:
        """Raise WorkspaceError unless the workspace of a kind of array is innermost.

        Parameters
        ----------
        kind : ArrayType or str
            What the arrays are for; a kind without workspace wants none.
        message : str, default ""
            What is being done; it begins the error.
        """
        name, current = self.workspace_name(kind), current_workspace()
        found = None if current is None else current.name
        if found != name:
            raise WorkspaceError(
                f"{_begin(message)}{_name(name)} should be current for array type "
                f"{_checked(kind).name}, but {_name(found)} is"
            )

    def _assign(
        self,
        kinds: Iterable[ArrayType | str],
        name: str | None,
        config: WorkspaceConfig | None,
    ) -> None:
        """Give kinds of arrays a workspace, or none."""
        self._check_mutable()
        known = [_checked(kind) for kind in kinds]
        self._targets |= dict.fromkeys(known, self._made(name, config))

    def _unconfigured(self) -> list[ArrayType]:
        return [kind for kind in ArrayType if kind not in self._targets]

    def _check_mutable(self) -> None:
        if self._frozen:
            raise WorkspaceError(
                "this LayerWorkspaceMgr is shared by everybody and cannot be changed: "
                "make one with LayerWorkspaceMgr.no_workspaces() and change that"
            )

    def _target(self, kind: ArrayType | str) -> _Target | None:
        """Return a kind's workspace; WorkspaceError if it is not configured."""
        result = _checked(kind)
        if result not in self._targets:
            raise WorkspaceError(
                f"no workspace is configured for array type {result.name}: call "
                f"set(ArrayType.{result.name}, name, config), "
                f"no_workspace_for(ArrayType.{result.name}), or one of the defaults"
            )
        return self._targets[result]

    def _made(self, name: str | None, config: WorkspaceConfig | None) -> _Target | None:
        """Check a workspace; one name has one configuration."""
        if name is None:
            return None
        if not isinstance(name, str) or not name:
            raise TypeError(f"the name of a workspace is a string, not {name!r}")
        checked_config(config)
        for other in self._targets.values():
            if other is not None and other.name == name and other.config != config:
                raise WorkspaceConfigError(
                    f"workspace {name!r} has another configuration for other array "
                    "types here: give it the same one for all, or another name"
                )
        return _Target(name, config)


def _checked(kind: object) -> ArrayType:
    """Return the kind that a word means; ValueError if there is none."""
    try:
        return ArrayType(kind)  # type: ignore[arg-type]
    except ValueError:
        known = ", ".join(repr(each.value) for each in ArrayType)
        raise ValueError(f"an array type is one of {known}, not {kind!r}") from None


def _begin(message: str) -> str:
    return f"{message}: " if message else ""


def _name(name: str | None) -> str:
    return "no workspace" if name is None else f"workspace {name!r}"


def _misplaced(kind: ArrayType, array: Array, wanted: Workspace | None) -> str:
    """Say where an array is and where it should be."""
    should = "in no workspace" if wanted is None else f"in workspace {wanted.name!r}"
    found = workspace_of(array)
    if not is_attached(array):
        is_now = "in no workspace"
    elif found is None:
        is_now = "in a workspace that has gone with its thread"
    else:
        is_now = f"in workspace {found.name!r}"
        if found is wanted:
            is_now += f", of its cycle {generation_of(array)}, which has ended"
    return (
        f"an array of type {kind.name} should be {should}, but is {is_now}: move it "
        f"with leverage_to(ArrayType.{kind.name}, array), or pass "
        "migrate_if_invalid=True"
    )
