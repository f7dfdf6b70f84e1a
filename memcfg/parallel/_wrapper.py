"""Training of one model by several workers, each under the limit of its device."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memcfg import config
from memcfg._caller import outside
from memcfg._checks import unknown
from memcfg._core import get_num_threads, set_num_threads
from memcfg.config import threading as limits
from memcfg.data import (
    AsyncDataSetIterator,
    AsyncShieldDataSetIterator,
    Dataset,
    DataSetIterator,
)
from memcfg.data.ops._prefetch import Prefetch
from memcfg.nn import Model
from memcfg.nn._argument_checks import integer, real
from memcfg.nn._random import next_seed
from memcfg.nn.inputs._reading import is_stream
from memcfg.nn.training._compile_config import get_modes
from memcfg.nn.training.ranks._sharding import SHARDINGS, require_elementwise
from memcfg.ops import EncodedTotals
from memcfg.parallel._averaging import Averaging
from memcfg.parallel._evaluating import batches_of, evaluate
from memcfg.parallel._in_process import in_process_group
from memcfg.parallel._members import Members
from memcfg.parallel._shared_gradients import SharedGradients
from memcfg.parallel._synchronous import Synchronous
from memcfg.parallel._values import copy_values
from memcfg.parallel._wrapper_builder import ParallelWrapperBuilder
from memcfg.parallel.encoding import (
    AdaptiveThresholdAlgorithm,
    ResidualClippingPostProcessor,
    ThresholdAlgorithm,
)
from memcfg.parallel.encoding._gradient_encoder import GradientEncoder
from memcfg.parallel.processes._mpi import mpi_communicator, mpi_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    from memcfg.memory import Pool
    from memcfg.nn.callbacks import History
    from memcfg.nn.training._compile_config import CompileConfig
    from memcfg.ops import Communicator
    from memcfg.parallel.processes._mpi import MpiCommunicator
    from memcfg.runtime import MemoryReport
    from memcfg.workspaces import WorkspaceMode

__all__ = ["ParallelWrapper"]

_MODES = ("averaging", "all_reduce", "shared_gradients")
_GROUP_TIMEOUT = 300.0  # seconds: planning a large model takes minutes


class ParallelWrapper:
    """Train a model with several workers, each with a replica on its own device.

    A batch is divided among the workers, so `batch_size` is that of all of them
    together. The replica of each worker is planned within the limit of its device. The
    model itself is the first worker's, and has the result.

    Parameters
    ----------
    model : Model
        A compiled model with built-in steps. Its weights change in `fit`.
    workers : int, optional
        The number of replicas, at least 2. The default is the number of logical GPUs;
        without any, the number of cores divided by the threads of a kernel
        (`memcfg.config.threading.get_intra_op_parallelism_threads`, or 1 if that is
        0). Under MPI, each process is a worker, and this is not used.
    prefetch_buffer : int, default 2
        Batches of a `memcfg.data.Dataset` or `memcfg.data.DataSetIterator` that a
        thread reads ahead for each device of the workers, into a ring of blocks in its
        memory; batches lie in these in turn. With 0 an iterator is read when a batch is
        needed, and a dataset as it says itself. Arrays are read in place, and of other
        iterables `Model.fit` reads two batches ahead.
    averaging_frequency : int, default 1
        Batches between two averages. Only for ``training_mode="averaging"``.
    average_updaters : bool, default True
        Whether the optimizer's state is averaged as well. Only for ``"averaging"``.
    report_score_after_averaging : bool, default False
        Whether each average, or in synchronous training each step, prints a line with
        the loss of its batch, which is also `score`.
    workspace_mode : WorkspaceMode or str, optional
        The workspace mode of training steps while the wrapper is open, as
        ``training_workspace_mode`` of `compile`. The default is the model's.
    training_mode : {"averaging", "all_reduce", "shared_gradients"}, default "averaging"
        ``"averaging"``: each worker trains on its part of each batch, and weights are
        averaged now and then. ``"all_reduce"``: each step computes the gradient of the
        whole batch together, so that all have the same weights at all times.
        ``"shared_gradients"``: the same, except that workers send each other encodings
        of their gradients, which take a small part of the bytes; see Notes.
    threshold_algorithm : ThresholdAlgorithm, optional
        Chooses the thresholds of ``"shared_gradients"``; each worker has a clone. The
        default is ``AdaptiveThresholdAlgorithm()``. After `fit` the attribute of this
        name is what all workers have learned, and can be passed to another wrapper.
    residual_post_processor : ResidualClippingPostProcessor, optional
        Clips residuals of ``"shared_gradients"``. The default is not to.
    shard : {"optimizer", "gradients", "parameters", "auto"}, optional
        What the workers divide among themselves in ``"all_reduce"``, each with an equal
        part of every weight of 1 KiB or more. ``"optimizer"``: the optimizer's state;
        each worker updates its part of a weight, and all gather the whole. Gradients
        are summed whole, in few messages. ``"gradients"``: each worker also receives
        its part of the sum alone, one weight after another, so that no whole sum is
        resident. ``"parameters"``: also the weights; they are gathered for the forward
        pass, and again for the backward pass where the limit leaves no room for them in
        between. ``"auto"``: the one of these, or nothing, that is fastest within the
        limits, as `estimate` predicts it for the first batch; the attribute of this
        name is then what was chosen. The default divides nothing.
    devices : sequence of str or LogicalDevice, optional
        The devices of the workers. The default is the model's own, then all others of
        its type in turn; workers may share one, and its limit.
    communicator : Communicator, optional
        The ranks of which this process is one, such as `mpi_communicator`. The default
        is all processes that ``mpiexec`` has started, or the threads of this one.
    timeout : float, default 300.0
        Seconds that workers of this process wait for each other, or the processes that
        ``mpiexec`` has started. A given communicator has its own.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or the model cannot be divided: with batch
        normalization, ``"all_reduce"`` and ``"shared_gradients"`` need
        ``compile(batch_statistics="micro")``, since each worker has the statistics of
        its own part. With `shard`, the optimizer must update each element by itself: no
        Adafactor, Lamb or Muon, no ``clipnorm`` and no ``global_clipnorm``.
    RuntimeError
        If the model is not compiled.
    MissingDependencyError
        If ``mpiexec`` has started this process, and mpi4py is not installed.

    Notes
    -----
    A part of a batch that does not fit runs in micro-batches, if `compile` permits it;
    all workers run as many. Encoded gradients are of whole parts.

    Names and rules are those of DL4J's ParallelWrapper, except that a batch is divided
    among the workers and not given to one. Averages are weighted by samples. Sums are
    taken in the order of the workers, so that runs of the same program have the same
    bits, whatever they divide.

    What the workers divide is put together where it is read, as in `Model.get_weights`,
    `Model.save` or a callback that saves, and when the wrapper closes or the model
    trains by itself. So files are whole, and any number of workers reads them. Under
    MPI all processes read together: callbacks are the same in all.

    In ``"shared_gradients"`` each worker adds its gradient of the batch to a residual.
    Elements whose absolute value is the threshold or more are sent as the threshold
    with their sign, and subtracted from the residual, which keeps the rest for later
    steps [1]_. All workers apply the optimizer to the sum of what they have sent, so
    that they have the same weights. DL4J encodes the optimizer's updates and not
    gradients. With plain gradient descent that is the same if the threshold is
    multiplied by the learning rate; with other optimizers this form needs no optimizer
    state of its own for each worker. A residual has the bytes of its weight, which are
    planned like the optimizer's state. It is not saved, and is 0 again after an error,
    `close` or `compile`. A single rank sends nothing, and does not encode. If a
    gradient is not finite, the step raises ValueError and changes nothing.

    References
    ----------
    .. [1] N. Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud
       Computing", Interspeech 2015.

    Examples
    --------
    >>> import memcfg as mc  # doctest: +SKIP
    >>> with mc.parallel.ParallelWrapper(model, 2) as wrapper:  # doctest: +SKIP
    ...     wrapper.fit(x, y, batch_size=64, epochs=3)
    """

    def __init__(
        self,
        model: Model,
        workers: int | None = None,
        *,
        prefetch_buffer: int = 2,
        averaging_frequency: int = 1,
        average_updaters: bool = True,
        report_score_after_averaging: bool = False,
        workspace_mode: WorkspaceMode | str | None = None,
        training_mode: str = "averaging",
        threshold_algorithm: ThresholdAlgorithm | None = None,
        residual_post_processor: ResidualClippingPostProcessor | None = None,
        shard: str | None = None,
        devices: Sequence[Any] | None = None,
        communicator: Communicator | None = None,
        timeout: float = _GROUP_TIMEOUT,
    ) -> None:
        if training_mode not in _MODES:
            raise unknown("training_mode", str(training_mode), _MODES)
        _check_averaging(training_mode, averaging_frequency, average_updaters)
        self._compiled = _compiled(model)
        if shard is not None:
            _check_shard(shard, training_mode)
            if shard != "auto":
                require_elementwise(self._compiled.optimizer)
        self.model = model
        self.training_mode = training_mode
        self.shard = shard
        self.score: float | None = None
        self.threshold_algorithm = _algorithm(training_mode, threshold_algorithm)
        self._post_processor = _post_processor(training_mode, residual_post_processor)
        self._encoded = EncodedTotals()  # of members that have been dropped
        self._prefetch = integer(prefetch_buffer, "prefetch_buffer", 0)
        self._frequency = integer(averaging_frequency, "averaging_frequency", 1)
        self._updaters = bool(average_updaters)
        self._reports = bool(report_score_after_averaging)
        self._timeout = _positive(timeout)
        modes = self._compiled.modes
        if workspace_mode is not None:
            modes = get_modes(workspace_mode, modes.inference.value, None, None)
        self._own_group: MpiCommunicator | None = None  # to be closed
        self._communicator = self._ranks(communicator, devices)
        if self._communicator is None:
            self.workers = _workers(workers)
            self._devices = _devices(model, self.workers, devices)
        else:
            self.workers = self._communicator.size
            self._devices = []
            _warn_of_workers(workers, self.workers)
        self._members: Members | None = None
        self._before: Any = None  # the configuration to restore
        if modes != self._compiled.modes:
            self._before = self._compiled
            self._reconfigure(replace(self._compiled, modes=modes))

    @classmethod
    def Builder(cls, model: Model) -> ParallelWrapperBuilder:  # noqa: N802  as in DL4J
        """Return what collects the arguments one by one.

        Parameters
        ----------
        model : Model
            The model.

        Returns
        -------
        ParallelWrapperBuilder
            ``Builder(model).workers(2).build()`` is ``ParallelWrapper(model,
            workers=2)``.
        """
        return ParallelWrapperBuilder(model, cls)

    def fit(self, x: Any, y: Any = None, **options: Any) -> History:
        """Train the model; all arguments are those of `Model.fit`.

        Callbacks see the model. Validation is divided among the workers as well. The
        model has the weights of all workers when this ends, also with an error.

        Parameters
        ----------
        x : numpy.ndarray, Dataset or iterable
            Samples, or batches. Under MPI all processes pass the same data, and each
            reads its part of every batch.
        y : numpy.ndarray, optional
            The targets.
        **options
            Such as ``batch_size``, ``epochs``, ``validation_data``, ``callbacks``.

        Returns
        -------
        History
            The numbers of each epoch, of all samples.

        Raises
        ------
        CommunicationError
            If a worker of another process failed, or one did not arrive in time.
        Exception
            What `Model.fit` raises. An error of one worker ends the step of all;
            weights of synchronous training are as before that step.
        """
        members = self._open()
        session = members.lead.session
        options = dict(options)
        is_read = is_stream(None, x, y)
        if is_read:
            x = self._read_ahead(x)
        distribution: Averaging | Synchronous | None = None
        try:
            if not is_read:
                seed = next_seed()
                seeds = members.call(lambda member: member.communicator.exchange(seed))
                options.setdefault("seed", seeds[0][0])
            distribution = self._distribution(members)
            session.distribution = distribution
            with self._threads():
                return self.model.fit(x, y, **options)
        except BaseException as error:
            if self._communicator is not None:  # other processes may be in a step
                members.fail(members.lead, error)
            raise
        finally:
            session.distribution = None
            self._end(members, distribution)

    def do_evaluation(
        self,
        x: Any,
        *evaluations: Any,
        batch_size: int | None = None,
        steps: int | None = None,
    ) -> Any:
        """Evaluate the model with all workers; evaluators merge what each has seen.

        Batch i is evaluated by worker i modulo their number, and results are merged in
        the order of workers, so they do not depend on threads. With
        ``shard="parameters"`` the workers gather weights as in training, and results
        are the same.

        Parameters
        ----------
        x : tuple, Dataset or iterable
            As of `Model.do_evaluation`. Under MPI all processes pass the same data, and
            each reads the batches that it evaluates.
        *evaluations : Evaluator or dict
            As of `Model.do_evaluation`, with a method ``merge``. Under MPI those of all
            processes have the result.
        batch_size : int, optional
            Samples of a batch of arrays; None: 32.
        steps : int, optional
            How many batches are read. None: all.

        Returns
        -------
        Evaluator, dict or tuple of them
            `evaluations`, or the only one.

        Raises
        ------
        TypeError
            If an evaluator cannot be merged, or a number is not an integer.
        ValueError
            If there is no evaluator, a number is not positive, `batch_size` is given
            for batches, or processes pass other numbers of batches.
        CommunicationError
            If a worker of another process failed, or one did not arrive in time.
        Exception
            What `Model.do_evaluation` raises; evaluators are as they were.
        """
        if not evaluations:
            raise ValueError("there is no evaluator: pass one, such as Evaluation()")
        batches = batches_of(x, batch_size, steps)
        members = self._open()
        try:
            if self.shard in SHARDINGS:
                members.join(self.shard)
            with self._threads():
                evaluate(self.model, members, batches, evaluations)
        finally:
            self._drop_broken()
        return evaluations[0] if len(evaluations) == 1 else evaluations

    def memory_reports(self, *, verify: bool = False) -> list[MemoryReport]:
        """Report the memory of the training step of each worker of this process.

        Parameters
        ----------
        verify : bool, default False
            Whether the step is run on synthetic data to measure its peak. Under MPI all
            processes call this together. Weights stay as they are.

        Returns
        -------
        list of MemoryReport
            The model's first; each is within the limit of its worker's device.

        Raises
        ------
        RuntimeError
            If `fit` has not run since the wrapper was made or the model compiled.
        """
        members = self._members
        if members is None:
            raise RuntimeError("there are no workers before the first fit")
        return members.call(lambda member: member.session.report_of_rank(verify=verify))

    @property
    def encoded_totals(self) -> EncodedTotals:
        """What the workers of this process have encoded in ``"shared_gradients"``.

        Workers of one process send nothing: bytes are what they would be between
        processes. Steps of ``memory_reports(verify=True)`` count.
        """
        total = self._encoded
        for each in () if self._members is None else self._members.all:
            total = total.plus(each.communicator.encoded_totals)
        return total

    @property
    def bytes_sent(self) -> int:
        """The bytes of the encodings, as of `encoded_totals`."""
        return self.encoded_totals.sent_bytes

    def stop_fit(self) -> None:
        """End `fit` after the current step; from a callback or another thread."""
        self.model.stop_training = True

    def close(self) -> None:
        """Free the replicas; the model keeps its weights."""
        self._drop_broken()
        if self._members is not None:
            self._drop(self._members)
        group, self._own_group = self._own_group, None
        if group is not None:
            group.close()
        if self._before is not None:
            before, self._before = self._before, None
            self._reconfigure(before)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ranks(
        self, given: Communicator | None, devices: Sequence[Any] | None
    ) -> Communicator | None:
        """Return this process's rank among several; None if it has all workers."""
        over_mpi = given is None and mpi_size() > 1
        if devices is not None and (over_mpi or given is not None):
            raise ValueError(
                "devices are of the workers of one process: with a communicator each "
                "rank trains on the device that its model was compiled for"
            )
        if over_mpi:
            self._own_group = mpi_communicator(timeout=self._timeout)
            return self._own_group
        return given

    def _open(self) -> Members:
        """Return the members, with the model's weights and optimizer state."""
        session = self.model._built_session()
        self._drop_broken()  # such as by an interrupt when a fit began
        if self._members is not None and self._members.lead.session is not session:
            self._drop(self._members)  # the model was compiled again
        if self._members is None:
            sessions = [session]
            if self._communicator is not None:
                communicators: list[Communicator] = [self._communicator]
            else:
                communicators = [*in_process_group(self.workers, self._timeout)]
                sessions += [
                    session.replica(device, f"{self.model.name}, worker {number}")
                    for number, device in enumerate(self._devices[1:], start=1)
                ]
            encode = self._encoder if self.training_mode == "shared_gradients" else None
            self._members = Members(sessions, communicators, encode)
        self._members.serve()
        lead, *others = self._members.all
        if not session.is_of(lead.rank(self.shard)):
            for each in others:
                if each.session.is_of(each.rank(self.shard)):  # it has left them since
                    each.session.forget()
        self._members.call(copy_values)
        return self._members

    def _distribution(self, members: Members) -> Averaging | Synchronous:
        """Return what runs the steps of a `fit`."""
        if self.training_mode == "shared_gradients":
            return SharedGradients(members, report=self._report, learned=self._learned)
        if self.training_mode == "all_reduce":
            return Synchronous(
                members, sharding=self.shard, report=self._report, chosen=self._chose
            )
        return Averaging(
            members, self._frequency, updaters=self._updaters, report=self._report
        )

    def _end(
        self, members: Members, distribution: Averaging | Synchronous | None
    ) -> None:
        """Give the model the weights of all workers; drop the replicas of a failure."""
        try:
            if distribution is None:
                return
            if not members.is_broken:
                distribution.finish(members)
            elif self._communicator is None:  # its threads have ended, and none waits
                sessions = [each.session for each in members.all]
                again = Members(sessions, in_process_group(self.workers, self._timeout))
                try:
                    distribution.finish(again)
                finally:
                    again.close()
        finally:
            self._drop_broken()

    def _drop_broken(self) -> None:
        """Drop the members if one has failed, when other processes have given parts."""
        members = self._members
        if members is not None and members.is_broken:
            with members.renewed():
                self._drop(members)

    def _drop(self, members: Members) -> None:
        """Close the members, and keep the numbers of what they have encoded."""
        self._encoded, self._members = self.encoded_totals, None
        members.close()

    def _encoder(self, communicator: Communicator) -> GradientEncoder | None:
        """Return the encoder of a rank; None if there are no others."""
        algorithm = self.threshold_algorithm
        if communicator.size == 1 or algorithm is None:
            return None
        return GradientEncoder(algorithm, self._post_processor, communicator)

    def _learned(self, algorithm: ThresholdAlgorithm) -> None:
        self.threshold_algorithm = algorithm

    def _chose(self, shard: str | None) -> None:
        self.shard = shard

    def _report(self, score: float) -> None:
        self.score = score
        if self._reports:
            print(f"{self.model.name}: score {score:.6g} of {self.workers} workers")

    def _read_ahead(self, x: Any) -> Any:
        """Return batches that a thread reads ahead, as `prefetch_buffer` says."""
        pools = self._pools()
        waiting = self._prefetch * len(pools)
        if isinstance(x, Dataset):
            return x._then(Prefetch, waiting, "prefetch", pools) if waiting else x
        if isinstance(x, DataSetIterator) and not waiting:
            return AsyncShieldDataSetIterator(x)
        if isinstance(x, DataSetIterator) and x.async_supported:
            return AsyncDataSetIterator(x, waiting, resource=pools)
        return x

    def _pools(self) -> tuple[Pool, ...]:
        """Return the memory for batches of each device of this process."""
        devices = map(config.logical_device, dict.fromkeys(self._devices))
        return tuple(each.host_pool for each in devices) or (self.model._pool(),)

    @contextmanager
    def _threads(self) -> Iterator[None]:
        """Share the cores among the workers, unless the user has set the threads."""
        shared = self._communicator is None
        if not shared or limits.get_intra_op_parallelism_threads():
            yield
            return
        before = set_num_threads(max(1, get_num_threads() // self.workers))
        try:
            yield
        finally:
            set_num_threads(before)

    def _reconfigure(self, compiled: Any) -> None:
        """Give the model another configuration, with its values."""
        with self.model._lock.step():
            self.model._configure(compiled)


def _algorithm(
    mode: str, given: ThresholdAlgorithm | None
) -> ThresholdAlgorithm | None:
    """Return the threshold algorithm of a training mode, if it has one."""
    if mode != "shared_gradients":
        _refuse_in(mode, threshold_algorithm=given)
        return None
    if given is None:
        return AdaptiveThresholdAlgorithm()
    if not isinstance(given, ThresholdAlgorithm):
        raise TypeError(f"threshold_algorithm is a ThresholdAlgorithm, not {given!r}")
    return given.clone()


def _post_processor(
    mode: str, given: ResidualClippingPostProcessor | None
) -> ResidualClippingPostProcessor | None:
    """Return the residual post-processor of a training mode, if it has one."""
    if mode != "shared_gradients":
        _refuse_in(mode, residual_post_processor=given)
    elif given is not None and not isinstance(given, ResidualClippingPostProcessor):
        raise TypeError(
            f"residual_post_processor is a ResidualClippingPostProcessor, not {given!r}"
        )
    return given


def _positive(timeout: float) -> float:
    """Return a timeout; ValueError if it is not positive."""
    result = real(timeout, "timeout")
    if result <= 0:
        raise ValueError(f"timeout is positive seconds, not {timeout}")
    return result


def _check_averaging(mode: str, frequency: int, updaters: bool) -> None:
    """Raise ValueError if an argument of averaging is set in another mode."""
    given = {"averaging_frequency": frequency != 1, "average_updaters": not updaters}
    for name, is_set in given.items():
        if is_set and mode != "averaging":
            raise ValueError(f'{name} is for training_mode="averaging", not {mode!r}')


def _refuse_in(mode: str, **arguments: Any) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise ValueError(
                f'{name} is for training_mode="shared_gradients", not {mode!r}'
            )


def _compiled(model: Any) -> CompileConfig:
    """Return how a model was compiled whose steps can be divided."""
    if not isinstance(model, Model):
        name = type(model).__name__
        raise TypeError(f"ParallelWrapper takes a Model, got {name}")
    model._require_built_in_steps("ParallelWrapper")
    return model._compiled("ParallelWrapper")


def _check_shard(shard: str, training_mode: str) -> None:
    """Raise ValueError unless workers of a training mode divide what `shard` says."""
    if shard not in ("auto", *SHARDINGS):
        raise unknown("shard", str(shard), ("auto", *SHARDINGS))
    if training_mode != "all_reduce":
        raise ValueError(
            f"shard={shard!r} is for training_mode='all_reduce': workers that train "
            f"apart, as with {training_mode!r}, each need all values"
        )


def _workers(given: int | None) -> int:
    """Return the number of workers of this process."""
    if given is None:
        gpus = config.list_logical_devices("GPU")
        threads = limits.get_intra_op_parallelism_threads() or 1
        result = len(gpus) or get_num_threads() // threads
        if result < 2:
            raise ValueError(
                f"workers is {result} by default here, and a wrapper has 2 at least: "
                "pass workers=2, or train the model itself"
            )
    else:
        result = integer(given, "workers", 2)
    at_once = limits.get_inter_op_parallelism_threads()
    if 0 < at_once < result:
        raise ValueError(
            f"{result} workers wait for each other in a step, and the process runs "
            f"{at_once} programs at a time: raise it with memcfg.config.threading."
            "set_inter_op_parallelism_threads"
        )
    return result


def _warn_of_workers(given: int | None, ranks: int) -> None:
    """Warn if a number of workers is not that of the ranks."""
    if given is not None and given != ranks:
        warnings.warn(
            f"workers={given} is not used: each of the {ranks} ranks is a worker",
            stacklevel=outside(),
        )


def _devices(model: Model, workers: int, given: Sequence[Any] | None) -> list[str]:
    """Return the name of each worker's device, that of the model first."""
    own = config.logical_device(model._compiled("ParallelWrapper").device).name
    if given is None:
        kind = own.split(":")[-2]
        names = [each.name for each in config.list_logical_devices(kind)]
        at = names.index(own)
        turn = names[at:] + names[:at]
        return [turn[number % len(turn)] for number in range(workers)]
    names = []
    for each in given:
        with config.device(each) as device:
            names.append(device.name)
    if len(names) != workers or names[0] != own:
        raise ValueError(
            f"devices names one for each of {workers} workers, and that of the model, "
            f"{own}, first; got {', '.join(names) or 'none'}"
        )
    return names
