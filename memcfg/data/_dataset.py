"""`Dataset`: an immutable pipeline with tf.data's names.

See docs/decisions/0019-datasets-reproduce-tf-data.md.
"""

from __future__ import annotations

import operator
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, Self

import numpy as np

from memcfg._checks import flag, named_arguments
from memcfg._tensorflow_names import DATASET
from memcfg.data._options import Options
from memcfg.data.elements._convert import as_element, as_result
from memcfg.data.elements._spec import TensorSpec, spec_of
from memcfg.data.elements._structure import (
    call,
    flatten,
    map_structure,
    same_structure,
)
from memcfg.data.engine._autotune import AUTOTUNE
from memcfg.data.engine._iterator import DatasetIterator
from memcfg.data.ops._batch import Batch, Unbatch
from memcfg.data.ops._cache import Cache
from memcfg.data.ops._combine import Concatenate, Enumerate, Zip
from memcfg.data.ops._interleave import Interleave
from memcfg.data.ops._map import Map
from memcfg.data.ops._node import INFINITE, UNKNOWN, Node
from memcfg.data.ops._order import Filter, Repeat, Select, Shuffle
from memcfg.data.ops._padded_batch import BucketBatch, PaddedBatch
from memcfg.data.ops._prefetch import Prefetch
from memcfg.data.ops._sources import Generated, Slices, signature_of, sliced, whole
from memcfg.data.ops._window import Window
from memcfg.data.rows._rows import range_rows
from memcfg.files import matching_files

if TYPE_CHECKING:
    import typing
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

P = ParamSpec("P")

_MAX = 2**63 - 1  # a cardinality is an int64
_ENOUGH = 2**62  # more numbers than a pass can use


class _SaysWhy(type):
    """Metaclass that explains missing names of tf.data's `Dataset`, and wrong calls."""

    def __new__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]
    ) -> _SaysWhy:
        if str(namespace["__module__"]).startswith("memcfg."):  # not a user's class
            namespace = {key: _explained(each) for key, each in namespace.items()}
        return super().__new__(cls, name, bases, namespace)

    if not TYPE_CHECKING:  # with __getattr__, a checker would accept any name

        def __getattr__(cls, name: str) -> NoReturn:
            raise _no_attribute("type object 'Dataset'", name, cls)


def _explained(value: Any) -> Any:
    """Return a method that names its arguments in the error of a wrong call."""
    if isinstance(value, classmethod | staticmethod):
        return type(value)(_explained(value.__func__))
    name = getattr(value, "__name__", "_")
    is_method = isinstance(value, FunctionType) and not name.startswith("_")
    return named_arguments(value) if is_method else value


def _no_attribute(owner: str, name: str, value: object) -> AttributeError:
    why = f", which tf.data has: {DATASET[name]}" if name in DATASET else ""
    text = f"{owner} has no attribute {name!r}{why}"
    return AttributeError(text, name=name, obj=value)


class Dataset(metaclass=_SaysWhy):
    """A pipeline of elements, like tf.data's `Dataset` but of NumPy arrays.

    A dataset is created by a class method such as `from_tensor_slices` and never
    changes: each method returns a new one. Nothing runs before it is iterated, and each
    iteration is an independent pass. An element is an array, a NumPy scalar, or a tuple
    or dict of these.

    Parameters
    ----------
    node : Node
        The last step. Users call a class method instead, which makes it.
    options : Options, optional
        Options of the whole pipeline.

    Notes
    -----
    Arrays come from the pool of the current device and count under its limit. Arrays
    that are the dataset's own memory, such as rows of the user's arrays, are read-only;
    all others may be written to. The memory of an element is not reused while a
    reference to the element exists.

    Text keeps its NumPy dtype, whereas tf.data converts it to bytes.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> x, y = np.zeros((100, 4), "float32"), np.arange(100)
    >>> data = mc.data.Dataset.from_tensor_slices((x, y)).shuffle(100).batch(32)
    >>> data = data.prefetch(mc.data.experimental.AUTOTUNE)
    >>> [len(labels) for features, labels in data]
    [32, 32, 32, 4]
    """

    if not TYPE_CHECKING:  # with __getattr__, a checker would accept any name

        def __getattr__(self, name: str) -> NoReturn:
            if isinstance(getattr(type(self), name, None), property):
                object.__getattribute__(self, name)  # raises the user's error again
            raise _no_attribute("'Dataset' object", name, self)

    def __init__(self, node: Node, options: Options | None = None) -> None:
        if not isinstance(node, Node):
            raise TypeError(
                "a Dataset is made by from_tensor_slices, from_generator or another "
                f"class method, not from {type(node).__name__}"
            )
        self._node = node
        self._options = Options() if options is None else options

    @classmethod
    def _made(cls, node: Node, options: Options | None = None) -> Self:
        """Make a dataset; the constructor of a subclass may take something else."""
        result = cls.__new__(cls)
        Dataset.__init__(result, node, options)
        return result

    def _then(
        self,
        step: Callable[typing.Concatenate[Node, P], Node],
        *args: P.args,
        **settings: P.kwargs,
    ) -> Self:
        return self._made(step(self._node, *args, **settings), self._options)

    @classmethod
    def from_tensors(cls, tensors: Any, name: str | None = None) -> Self:
        """Make a dataset with a single element.

        Parameters
        ----------
        tensors : nest
            The element. Arrays are not copied; Python integers become int32 (int64 if
            they do not fit), Python floats float32. A list becomes an array.
        name : str, optional
            Name of the step in messages and reports.

        Returns
        -------
        Dataset
            A dataset of one element, whose arrays are read-only views.

        Raises
        ------
        TypeError, ValueError
            If it cannot be an element: an object, a list that is not rectangular, a
            number out of range.

        Examples
        --------
        >>> import memcfg as mc
        >>> next(iter(mc.data.Dataset.from_tensors(([1, 2], 3.5))))
        (array([1, 2], dtype=int32), np.float32(3.5))
        """
        return cls._made(whole(tensors, name or "from_tensors"))

    @classmethod
    def from_tensor_slices(cls, tensors: Any, name: str | None = None) -> Self:
        """Make a dataset of the slices of arrays along their first axis.

        Parameters
        ----------
        tensors : nest
            Arrays of the same length, as for `from_tensors`. They are not copied.
        name : str, optional
            Name of the step in messages and reports.

        Returns
        -------
        Dataset
            A dataset whose arrays are read-only views of the rows.

        Raises
        ------
        TypeError
            If a leaf cannot be converted to an array.
        ValueError
            If an array has no axis, or the arrays differ in length.

        Notes
        -----
        Rows of a memory-mapped file (``np.load(path, mmap_mode="r")`` or
        `numpy.memmap`) are read with file reads instead of through the map, so the
        pages of the map do not add to the process's memory.

        Examples
        --------
        >>> import memcfg as mc
        >>> arrays = {"x": [[1, 2], [3, 4]], "y": [5, 6]}
        >>> for element in mc.data.Dataset.from_tensor_slices(arrays):
        ...     print(element)
        {'x': array([1, 2], dtype=int32), 'y': np.int32(5)}
        {'x': array([3, 4], dtype=int32), 'y': np.int32(6)}
        """
        return cls._made(sliced(tensors, name or "from_tensor_slices"))

    @classmethod
    def from_generator(
        cls,
        generator: Callable[..., Any],
        output_types: Any = None,
        output_shapes: Any = None,
        args: tuple[Any, ...] | None = None,
        output_signature: Any = None,
        name: str | None = None,
    ) -> Self:
        """Make a dataset of the elements that a generator yields.

        Parameters
        ----------
        generator : callable
            Returns an iterable. It is called once for each pass, in the thread that
            reads its elements, and closed when the pass ends, early or not.
        output_types : nest of dtype, optional
            Dtypes of the elements; `output_signature` is preferred.
        output_shapes : nest of shape, optional
            Shapes of the elements. Requires `output_types`.
        args : tuple, optional
            Arguments of `generator`; Python numbers are converted as in elements.
        output_signature : nest of TensorSpec, optional
            Specs of the elements. Without it, and without `output_types`, elements are
            converted as by `from_tensors`.
        name : str, optional
            Name of the step in messages and reports.

        Returns
        -------
        Dataset
            A dataset of copies: the generator may reuse its arrays.

        Raises
        ------
        TypeError
            If `generator` is not callable or the signature is invalid; during a pass,
            if an element has another structure, or a dtype that would lose values.
        ValueError
            During a pass, if an array has another shape, or an integer is out of range.

        Examples
        --------
        >>> import memcfg as mc
        >>> def count(stop):
        ...     yield from range(stop)
        >>> spec = mc.data.TensorSpec((), "int64")
        >>> make = mc.data.Dataset.from_generator
        >>> list(make(count, args=(3,), output_signature=spec))
        [np.int64(0), np.int64(1), np.int64(2)]
        """
        if not callable(generator):
            raise TypeError(
                "generator must be a callable that returns an iterable, not "
                f"{type(generator).__name__}"
            )
        signature = signature_of(output_types, output_shapes, output_signature)
        given = () if args is None else as_element(_arguments(args))
        node = Generated(generator, given, signature, name or "from_generator")
        return cls._made(node)

    @classmethod
    def range(
        cls,
        *args: int,
        output_type: npt.DTypeLike = np.int64,
        name: str | None = None,
    ) -> Self:
        """Make a dataset of evenly spaced numbers.

        Parameters
        ----------
        *args : int
            As for Python's `range`: stop; or start, stop; or start, stop, step.
        output_type : dtype, default np.int64
            Dtype of the numbers; integers that it can't hold wrap around.
        name : str, optional
            Name of the step in messages and reports.

        Returns
        -------
        Dataset
            The numbers.

        Raises
        ------
        TypeError
            If an argument is not an integer, or `output_type` is not numeric.
        ValueError
            If there are no or more than three arguments, the step is 0, an argument is
            out of int64's range, or there are 2**63 numbers or more.

        Examples
        --------
        >>> import memcfg as mc
        >>> list(mc.data.Dataset.range(5, 0, -2, output_type="int32"))
        [np.int32(5), np.int32(3), np.int32(1)]
        """
        numbers = _range(args)
        return cls._made(Slices(range_rows(numbers, output_type), name or "range"))

    @classmethod
    def list_files(
        cls,
        file_pattern: Any,
        shuffle: bool | None = None,
        seed: int | None = None,
        name: str | None = None,
    ) -> Self:
        """Make a dataset of the names of the files that match a pattern.

        Parameters
        ----------
        file_pattern : path or sequence of path
            Shell patterns, such as ``"data/*.tfrecord"``. A star also matches names
            that begin with a dot; it does not match ``/``.
        shuffle : bool, optional
            Whether the names are in random order, another one in each pass; else they
            are sorted. None: True.
        seed : int, optional
            The seed of the order, as for `shuffle`.
        name : str, optional
            Name of the step in messages and reports.

        Returns
        -------
        Dataset
            The names, as text. They are found when the dataset is made.

        Raises
        ------
        TypeError
            If an argument has the wrong type.
        FileNotFoundError
            If no file matches.

        Examples
        --------
        >>> import os, tempfile
        >>> import memcfg as mc
        >>> folder = tempfile.mkdtemp()
        >>> for number in range(2):
        ...     open(os.path.join(folder, f"{number}.txt"), "w").close()
        >>> files = mc.data.Dataset.list_files(f"{folder}/*.txt", shuffle=False)
        >>> [os.path.basename(file) for file in files]
        ['0.txt', '1.txt']
        """
        paths = matching_files(file_pattern)
        node: Node = sliced(np.array(paths), name or "list_files")
        if True if shuffle is None else flag(shuffle, "shuffle"):
            node = Shuffle(node, len(paths), seed, name=name or "list_files")
        return cls._made(node)

    @classmethod
    def zip(cls, *args: Any, datasets: Any = None, name: str | None = None) -> Self:
        """Combine datasets element by element, up to the end of the shortest.

        Parameters
        ----------
        *args : Dataset or nest of Dataset
            Several datasets, or one nest of them.
        datasets : nest of Dataset, optional
            The nest, as a keyword.
        name : str, optional
            Name of the step in messages and reports.

        Returns
        -------
        Dataset
            Elements have the structure of the nest, or are tuples. The options of the
            datasets are merged; where two differ, the later dataset's applies.

        Raises
        ------
        TypeError
            If there is no dataset, or a leaf of the nest is not a dataset.

        Examples
        --------
        >>> import memcfg as mc
        >>> three = mc.data.Dataset.range(3)
        >>> [(int(a), int(b)) for a, b in mc.data.Dataset.zip(three, three.skip(1))]
        [(0, 1), (1, 2)]
        """
        nest = _one_nest(args, datasets)
        options = Options()
        for item in flatten(nest):
            if not isinstance(item, Dataset):
                raise TypeError(
                    "zip takes datasets, and tuples and dicts of them, not "
                    f"{type(item).__name__}"
                    + (": zip(*datasets)" if isinstance(item, list) else "")
                )
            options = options.merge(item._options)
        nodes = map_structure(lambda item: item._node, nest)
        return cls._made(Zip(nodes, name or "zip"), options)

    @property
    def element_spec(self) -> Any:
        """The specs of an element: a nest of `TensorSpec`.

        For the results of users' functions, the pipeline is run for one element: dtypes
        and numbers of axes are taken from it, and all sizes are None.
        """
        return self._node.element_spec

    def cardinality(self) -> np.int64:
        """Return the number of elements of a pass, without running one.

        Returns
        -------
        numpy.int64
            The number, or `INFINITE_CARDINALITY` or `UNKNOWN_CARDINALITY`.

        Examples
        --------
        >>> import memcfg as mc
        >>> int(mc.data.Dataset.range(10).batch(4).cardinality())
        3
        """
        return np.int64(self._node.cardinality)

    def options(self) -> Options:
        """Return the options of the whole pipeline.

        Returns
        -------
        Options
            A copy: changing it does not change the dataset.
        """
        return Options().merge(self._options)

    def with_options(self, options: Options, name: str | None = None) -> Self:
        """Set options of the whole pipeline.

        Parameters
        ----------
        options : Options
            The options to set; those that are None stay unchanged. Copied.
        name : str, optional
            Ignored.

        Returns
        -------
        Dataset
            A dataset of the same elements.

        Raises
        ------
        TypeError
            If `options` is not an `Options`.
        """
        del name
        if not isinstance(options, Options):
            raise TypeError(
                f"options must be memcfg.data.Options, not {type(options).__name__}"
            )
        return self._made(self._node, self._options.merge(options))

    def take(self, count: int, name: str | None = None) -> Self:
        """Keep the first elements.

        Parameters
        ----------
        count : int
            Number of elements to keep; a negative number keeps all.
        name : str, optional
            Name of the step in messages and reports.

        Returns
        -------
        Dataset
            At most `count` elements.

        Raises
        ------
        TypeError
            If `count` is not an integer.
        ValueError
            If it is out of int64's range.
        """
        stop = _integer(count, "count")
        return self._then(Select, 0, stop if stop >= 0 else None, 1, name or "take")

    def skip(self, count: int, name: str | None = None) -> Self:
        """Skip the first elements.

        Parameters
        ----------
        count : int
            Number of elements to skip; a negative number skips all.
        name : str, optional
            Name of the step in messages and reports.

        Returns
        -------
        Dataset
            The remaining elements.

        Raises
        ------
        TypeError
            If `count` is not an integer.
        ValueError
            If it is out of int64's range.
        """
        start = _integer(count, "count")
        stop = None if start >= 0 else 0
        return self._then(Select, max(0, start), stop, 1, name or "skip")

    def repeat(self, count: int | None = None, name: str | None = None) -> Self:
        """Repeat the elements.

        Parameters
        ----------
        count : int, optional
            Number of passes. None or a negative number: no limit, unless a pass is
            empty.
        name : str, optional
            Name of the step in messages and reports.

        Returns
        -------
        Dataset
            The elements of all passes.

        Raises
        ------
        TypeError
            If `count` is not an integer.
        ValueError
            If it is out of int64's range.

        Examples
        --------
        >>> import memcfg as mc
        >>> [int(x) for x in mc.data.Dataset.range(3).repeat().take(5)]
        [0, 1, 2, 0, 1]
        """
        passes = -1 if count is None else _integer(count, "count")
        return self._then(Repeat, passes, name or "repeat")

    def shard(self, num_shards: int, index: int, name: str | None = None) -> Self:
        """Keep every n-th element.

        Parameters
        ----------
        num_shards : int
            n, at least 1.
        index : int
            Number of the first element to keep, from 0 to ``num_shards - 1``.
        name : str, optional
            Name of the step in messages and reports.

        Returns
        -------
        Dataset
            The elements numbered `index`, ``index + num_shards`` and so on.

        Raises
        ------
        TypeError
            If an argument is not an integer.
        ValueError
            If an argument is out of range.
        """
        shards = _integer(num_shards, "num_shards")
        first = _integer(index, "index")
        if shards < 1:
            raise ValueError(f"num_shards must be at least 1, got {shards}")
        if not 0 <= first < shards:
            raise ValueError(f"index must be from 0 to {shards - 1}, got {first}")
        return self._then(Select, first, None, shards, name or "shard")

    def filter(self, predicate: Callable[..., Any], name: str | None = None) -> Self:
        """Keep the elements for which a function returns True.

        Parameters
        ----------
        predicate : callable
            Takes an element (a tuple is unpacked into arguments); returns one bool.
        name : str, optional
            Name of the step in messages and reports.

        Returns
        -------
        Dataset
            A dataset of unknown cardinality.

        Raises
        ------
        TypeError
            If `predicate` is not callable.
        ValueError
            During a pass, if `predicate` does not return a bool.

        Examples
        --------
        >>> import memcfg as mc
        >>> [int(x) for x in mc.data.Dataset.range(9).filter(lambda x: x % 4 == 0)]
        [0, 4, 8]
        """
        if not callable(predicate):
            raise TypeError(
                f"predicate must be callable, not {type(predicate).__name__}"
            )
        return self._then(Filter, predicate, name or "filter")

    def shuffle(
        self,
        buffer_size: int,
        seed: int | None = None,
        reshuffle_each_iteration: bool = True,
        name: str | None = None,
    ) -> Self:
        """Shuffle the elements.

        Parameters
        ----------
        buffer_size : int
            Number of elements in the buffer from which the next element is drawn at
            random. For a uniform shuffle it must be at least the number of elements;
            `UNKNOWN_CARDINALITY` buffers all.
        seed : int, optional
            Seed of the order, which equals tf.data's for the same seed. None: a
            different order each time.
        reshuffle_each_iteration : bool, default True
            Whether each pass has a different order.
        name : str, optional
            Name of the step in messages and reports.

        Returns
        -------
        Dataset
            The same elements. For rows of arrays and files, the buffer holds row
            numbers instead of rows.

        Raises
        ------
        TypeError
            If a number is not an integer, or the switch is not a bool.
        ValueError
            If `buffer_size` is below 1.

        Examples
        --------
        >>> import memcfg as mc
        >>> sorted(int(x) for x in mc.data.Dataset.range(4).shuffle(4, seed=1))
        [0, 1, 2, 3]
        """
        switch = reshuffle_each_iteration
        return self._then(Shuffle, buffer_size, seed, switch, name or "shuffle")

    def concatenate(self, dataset: Self, name: str | None = None) -> Self:
        """Append the elements of another dataset.

        Parameters
        ----------
        dataset : Dataset
            The dataset to append.
        name : str, optional
            Name of the step in messages and reports.

        Returns
        -------
        Dataset
            The elements of both. The options are merged; where they differ, those of
            `dataset` apply.

        Raises
        ------
        TypeError
            If `dataset` is not a dataset, or elements differ in structure or dtype.
        """
        if not isinstance(dataset, Dataset):
            raise TypeError(
                f"concatenate takes a dataset, not {type(dataset).__name__}"
            )
        node = Concatenate(self._node, dataset._node, name or "concatenate")
        return self._made(node, self._options.merge(dataset._options))

    def enumerate(self, start: int = 0, name: str | None = None) -> Self:
        """Pair each element with its number.

        Parameters
        ----------
        start : int, default 0
            The first number.
        name : str, optional
            Name of the step in messages and reports.

        Returns
        -------
        Dataset
            Pairs of an int64 and an element.

        Raises
        ------
        TypeError
            If `start` is not an integer.
        ValueError
            If it is out of int64's range.
        """
        first = _integer(start, "start")
        numbers = range(first, min(first + _ENOUGH, 2**63))
        numbered = Slices(range_rows(numbers, np.int64), "range")
        return self._made(
            Enumerate((numbered, self._node), name or "enumerate"), self._options
        )

    def map(
        self,
        map_func: Callable[..., Any],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Self:
        """Call a function on each element.

        Parameters
        ----------
        map_func : callable
            A function of NumPy arrays and scalars. It takes an element (a tuple is
            unpacked into arguments) and returns the new one: arrays, numbers, text and
            lists, in tuples and dicts. Its arguments may be read-only.
        num_parallel_calls : int, optional
            Number of threads that call it, or `AUTOTUNE`: as many as save time, at most
            one a core. Functions that wait, such as for a network, gain from more
            threads: give a number, or set `options.autotune.cpu_budget`. None: calls
            are made one after the other in the consumer's thread.
        deterministic : bool, optional
            False: elements come in the order in which they are ready. None: the
            pipeline's option decides.
        name : str, optional
            Name of the step in messages and reports.

        Returns
        -------
        Dataset
            The results of the function; numbers are converted as by `from_tensors`.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong type or is out of range; during a pass, if a
            result of the function cannot be an element.
        BaseException
            During a pass, the function's exception, after the preceding elements.

        Examples
        --------
        >>> import memcfg as mc
        >>> [int(x) for x in mc.data.Dataset.range(3).map(lambda x: 2 * x)]
        [0, 2, 4]
        """
        calls = num_parallel_calls
        return self._then(Map, map_func, name or "map", calls, deterministic)

    def interleave(
        self,
        map_func: Callable[..., Any],
        cycle_length: int | None = None,
        block_length: int | None = None,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Self:
        """Map each element to a dataset, and interleave the elements of these.

        Parameters
        ----------
        map_func : callable
            Takes an element (a tuple is unpacked into arguments); returns a dataset.
        cycle_length : int, optional
            Number of datasets read at a time. None or `AUTOTUNE`: chosen from the
            number of cores.
        block_length : int, optional
            Number of consecutive elements of one dataset; 1 if None.
        num_parallel_calls : int, optional
            Number of threads that read the datasets, or `AUTOTUNE`. None: the
            consumer's thread reads them.
        deterministic : bool, optional
            False: elements come in the order in which they are ready. None: the
            pipeline's option decides.
        name : str, optional
            Name of the step in messages and reports.

        Returns
        -------
        Dataset
            The elements of all these datasets.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong type or is out of range; during a pass, if the
            function does not return a dataset.

        Examples
        --------
        >>> import memcfg as mc
        >>> def twice(x):
        ...     return mc.data.Dataset.from_tensors(x).repeat(2)
        >>> [int(x) for x in mc.data.Dataset.range(3).interleave(twice, cycle_length=2)]
        [0, 1, 0, 1, 2, 2]
        """
        return self._then(
            Interleave,
            _nodes_of(map_func),
            cycle_length,
            block_length,
            num_parallel_calls,
            deterministic,
            name or "interleave",
        )

    def flat_map(self, map_func: Callable[..., Any], name: str | None = None) -> Self:
        """Map each element to a dataset, and concatenate these.

        Parameters
        ----------
        map_func : callable
            Takes an element (a tuple is unpacked into arguments); returns a dataset.
        name : str, optional
            Name of the step in messages and reports.

        Returns
        -------
        Dataset
            The elements of all these datasets.

        Raises
        ------
        TypeError
            If `map_func` is not callable; during a pass, if it does not return a
            dataset.

        Examples
        --------
        >>> import memcfg as mc
        >>> rows = mc.data.Dataset.range(3).flat_map(mc.data.Dataset.range)
        >>> [int(x) for x in rows]
        [0, 0, 1]
        """
        nodes_of = _nodes_of(map_func)
        return self._then(Interleave, nodes_of, 1, 1, name=name or "flat_map")

    def cache(self, filename: str = "", name: str | None = None) -> Self:
        """Cache the elements of the first pass for later passes.

        Parameters
        ----------
        filename : path, default ""
            The file of the cache. The empty string caches in memory, under the device's
            limit.
        name : str, optional
            Name of the step in messages and reports.

        Returns
        -------
        Dataset
            The same elements; their arrays are read-only.

        Raises
        ------
        TypeError
            If `filename` is not a path.
        BlockingIOError
            During a pass, if another pass is writing the file.
        FormatError
            During a pass, if the file is damaged, or its elements have other specs.

        Warns
        -----
        UserWarning
            Once, if a pass ends early: its elements are not cached.

        Notes
        -----
        If the file exists it is read, and the preceding steps do not run: remove it
        when the data or a function changes.

        Examples
        --------
        >>> import memcfg as mc
        >>> def square(x):
        ...     print("squaring", x)
        ...     return x * x
        >>> data = mc.data.Dataset.range(2, 4).map(square).cache()
        >>> [int(x) for x in data]
        squaring 2
        squaring 3
        [4, 9]
        >>> [int(x) for x in data]
        [4, 9]
        """
        return self._then(Cache, filename, name or "cache")

    def prefetch(self, buffer_size: int | None, name: str | None = None) -> Self:
        """Prepare elements ahead in a background thread, in a ring of blocks.

        Parameters
        ----------
        buffer_size : int or None
            Max. elements prepared ahead. `AUTOTUNE`, which is -1, or None: chosen
            during a pass from the time that the reader waits. 0: no prefetch.
        name : str, optional
            Name of the step in messages and reports.

        Returns
        -------
        Dataset
            The same elements.

        Raises
        ------
        TypeError
            If `buffer_size` is not an integer.
        ValueError
            If it is below -1.

        Examples
        --------
        >>> import memcfg as mc
        >>> data = mc.data.Dataset.range(5).batch(2).prefetch(mc.data.AUTOTUNE)
        >>> list(data)
        [array([0, 1]), array([2, 3]), array([4])]
        """
        size = AUTOTUNE if buffer_size is None else _integer(buffer_size, "buffer_size")
        if size < AUTOTUNE:
            raise ValueError(
                f"buffer_size must be 0 or more, or AUTOTUNE (-1), got {size}"
            )
        return self._then(Prefetch, size, name or "prefetch")

    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Self:
        """Stack elements along a new first axis.

        Parameters
        ----------
        batch_size : int
            Number of elements of a batch; the last batch may be smaller.
        drop_remainder : bool, default False
            Whether to drop a smaller last batch.
        num_parallel_calls : int, optional
            Number of threads that make batches, or `AUTOTUNE`. None: batches are made
            one after the other in the consumer's thread.
        deterministic : bool, optional
            False: batches come in the order in which they are ready. None: the
            pipeline's option decides.
        name : str, optional
            Name of the step in messages and reports.

        Returns
        -------
        Dataset
            Batches, whose arrays the reader may write to.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong type or is out of range.
        ValueError
            During a pass, if the elements of a batch differ in shape.

        Examples
        --------
        >>> import memcfg as mc
        >>> list(mc.data.Dataset.range(5).batch(3))
        [array([0, 1, 2]), array([3, 4])]
        """
        return self._then(
            Batch,
            batch_size,
            drop_remainder,
            num_parallel_calls,
            deterministic,
            name or "batch",
        )

    def padded_batch(
        self,
        batch_size: int,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Self:
        """Stack elements of different sizes, padded to one size.

        Parameters
        ----------
        batch_size : int
            Number of elements of a batch; the last batch may be smaller.
        padded_shapes : nest of shape, optional
            The padded shape of each leaf; a size of None or -1 is the largest of the
            batch. None: the sizes of `element_spec`, where they are known.
        padding_values : nest, optional
            The padding, of the leaf's dtype. None: zeros and empty text.
        drop_remainder : bool, default False
            Whether to drop a smaller last batch.
        name : str, optional
            Name of the step in messages and reports.

        Returns
        -------
        Dataset
            Batches, whose arrays the reader may write to.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong type or is out of range.
        ValueError
            During a pass, if an element is larger than the padded shape.

        Examples
        --------
        >>> import numpy as np
        >>> import memcfg as mc
        >>> data = mc.data.Dataset.range(1, 4).map(lambda n: np.full(n, n))
        >>> for batch in data.padded_batch(3):
        ...     print(batch)
        [[1 0 0]
         [2 2 0]
         [3 3 3]]
        """
        return self._then(
            PaddedBatch,
            batch_size,
            padded_shapes,
            padding_values,
            drop_remainder,
            name or "padded_batch",
        )

    def bucket_by_sequence_length(
        self,
        element_length_func: Callable[..., Any],
        bucket_boundaries: Sequence[int],
        bucket_batch_sizes: Sequence[int],
        padded_shapes: Any = None,
        padding_values: Any = None,
        pad_to_bucket_boundary: bool = False,
        no_padding: bool = False,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Self:
        """Make batches of elements of similar lengths, and pad each to one shape.

        A model whose input has an axis of None plans a step for each length of its
        batches; with `pad_to_bucket_boundary` there are as many as boundaries.

        Parameters
        ----------
        element_length_func : callable
            Returns the length of an element; gets the parts of a tuple as arguments.
        bucket_boundaries : sequence of int
            Ascending lengths; each begins a bucket, and shorter elements are in the
            first.
        bucket_batch_sizes : sequence of int
            The number of elements of a batch of each bucket, one more than boundaries.
        padded_shapes : nest of shape, optional
            As of `padded_batch`.
        padding_values : nest, optional
            As of `padded_batch`.
        pad_to_bucket_boundary : bool, default False
            Whether to pad sizes of None, of `padded_shapes` or `element_spec`, to one
            less than the next boundary, instead of the largest of the batch.
        no_padding : bool, default False
            Whether elements of a batch must have one shape.
        drop_remainder : bool, default False
            Whether to drop the batches that are not full at the end, which otherwise
            follow from the shortest to the longest.
        name : str, optional
            Name of the step in messages and reports.

        Returns
        -------
        Dataset
            Batches, whose arrays the reader may write to.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong type or is out of range.
        ValueError
            During a pass, if an element does not fit its padded shape.

        Examples
        --------
        >>> import numpy as np
        >>> import memcfg as mc
        >>> data = mc.data.Dataset.range(1, 5).map(lambda n: np.full(n, n))
        >>> for batch in data.bucket_by_sequence_length(len, [3], [2, 2]):
        ...     print(batch)
        [[1 0]
         [2 2]]
        [[3 3 3 0]
         [4 4 4 4]]
        """
        return self._then(
            BucketBatch,
            element_length_func,
            bucket_boundaries,
            bucket_batch_sizes,
            padded_shapes,
            padding_values,
            pad_to_bucket_boundary,
            no_padding,
            drop_remainder,
            name or "bucket_by_sequence_length",
        )

    def window(
        self,
        size: int,
        shift: int | None = None,
        stride: int = 1,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Self:
        """Make datasets of elements that follow one another.

        Parameters
        ----------
        size : int
            Number of elements of a window; the last windows may be smaller.
        shift : int, optional
            How many elements a window begins behind the one before; None: `size`.
        stride : int, default 1
            The distance of the elements of a window.
        drop_remainder : bool, default False
            Whether to drop windows that are smaller.
        name : str, optional
            Name of the step in messages and reports.

        Returns
        -------
        Dataset
            A dataset of datasets: an element that is a tuple or dict becomes one of
            datasets. Steps that take arrays, such as `batch`, come after `flat_map`.

        Raises
        ------
        TypeError, ValueError
            If an argument has the wrong type or is out of range.

        Examples
        --------
        >>> import memcfg as mc
        >>> windows = mc.data.Dataset.range(5).window(3, shift=1, drop_remainder=True)
        >>> list(windows.flat_map(lambda window: window.batch(3)))
        [array([0, 1, 2]), array([1, 2, 3]), array([2, 3, 4])]
        """
        shift = size if shift is None else shift
        made = Dataset._made
        return self._then(
            Window, size, shift, stride, drop_remainder, made, name or "window"
        )

    def unbatch(self, name: str | None = None) -> Self:
        """Split elements along their first axis.

        Parameters
        ----------
        name : str, optional
            Name of the step in messages and reports.

        Returns
        -------
        Dataset
            The slices.

        Raises
        ------
        ValueError
            If a leaf has no axis; during a pass, if leaves differ in length.

        Examples
        --------
        >>> import memcfg as mc
        >>> [int(x) for x in mc.data.Dataset.range(5).batch(3).unbatch()]
        [0, 1, 2, 3, 4]
        """
        return self._then(Unbatch, name or "unbatch")

    def as_numpy_iterator(self) -> DatasetIterator:
        """Begin a pass, as `iter` does: all elements are of NumPy arrays and scalars.

        Returns
        -------
        DatasetIterator
            The pass.

        Examples
        --------
        >>> import memcfg as mc
        >>> [int(x) for x in mc.data.Dataset.range(3).as_numpy_iterator()]
        [0, 1, 2]
        """
        return DatasetIterator(self._node, self._options)

    def reduce(
        self,
        initial_state: Any,
        reduce_func: Callable[[Any, Any], Any],
        name: str | None = None,
    ) -> Any:
        """Reduce the elements to one value.

        Parameters
        ----------
        initial_state : nest
            The state before the first element.
        reduce_func : callable
            Takes the state and an element, which is not unpacked; returns the next
            state. As for `map`, a returned list becomes a tuple.
        name : str, optional
            Ignored.

        Returns
        -------
        nest of numpy.ndarray and numpy.generic
            The state after the last element.

        Raises
        ------
        TypeError
            If a state differs from the first in structure or dtype.
        BaseException
            The exception of a function of the pipeline.

        Examples
        --------
        >>> import numpy as np
        >>> import memcfg as mc
        >>> int(mc.data.Dataset.range(5).reduce(np.int64(0), lambda sum, x: sum + x))
        10
        """
        del name
        state = as_element(initial_state)
        first = spec_of(state)
        with self.as_numpy_iterator() as elements:
            for element in elements:
                state = as_result(reduce_func(state, element))
                _check_state(state, first)
        return state

    def apply(self, transformation_func: Callable[[Self], Self]) -> Self:
        """Apply a function to this dataset, for use in a chain of methods.

        Parameters
        ----------
        transformation_func : callable
            Takes a dataset and returns one.

        Returns
        -------
        Dataset
            The result of the function.

        Raises
        ------
        TypeError
            If the result is not a dataset.
        """
        result = transformation_func(self)
        if not isinstance(result, Dataset):
            raise TypeError(
                "transformation_func must return a memcfg.data.Dataset, but returned "
                f"{type(result).__name__}"
            )
        return result

    def __iter__(self) -> DatasetIterator:
        """Begin a pass; it ends when the iterator is exhausted or closed."""
        return self.as_numpy_iterator()

    def __len__(self) -> int:
        """Return the number of elements of a pass.

        Raises
        ------
        TypeError
            If the number is infinite or not known.
        """
        result = self._node.cardinality
        if result == INFINITE:
            raise TypeError("the dataset is infinite")
        if result == UNKNOWN:
            raise TypeError("the length of the dataset is unknown")
        return result

    def __bool__(self) -> bool:
        """Return True, whether the dataset has elements or not."""
        return True

    def __repr__(self) -> str:
        steps, node = [self._node.name], self._node
        while node.inputs:
            node = node.inputs[0]
            steps.append(node.name)
        return f"<Dataset {' > '.join(reversed(steps))}>"


def _arguments(args: Any) -> tuple[Any, ...]:
    if not isinstance(args, tuple | list):
        raise TypeError(f"args must be a tuple, not {type(args).__name__}")
    return tuple(args)


def _range(args: tuple[Any, ...]) -> range:
    if not 1 <= len(args) <= 3:
        raise ValueError(f"range takes one to three integers, got {len(args)}")
    numbers = [_integer(arg, "an argument of a range") for arg in args]
    if len(numbers) == 3 and numbers[2] == 0:
        raise ValueError("the step of a range must not be 0")
    result = range(*numbers)
    if result and (result[-1] - result[0]) // result.step >= _MAX:
        raise ValueError(f"a range must have fewer than 2**63 numbers, got {args!r}")
    return result


def _one_nest(args: tuple[Any, ...], datasets: Any) -> Any:
    if bool(args) == (datasets is not None):
        raise TypeError("zip takes either datasets or one nest of them")
    nest = datasets if not args else args[0] if len(args) == 1 else args
    if not flatten(nest):
        raise TypeError("zip takes at least one dataset")
    return nest


def _nodes_of(map_func: Callable[..., Any]) -> Callable[[Any], Node]:
    if not callable(map_func):
        raise TypeError(f"map_func must be callable, not {type(map_func).__name__}")

    def node_of(element: Any) -> Node:
        result = call(map_func, element)
        if not isinstance(result, Dataset):
            raise TypeError(
                f"map_func must return a dataset, but returned {type(result).__name__}"
            )
        return result._node

    return node_of


def _check_state(state: Any, first: Any) -> None:
    if not same_structure(state, first):
        raise TypeError(
            f"the structure of the state changed from {first!r} to {spec_of(state)!r}"
        )
    for leaf, spec in zip(flatten(state), flatten(first), strict=True):
        if not TensorSpec(None, spec.dtype).is_compatible_with(leaf):
            raise TypeError(
                f"the dtype of the state changed from {spec.dtype} to {leaf.dtype}: "
                f"use an initial_state of {leaf.dtype}"
            )


def _integer(value: Any, what: str) -> int:
    try:
        result = operator.index(value)
    except TypeError as error:
        raise TypeError(f"{what} must be an integer, not {value!r}") from error
    if not -(2**63) <= result < 2**63:
        raise ValueError(f"{what} must fit int64, got {result}")
    return result
