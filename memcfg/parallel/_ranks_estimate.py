"""Memory and time of training on many ranks, on paper."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from memcfg._checks import unknown
from memcfg._html import report_of_text
from memcfg._tables import draw, new_table
from memcfg._terminal import paragraph, writable
from memcfg.graph import NOMINAL_LINK, PROFILES, Link
from memcfg.nn import Model
from memcfg.nn._argument_checks import integer
from memcfg.nn.training._compile_config import get_policy
from memcfg.nn.training._tracing import ProgramKey, Rank
from memcfg.nn.training.ranks._shard_estimate import fastest
from memcfg.nn.training.ranks._sharding import SHARDINGS
from memcfg.parallel._on_paper import CommunicatorOnPaper
from memcfg.units import format_bytes, format_seconds, parse_bytes, parse_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.training.ranks._shard_estimate import ShardEstimate
    from memcfg.plan import Policy

__all__ = ["RanksEstimate", "estimate"]


@dataclass(frozen=True)
class RanksEstimate:
    """Memory and time of a step on several ranks; ``str()`` is a table.

    Attributes
    ----------
    name : str
        The model's name.
    ranks : int
        The number of ranks.
    batch_size : int
        Samples of a step, of all ranks together.
    limit_bytes : int or None
        The limit of each rank.
    latency_seconds, bytes_per_second : float
        The link between ranks.
    times : str
        Whose times the ops have: a profile, ``"nominal"`` or ``"measured"``.
    rows : tuple of ShardEstimate
        What each way to divide the state takes.
    """

    name: str
    ranks: int
    batch_size: int
    limit_bytes: int | None
    latency_seconds: float
    bytes_per_second: float
    times: str
    rows: tuple[ShardEstimate, ...]

    @property
    def best(self) -> ShardEstimate | None:
        """The fastest way that fits, and of equal ones that which divides least."""
        return fastest(self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers, for JSON.

        Returns
        -------
        dict
            The attributes by name, and ``"best"``: what the best way divides.
        """
        best = self.best
        return {**asdict(self), "best": None if best is None else best.shard or "none"}

    def __str__(self) -> str:
        """Return the estimate as a table; the best way is marked with ``*``."""
        each = -(-self.batch_size // self.ranks)
        limit = "no limit"
        if self.limit_bytes is not None:
            limit = f"{format_bytes(self.limit_bytes)} each"
        rate = f"{self.bytes_per_second / 1e9:.4g} GB/s"
        numbers = ("State", "Peak", "Sent", "Time", "Waits", "At least")
        table = new_table("Divided", numbers=numbers)
        best = self.best
        for row in self.rows:
            if row.peak_bytes is None:
                continue
            mark = " *" * (row is best and len(self.rows) > 1)
            waits = (row.waiting_seconds, row.least_waiting_seconds)
            table.add_row(
                (row.shard or "none") + mark,
                *map(format_bytes, (row.state_bytes, row.peak_bytes, row.sent_bytes)),
                format_seconds(row.seconds),
                *(f"{each / (row.seconds or 1.0):.0%}" for each in waits),
            )
        head = [
            f"A step of {self.name!r} on {self.ranks} ranks, {limit}",
            f"Samples: {self.batch_size}, up to {each} a rank. Link: {rate}, "
            f"{format_seconds(self.latency_seconds)}. Op times: {self.times}.",
        ]
        lines = ["", draw(table)] if best is not None else []
        why = [row for row in self.rows if row.why_not]
        lines += ["", "Not possible:"] * bool(why)
        for row in why:
            start = f"  {row.shard or 'none'}: "
            lines.append(paragraph(start, row.why_not.split()))
        return writable("\n".join([*head, *lines]))

    def _repr_html_(self) -> str:
        """Return the same for notebooks."""
        return report_of_text(str(self))


def estimate(
    model: Model,
    ranks: int,
    batch_size: int | None = None,
    limit: int | str | None = None,
    *,
    shard: str | None = "auto",
    link: float | str | None = None,
    latency: float | str | None = None,
    profile: str | None = None,
    policy: Policy | str | None = None,
    lengths: int | Sequence[int] | None = None,
) -> RanksEstimate:
    """Predict what training takes on many ranks, without any of them.

    Nothing runs and no memory is taken, so models and groups may be of any size. The
    plan is that of the first rank, which has the most samples, as ``ParallelWrapper(
    training_mode="all_reduce")`` would load it in a process of several workers.

    Parameters
    ----------
    model : Model
        A compiled model with built-in steps.
    ranks : int
        The number of ranks, at least 2.
    batch_size : int, optional
        Samples of a step, of all ranks together. The default is 32, or one a rank if
        there are more ranks.
    limit : int or str, optional
        The memory of each rank, in bytes or such as ``"80GiB"``. The default is what
        the limit of the model's device leaves.
    shard : {"auto", "optimizer", "gradients", "parameters"} or None, default "auto"
        What the ranks divide, as of `ParallelWrapper`. ``"auto"``: all ways, for
        comparison.
    link : float or str, optional
        Bytes that each rank sends a second, such as ``"25GB"``. The default is
        1.25 GB, Ethernet of 10 Gbit/s.
    latency : float or str, optional
        Of a collective, in seconds or such as ``"5us"``. The default is 50 µs.
    profile : {"cpu", "t4", "a100", "h100", "h200"}, optional
        The device whose times ops have, by the peak rates of its data sheet. The
        default is the times of the model, which are nominal unless it was compiled with
        ``times="measured"``.
    policy : Policy or str, optional
        Makes the plans. The default is that of the model.
    lengths : int or sequence of int, optional
        As of `Model.estimate`.

    Returns
    -------
    RanksEstimate
        Peak, bytes sent and seconds of a rank, for each way to divide the state.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or batches of the model cannot be divided.
    RuntimeError
        If the model is not compiled, or has train steps of its own.

    Notes
    -----
    Bytes sent are those of algorithms of lowest bandwidth, such as rings: of N ranks
    each sends 2 (N - 1) / N of the bytes that are summed for all, and (N - 1) / N of
    those that are gathered, or summed in parts [1]_. A collective takes the latency and
    the time of these bytes, and runs beside ops that do not need it.

    References
    ----------
    .. [1] R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective
       communication operations in MPICH", International Journal of High Performance
       Computing Applications 19, 2005.

    Examples
    --------
    >>> import memcfg as mc
    >>> model = mc.models.lenet5()
    >>> model.compile("adam", "mse")
    >>> found = mc.parallel.estimate(model, 8, shard="parameters", link="25GB")
    >>> found.best.state_bytes < found.best.peak_bytes
    True
    """
    size = integer(ranks, "ranks", 2)
    batch = max(32, size)
    if batch_size is not None:
        batch = integer(batch_size, "batch_size")
    known = (None, "auto", *SHARDINGS)
    if shard not in known:
        raise unknown("shard", str(shard), ("auto", *SHARDINGS))
    if profile is not None and profile not in PROFILES:
        raise unknown("profile", str(profile), PROFILES)
    rate = _rate(NOMINAL_LINK.bytes_per_second if link is None else link)
    wait = NOMINAL_LINK.seconds if latency is None else parse_seconds(latency)
    limit_bytes = None if limit is None else parse_bytes(limit)
    if not isinstance(model, Model):
        raise TypeError(f"estimate takes a Model, got {type(model).__name__}")
    model._require_built_in_steps("estimate")
    compiled = model._compiled("estimate")
    session = model._built_session()
    communicator = CommunicatorOnPaper(size, Link(wait, rate))
    ways = (None, *SHARDINGS) if shard == "auto" else (shard,)
    rows = session.estimate_ranks(
        [Rank("on paper", communicator, None, way) for way in ways],
        ProgramKey("train", batch, lengths=session.lengths(lengths)),
        limit_bytes,
        None if policy is None else get_policy(policy),
        None if profile is None else PROFILES[profile],
    )
    if limit_bytes is None:
        limit_bytes = session.executor.budget_bytes(0)
    times = compiled.times if profile is None else profile
    return RanksEstimate(
        model.name, size, batch, limit_bytes, wait, rate, times, tuple(rows)
    )


def _rate(link: float | str) -> float:
    """Return bytes per second; "25GB/s" is "25GB"."""
    text = link.removesuffix("/s") if isinstance(link, str) else link
    rate = float(text) if isinstance(text, float) else float(parse_bytes(text))
    if not 0 < rate < float("inf"):
        raise ValueError(f"link is positive bytes a second, not {link!r}")
    return rate
