"""A model that answers the requests of many threads."""

from __future__ import annotations

import math
import weakref
from concurrent.futures import Future
from numbers import Real
from typing import TYPE_CHECKING, Any

from memcfg._checks import count
from memcfg.errors import QueueFullError
from memcfg.parallel.inference._dispatcher import Dispatcher
from memcfg.parallel.inference._future_request import FutureRequest
from memcfg.parallel.inference._inference_builder import InferenceBuilder
from memcfg.parallel.inference._inference_mode import InferenceMode
from memcfg.parallel.inference._inference_request import InferenceRequest
from memcfg.parallel.inference._inference_stats import InferenceStats
from memcfg.parallel.inference._lease import Lease
from memcfg.parallel.inference._load_balance_mode import LoadBalanceMode
from memcfg.parallel.inference._replica_set import ReplicaSet

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from memcfg.nn import Model

__all__ = ["ParallelInference"]


class ParallelInference:
    """Answer the requests of many threads with a model.

    Requests that wait while all workers compute are computed as one batch, as large as
    memory allows. A request that finds a worker free is computed at once, in the
    caller's thread.

    Parameters
    ----------
    model : Model
        A model whose shapes are known. The first worker computes with the model itself;
        each of the others has a copy with its own memory.
    inference_mode : InferenceMode or str, default "batched"
        ``"sequential"`` computes one request at a time on each worker, as
        `predict_on_batch` does, ``"batched"`` those that wait as one batch, and
        ``"inplace"`` computes in the caller's thread, without any thread of its own.
    workers : int, optional
        The number of workers. None: one on each logical device of the kind on which the
        model lies. More are distributed over these devices.
    batch_limit : int, optional
        The most samples that are computed as one batch. A request with more is computed
        in parts. None: the largest batch with a plan within what the device's limit
        leaves to the worker, or 32 if nothing limits it.
    queue_limit : int, default 64
        The number of requests that may wait.
    max_wait : float, default 0
        Seconds for which a request waits for others, so that batches are larger. Only
        in mode ``"batched"``. With 0, batches contain what waits when a worker becomes
        free.
    on_full : {"block", "raise"}, default "block"
        What is done with a request while `queue_limit` others wait: its caller waits,
        too, or gets a QueueFullError.
    load_balance : LoadBalanceMode or str, default "fifo"
        The worker that computes next: the one that has been free longest, or, with
        ``"round_robin"``, each in its turn.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or the model cannot answer requests: it keeps state
        between batches, has a fixed batch size, or in mode ``"batched"`` has a
        `predict_step` of its own. If its outputs depend on other samples of a batch,
        in mode ``"batched"`` or with a `batch_limit`.
    RuntimeError
        If the shapes of the model are not known.
    InfeasiblePlanError
        If a worker does not fit its device; nothing was allocated for it.

    Notes
    -----
    Only requests whose samples have the same shapes and dtypes are in one batch.
    Batches are filled up with zeros to a few sizes, for which programs stay loaded.
    The outputs of a sample depend on the size of its batch by rounding only, about
    1e-7 relatively.

    All programs of a worker are in its arena, within the limit of its device. Outside
    of the pools are the samples and outputs of one batch per worker.

    If the weights of the model change, the first worker computes with the new ones;
    `update_model` copies them to the others. In the child of a fork, requests of other
    threads are lost and new ones are answered.

    References
    ----------
    Deeplearning4j 1.0.0-M1, ``org.deeplearning4j.parallelism.ParallelInference``.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> model = mc.nn.Sequential([mc.nn.Input((8,)), mc.nn.Dense(3)])
    >>> with mc.parallel.ParallelInference(model) as inference:
    ...     future = inference.submit(np.ones((2, 8)))
    ...     print(inference.output(np.ones((1, 8))).shape, future.result().shape)
    (1, 3) (2, 3)
    """

    def __init__(
        self,
        model: Model,
        inference_mode: InferenceMode | str = InferenceMode.BATCHED,
        workers: int | None = None,
        batch_limit: int | None = None,
        queue_limit: int = 64,
        *,
        max_wait: float = 0.0,
        on_full: str = "block",
        load_balance: LoadBalanceMode | str = LoadBalanceMode.FIFO,
    ) -> None:
        self._mode: InferenceMode = _word(
            InferenceMode, inference_mode, "inference_mode"
        )
        balance = _word(LoadBalanceMode, load_balance, "load_balance")
        merges = self._mode is InferenceMode.BATCHED
        if on_full not in ("block", "raise"):
            raise ValueError(f"on_full is 'block' or 'raise', not {on_full!r}")
        seconds = _seconds(max_wait)
        if seconds and not merges:
            raise ValueError(
                f"max_wait={max_wait!r} is for mode 'batched': in mode "
                f"{self._mode.value!r} no request waits for others"
            )
        self._workers = None if workers is None else count(workers, "workers")
        self._limit = None if batch_limit is None else count(batch_limit, "batch_limit")
        self._queue_limit = count(queue_limit, "queue_limit")
        self._set = self._replicas(model)
        self._dispatcher = Dispatcher(
            self._set.replicas,
            merges=merges,
            grants=self._mode is InferenceMode.INPLACE,
            queue_limit=self._queue_limit,
            raises=on_full == "raise",
            max_wait=seconds,
            in_turn=balance is LoadBalanceMode.ROUND_ROBIN,
        )
        self._finalizer = weakref.finalize(self, self._dispatcher.close)
        self._finalizer.atexit = False  # the data engine ends all threads then

    @classmethod
    def Builder(cls, model: Model) -> InferenceBuilder:  # noqa: N802  as in DL4J
        """Return a builder, whose methods set what the constructor takes.

        Parameters
        ----------
        model : Model
            The model.

        Returns
        -------
        InferenceBuilder
            ``Builder(model).workers(2).build()`` is ``ParallelInference(model,
            workers=2)``.
        """
        return InferenceBuilder(model, cls)

    @property
    def model(self) -> Model:
        """The model that answers."""
        return self._set.replicas[0].model

    @property
    def inference_mode(self) -> InferenceMode:
        """How requests reach the workers."""
        return self._mode

    @property
    def workers(self) -> int:
        """The number of workers."""
        return len(self._set.replicas)

    @property
    def batch_limit(self) -> int | None:
        """The most samples of a batch; None if it depends on the lengths of inputs."""
        if self._limit is not None:
            return self._limit
        limits = [each.known_limit(()) for each in self._set.replicas]
        known = [each for each in limits if each is not None]
        return min(known) if len(known) == len(limits) else None

    @property
    def closed(self) -> bool:
        """Whether requests are refused."""
        return self._dispatcher.closed

    def output(self, x: Any) -> Any:
        """Return the model's outputs for some samples; wait for them if necessary.

        Parameters
        ----------
        x : numpy.ndarray, or list or dict of them
            Samples, as of `Model.predict_on_batch`. They must not change meanwhile.

        Returns
        -------
        numpy.ndarray, or list, tuple or dict of numpy.ndarray
            As of `predict_on_batch`. Arrays outside of all workspaces, which belong to
            the caller.

        Raises
        ------
        TypeError, ValueError
            If the samples are not such as the model reads.
        QueueFullError
            If `queue_limit` requests wait and `on_full` is ``"raise"``.
        RuntimeError
            If the inference is closed.
        InfeasiblePlanError, ResourceExhaustedError
            If not even one sample at a time fits.
        BaseException
            What the model raises for these samples.
        """
        dispatcher, lease = self._dispatcher, Lease()
        replica = dispatcher.try_claim(lease)
        if replica is not None:
            try:
                return replica.output(x)
            finally:
                dispatcher.free(replica)
        dispatcher.check_thread()
        request = InferenceRequest(self._set.replicas[0].arrays(x))
        try:
            dispatcher.enqueue(request)
            dispatcher.wait(request)
        except BaseException:
            dispatcher.drop(request)
            raise
        if request.replica is None:
            return request.result()
        try:
            return request.replica.output(x)
        finally:
            dispatcher.free(request.replica)

    def submit(self, x: Any) -> Future[Any]:
        """Return a future of the model's outputs for some samples.

        A thread of the inference computes them; in mode ``"inplace"``, this call does.

        Parameters
        ----------
        x : numpy.ndarray, or list or dict of them
            As of `output`. They must not change before the future is done.

        Returns
        -------
        concurrent.futures.Future
            Its result is that of `output`, or raises the errors of the computation.
            While the request waits, it can be cancelled.

        Raises
        ------
        TypeError, ValueError, QueueFullError, RuntimeError
            As of `output`.
        """
        arrays = self._set.replicas[0].arrays(x)
        if self._mode is InferenceMode.INPLACE:
            self._dispatcher.check_open()
            future: Future[Any] = Future()
            future.set_running_or_notify_cancel()
            try:
                future.set_result(self.output(x))
            except QueueFullError:
                raise
            except Exception as error:
                future.set_exception(error)
            return future
        request = FutureRequest(arrays)
        self._dispatcher.enqueue(request)
        return request.future

    def update_model(self, model: Model) -> None:
        """Answer with another model, or with the new weights of this one.

        What has begun is answered by the old model, and everything after this call by
        the new one, on every worker. The old model is closed: its memory is freed, and
        it stays usable.

        Parameters
        ----------
        model : Model
            The new model. With the one that answers now, the other workers get its
            weights.

        Raises
        ------
        TypeError, ValueError, RuntimeError, InfeasiblePlanError
            As of the constructor. The old model answers as before.
        """
        self._dispatcher.check_thread()
        with self._dispatcher.all_replicas():
            if self.closed:
                raise RuntimeError("the ParallelInference is closed")
            self._set.close(keeps=model)
            self._set = made = self._replicas(model)
            self._dispatcher.replicas = made.replicas

    def stats(self) -> InferenceStats:
        """Return how much was answered, and by which worker.

        Returns
        -------
        InferenceStats
            Numbers since the start, or since `update_model`.
        """
        replicas = self._set.replicas
        return InferenceStats(
            tuple(each.requests for each in replicas),
            tuple(each.batches for each in replicas),
            sum(each.rows for each in replicas),
            sum(each.padding for each in replicas),
            self._dispatcher.waiting,
        )

    def close(self, *, cancel_futures: bool = False) -> None:
        """Refuse new requests, and wait until the others are answered.

        The memory of all workers except the first is freed. The model can be used, and
        closed.

        Parameters
        ----------
        cancel_futures : bool, default False
            Whether requests that wait are not computed: their futures are cancelled,
            and `output` raises RuntimeError.
        """
        self._dispatcher.refuse(cancels=cancel_futures)
        if self._dispatcher.join():
            self._set.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; after an error, requests that wait are cancelled."""
        self.close(cancel_futures=kind is not None)

    def _replicas(self, model: Model) -> ReplicaSet:
        return ReplicaSet(
            model,
            self._workers,
            self._limit,
            waiting=self._queue_limit,
            merges=self._mode is InferenceMode.BATCHED,
        )


def _word(kind: Any, given: Any, what: str) -> Any:
    """Return a member of an enumeration; ValueError lists them."""
    try:
        return kind(given)
    except ValueError:
        words = ", ".join(repr(each.value) for each in kind)
        raise ValueError(f"{what} is one of {words}, not {given!r}") from None


def _seconds(given: Any) -> float:
    """Return a duration in seconds."""
    if isinstance(given, bool) or not isinstance(given, Real):
        raise TypeError(f"max_wait is a number of seconds, not {given!r}")
    if not 0 <= float(given) < math.inf:
        raise ValueError(f"max_wait is finite and not negative, not {given!r}")
    return float(given)
