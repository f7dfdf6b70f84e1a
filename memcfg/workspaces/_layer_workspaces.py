"""Assignment of a network's arrays to workspaces by kind of array.

The code that runs the layers configures the workspace of each kind.
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
    """Purpose of an array in a network.

    References
    ----------
    Deeplearning4j 1.0.0-M1, ``org.deeplearning4j.nn.workspace.ArrayType``.
    """

    INPUT = "input"
    """Inputs of layers."""
    ACTIVATIONS = "activations"
    """Outputs of layers, which other layers read."""
    ACTIVATION_GRAD = "activation_grad"
    """Gradients of a layer's inputs, for the layers before it."""
    FF_WORKING_MEM = "ff_working_mem"
    """Temporaries of a layer's forward pass."""
    BP_WORKING_MEM = "bp_working_mem"
    """Temporaries of a layer's backward pass."""
    RNN_FF_LOOP_WORKING_MEM = "rnn_ff_loop_working_mem"
    """Temporaries of one time step of a recurrent layer's forward pass."""
    RNN_BP_LOOP_WORKING_MEM = "rnn_bp_loop_working_mem"
    """Temporaries of one time step of a recurrent layer's backward pass."""
    UPDATER_WORKING_MEM = "updater_working_mem"
    """Temporaries of an optimizer's update."""
    FF_CACHE = "ff_cache"
    """Values that a layer's forward pass keeps for its backward pass."""


class WorkspaceMode(Word):
    """Placement of the tensors of a step; results are bit-identical in all modes.

    References
    ----------
    Deeplearning4j 1.0.0-M1, ``org.deeplearning4j.nn.conf.WorkspaceMode``. SINGLE and
    SEPARATE have their meaning of 0.9.1; later versions of DL4J treat both as ENABLED.
    """

    NONE = "none"
    """Each tensor is a separate allocation, freed after its last reader."""
    ENABLED = "enabled"
    """The step is planned and compiled: every tensor has a planned offset."""
    SINGLE = "single"
    """One workspace for a step; nothing in it is freed before the end of the step."""
    SEPARATE = "separate"
    """Workspaces by kind of array, each of which reuses its bytes."""


class WorkspaceSource(Protocol):
    """Source in which a manager finds workspaces by name."""

    def get(self, name: str) -> Workspace | None:
        """Return the workspace of a name, or None if there is none.

        Parameters
        ----------
        name : str
            Its name.
        """

    def make(self, name: str, config: WorkspaceConfig | None) -> Workspace:
        """Return the workspace of a name, creating it if there is none.

        Parameters
        ----------
        name : str
            Its name.
        config : WorkspaceConfig or None
            Its configuration.
        """


class _ThisThread:
    """The workspaces of the running thread."""

    def get(self, name: str) -> Workspace | None:
        return names_here().get(name)

    def make(self, name: str, config: WorkspaceConfig | None) -> Workspace:
        return get_workspace(name, config)


class _Target(NamedTuple):
    """The name of a workspace, and its configuration if it has to be created."""

    name: str
    config: WorkspaceConfig | None


class LayerScopes:
    """Context manager that opens several workspaces, also through `open` and `close`.

    `LayerWorkspaceMgr.enter` returns it. The workspace named last is current.
    """

    def __init__(self, scopes: Sequence[AbstractContextManager[object]]) -> None:
        self._scopes = scopes
        self._opened: ExitStack | None = None

    def open(self) -> Self:
        """Open all workspaces, or none if one cannot be opened.

        Raises
        ------
        WorkspaceError
            If one of them must be open and is not, or is already borrowed.
        ResourceExhaustedError
            If the page of one of them cannot be allocated.
        """
        if self._opened is None:
            with ExitStack() as stack:
                for scope in self._scopes:
                    stack.enter_context(scope)
                self._opened = stack.pop_all()
        return self

    def close(self) -> None:
        """Close the workspaces in reverse order; do nothing if they are closed.

        Raises
        ------
        WorkspaceLeakError
            If arrays outlive one with ``on_escape="error"``. All others are closed.
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
    """Manager that assigns each `ArrayType` a workspace or none.

    The settings are `set`, `no_workspace_for` and the two defaults; each returns the
    manager. Arrays of a kind with "no workspace" are created outside of all workspaces,
    in the memory that NumPy uses there.

    Parameters
    ----------
    source : WorkspaceSource or None, default None
        Source in which workspaces are found by name. None uses the workspaces of the
        running thread (`memcfg.workspace`).

    Raises
    ------
    ValueError
        By each method that takes a kind of array, if the kind is unknown.
    WorkspaceError
        By each method except the settings and `has_configuration`, if the kind is not
        configured; by `borrow` and the methods that create or move arrays, if the
        workspace of the kind is not open; by the settings, if the manager is immutable.
    WorkspaceLeakError, WorkspaceStaleError
        By each method that reads an array, if its bytes may have been overwritten; see
        `memcfg.workspaces.is_valid`.
    ResourceExhaustedError
        By each method that creates an array, if there is no memory for it.

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
        """Return a new manager that creates every array outside of all workspaces."""
        return cls().default_no_workspace()

    @staticmethod
    def no_workspaces_immutable() -> LayerWorkspaceMgr:
        """Return the shared immutable manager that uses no workspaces."""
        if LayerWorkspaceMgr._immutable is None:
            made = LayerWorkspaceMgr.no_workspaces()
            made._frozen = True
            LayerWorkspaceMgr._immutable = made
        return LayerWorkspaceMgr._immutable

    def set(
        self, kind: ArrayType | str, name: str, config: WorkspaceConfig | None = None
    ) -> Self:
        """Set the workspace of a kind of array.

        Parameters
        ----------
        kind : ArrayType or str
            The kind of array.
        name : str
            Name of the workspace.
        config : WorkspaceConfig or None, default None
            Configuration with which `enter` creates it. None accepts any.

        Raises
        ------
        TypeError
            If the name is not a non-empty string, or `config` is neither a
            WorkspaceConfig nor None.
        WorkspaceConfigError
            If this manager has another configuration for the same workspace.
        """
        self._assign([kind], name, config)
        return self

    with_ = set  # noqa: A003  (the method above)

    def no_workspace_for(self, *kinds: ArrayType | str) -> Self:
        """Create arrays of these kinds outside of all workspaces.

        Parameters
        ----------
        *kinds : ArrayType or str
            The kinds of arrays.
        """
        self._assign(kinds, None, None)
        return self

    def default_workspace(
        self, name: str, config: WorkspaceConfig | None = None
    ) -> Self:
        """Set the workspace of all kinds that are not yet configured.

        Parameters
        ----------
        name : str
            Name of the workspace.
        config : WorkspaceConfig or None, default None
            Configuration with which `enter` creates it. None accepts any.

        Raises
        ------
        TypeError
            As raised by `set`.
        WorkspaceConfigError
            If this manager has another configuration for the same workspace.
        """
        self._assign(self._unconfigured(), name, config)
        return self

    def default_no_workspace(self) -> Self:
        """Create arrays of all not yet configured kinds outside of all workspaces."""
        self._assign(self._unconfigured(), None, None)
        return self

    def set_no_leverage_override(self, name: str) -> Self:
        """Exempt the arrays of a workspace from `leverage_to`.

        Parameters
        ----------
        name : str
            Name of the workspace, such as that of an iterator's batches.
        """
        self._check_mutable()
        self._untouched.add(name)
        return self

    def set_helper_workspace(self, key: str, value: object) -> Self:
        """Store an object that helpers share, such as a growing scratch buffer.

        Parameters
        ----------
        key : str
            Its name.
        value : object
            The object, kept as long as the manager lives; None drops it.
        """
        self._check_mutable()
        self._helpers[key] = value
        return self

    def get_helper_workspace(self, key: str) -> Any:
        """Return the object stored by `set_helper_workspace`, or None.

        Parameters
        ----------
        key : str
            Its name.
        """
        return self._helpers.get(key)

    def has_configuration(self, kind: ArrayType | str) -> bool:
        """Return whether a kind of array is configured, possibly as "no workspace".

        Parameters
        ----------
        kind : ArrayType or str
            The kind of array.
        """
        return _checked(kind) in self._targets

    def workspace_name(self, kind: ArrayType | str) -> str | None:
        """Return the name of the workspace of a kind, or None for "no workspace".

        Parameters
        ----------
        kind : ArrayType or str
            The kind of array.
        """
        target = self._target(kind)
        return None if target is None else target.name

    def configuration(self, kind: ArrayType | str) -> WorkspaceConfig | None:
        """Return the configuration of the workspace of a kind of array.

        Parameters
        ----------
        kind : ArrayType or str
            The kind of array.

        Returns
        -------
        WorkspaceConfig or None
            The configuration passed to `set` or a default; None also for a kind without
            workspace.
        """
        target = self._target(kind)
        return None if target is None else target.config

    def enter(self, *kinds: ArrayType | str) -> LayerScopes:
        """Open the workspaces of kinds of arrays for a ``with`` block.

        Parameters
        ----------
        *kinds : ArrayType or str
            The kinds of arrays. Missing workspaces are created. If a kind has no
            workspace, the block is outside of all workspaces.

        Raises
        ------
        WorkspaceConfigError
            If a workspace exists with another configuration.
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
        """Open the workspaces of kinds of arrays now; the caller closes the result.

        Parameters
        ----------
        *kinds : ArrayType or str
            The kinds of arrays.
        """
        return self.enter(*kinds).open()

    def borrow(self, kind: ArrayType | str) -> AbstractContextManager[object]:
        """Make the workspace of a kind of array current again for a ``with`` block.

        Parameters
        ----------
        kind : ArrayType or str
            The kind of array.

        Returns
        -------
        context manager
            Context that raises WorkspaceError on entry if the workspace is already
            borrowed. If the kind has no workspace, the block is outside of all.
        """
        workspace = self._open(kind)
        if workspace is None:
            return cast("AbstractContextManager[object]", scope_out())
        return cast("AbstractContextManager[object]", workspace.borrow())

    def create_uninitialized(
        self, kind: ArrayType | str, shape: Shape, dtype: DTypeLike = float
    ) -> NDArray[Any]:
        """Create an uninitialised array.

        Parameters
        ----------
        kind : ArrayType or str
            Kind of the array.
        shape : int or tuple of int
            Shape of the array.
        dtype : data-type, default float64
            Type of its elements.

        Returns
        -------
        numpy.ndarray
            An array in the workspace of its kind, even if another is current, or
            outside of all workspaces if the kind has none.
        """
        with self._at(kind):
            return np.empty(shape, dtype)

    empty = create_uninitialized

    def create(
        self, kind: ArrayType | str, shape: Shape, dtype: DTypeLike = float
    ) -> NDArray[Any]:
        """Create an array of zeros where `create_uninitialized` creates one.

        Parameters
        ----------
        kind, shape, dtype : ArrayType or str, int or tuple of int, data-type
            As for `create_uninitialized`.
        """
        with self._at(kind):
            return np.zeros(shape, dtype)

    zeros = create

    def dup(self, kind: ArrayType | str, array: Array) -> Array:
        """Return a contiguous copy where `create_uninitialized` would create it.

        Parameters
        ----------
        kind : ArrayType or str
            Kind of the copy.
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
            Kind of the result.
        array : numpy.ndarray
            Any array.
        dtype : data-type
            Type of the result.
        dup_if_same : bool, default False
            Whether an array that already has the type is copied.

        Returns
        -------
        numpy.ndarray
            The array itself, or a copy located where `create_uninitialized` would
            create it.
        """
        check_valid(array, "convert it")
        with self._at(kind):
            return array.astype(dtype, copy=dup_if_same)

    def leverage_to(self, kind: ArrayType | str, array: Array) -> Array:
        """Copy an array to the workspace of its kind.

        Parameters
        ----------
        kind : ArrayType or str
            Kind of the array.
        array : numpy.ndarray
            An array.

        Returns
        -------
        numpy.ndarray
            The array itself if it is not attached, is already there, or belongs to a
            workspace named by `set_no_leverage_override`. Otherwise a copy, which is
            outside of all workspaces if the kind has none.
        """
        owner = workspace_of(array)
        left_alone = owner is not None and owner.name in self._untouched
        if left_alone or not is_attached(array):
            return array
        workspace = self._open(kind)
        return detach(array) if workspace is None else leverage_to(array, workspace)

    def _at(self, kind: ArrayType | str) -> AbstractContextManager[object]:
        """Return a context in which NumPy allocates where arrays of a kind belong."""
        workspace = self._open(kind)
        return scope_out() if workspace is None else workspace.inside()

    def _open(self, kind: ArrayType | str) -> Workspace | None:
        """Return the open workspace of a kind, or None for "no workspace".

        Raise WorkspaceError if the workspace is not open.
        """
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
        """Check that an array is where arrays of its kind belong.

        Parameters
        ----------
        kind : ArrayType or str
            Kind of the array.
        array : numpy.ndarray
            An array.
        migrate_if_invalid : bool, default False
            Whether a copy in the right workspace is returned instead of an error.
        error_if_detached : bool, default False
            Whether an unattached array is an error if its kind has a workspace.

        Returns
        -------
        numpy.ndarray
            The array or its copy.

        Raises
        ------
        WorkspaceError
            If the array is elsewhere. The message names both workspaces.
        """
        check_valid(array, "use it")
        wanted = self._open(kind)
        owner = workspace_of(array)
        if not is_attached(array):
            right = wanted is None or not error_if_detached
        else:
            right = owner is not None and owner is wanted and is_in_scope(array)
        if right:
            return array
        if not migrate_if_invalid:
            raise WorkspaceError(_misplaced(_checked(kind), array, wanted))
        return self.dup(kind, array)

    def is_workspace_open(self, kind: ArrayType | str) -> bool:
        """Return whether the workspace of a kind is open or the kind has none.

        Parameters
        ----------
        kind : ArrayType or str
            The kind of array.
        """
        target = self._target(kind)
        result = None if target is None else self._source.get(target.name)
        return target is None or (result is not None and result.is_open)

    def assert_open(self, kind: ArrayType | str, message: str = "") -> None:
        """Raise WorkspaceError unless the workspace of a kind of array is open.

        Parameters
        ----------
        kind : ArrayType or str
            The kind of array.
        message : str, default ""
            Description of the operation; begins the error message.
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
        """Raise WorkspaceError unless the workspace of a kind of array is current.

        Parameters
        ----------
        kind : ArrayType or str
            The kind of array. A kind without workspace requires that none is current.
        message : str, default ""
            Description of the operation; begins the error message.
        """
        name, current = self.workspace_name(kind), current_workspace()
        actual = None if current is None else current.name
        if actual != name:
            raise WorkspaceError(
                f"{_begin(message)}{_name(name)} should be current for array type "
                f"{_checked(kind).name}, but {_name(actual)} is"
            )

    def _assign(
        self,
        kinds: Iterable[ArrayType | str],
        name: str | None,
        config: WorkspaceConfig | None,
    ) -> None:
        """Assign kinds of arrays a workspace or none."""
        self._check_mutable()
        known = [_checked(kind) for kind in kinds]
        self._targets |= dict.fromkeys(known, self._made(name, config))

    def _unconfigured(self) -> list[ArrayType]:
        return [kind for kind in ArrayType if kind not in self._targets]

    def _check_mutable(self) -> None:
        if self._frozen:
            raise WorkspaceError(
                "this LayerWorkspaceMgr is shared and cannot be changed: make a new "
                "one with LayerWorkspaceMgr.no_workspaces() and change that"
            )

    def _target(self, kind: ArrayType | str) -> _Target | None:
        """Return the workspace of a kind; raise WorkspaceError if not configured."""
        result = _checked(kind)
        if result not in self._targets:
            raise WorkspaceError(
                f"no workspace is configured for array type {result.name}: call "
                f"set(ArrayType.{result.name}, name, config), "
                f"no_workspace_for(ArrayType.{result.name}), or one of the defaults"
            )
        return self._targets[result]

    def _made(self, name: str | None, config: WorkspaceConfig | None) -> _Target | None:
        """Return a checked target; one name has only one configuration."""
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
    """Return the `ArrayType` of a word; raise ValueError if there is none."""
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
    """Return a message that says where an array is and where it should be."""
    should = "in no workspace" if wanted is None else f"in workspace {wanted.name!r}"
    owner = workspace_of(array)
    if not is_attached(array):
        is_now = "in no workspace"
    elif owner is None:
        is_now = "in a workspace that has gone with its thread"
    else:
        is_now = f"in workspace {owner.name!r}"
        if owner is wanted:
            is_now += f", of its cycle {generation_of(array)}, which has ended"
    return (
        f"an array of type {kind.name} should be {should}, but is {is_now}: move it "
        f"with leverage_to(ArrayType.{kind.name}, array), or pass "
        "migrate_if_invalid=True"
    )
