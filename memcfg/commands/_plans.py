"""``memcfg plan``, ``judge``, ``place``, ``timeline``: plans, offsets and pictures."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from memcfg._checks import unknown
from memcfg._terminal import write
from memcfg.commands._at_work import shown
from memcfg.commands._ladder import climb
from memcfg.commands._largest_batch import USUAL, largest_batches
from memcfg.commands._measured import measured_timeline
from memcfg.commands._places import add_places, configure, said_places, tiers_said
from memcfg.commands._sizes import is_bare, size, warn_of_few
from memcfg.commands._tasks import NETWORKS, OwnTask, Task, missing, read_setting
from memcfg.commands._whole_numbers import positive
from memcfg.commands.comparison._comparison import compare
from memcfg.errors import FormatError, GraphError
from memcfg.files import read_file, write_atomically
from memcfg.graph import PROFILES, TIMES, Graph, with_profile
from memcfg.nn.training.ranks._sharding import SHARDINGS
from memcfg.parallel import estimate
from memcfg.plan import (
    NAMED_POLICIES,
    POLICIES,
    Plan,
    auto,
    lower_bound,
    memory_timeline,
    place,
    plan_within,
    read_buffers,
    share,
    unchecked_claims,
    validate,
    violations,
    write_placement,
)
from memcfg.timeline import SUFFIXES
from memcfg.units import exact, format_bytes, parse_share
from memcfg.workspaces import gc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from memcfg.graph import Profile, Tier
    from memcfg.plan import Policy
    from memcfg.timeline import MemoryTimeline

_Value = TypeVar("_Value")


class _Limit(NamedTuple):
    """A limit as it was written."""

    size: int | Fraction  # bytes, or a part of the peak of `share`
    is_bare: bool = False  # without a unit


_BATCH, _STEPS = 32, 5  # defaults of `plan NETWORK`
_MODEL = ".memcfg"  # the suffix of model files
_STANDARD = "-"  # stdin as a file to read, stdout as an --output
_SMALL_GPU = 2**31  # bytes of a GPU of which a context takes a quarter
_MAX_FILE = 2**28  # bytes; a graph of a million ops has about as many


def add_plan(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``memcfg plan`` to a parser."""
    text = "plan the training step of a network by all methods, or of a graph by one"
    parser = subparsers.add_parser("plan", help=text, description=text)
    _add_step(parser)
    parser.add_argument(
        "--profile",
        type=_one_of("profile", PROFILES),
        metavar="{" + ",".join(PROFILES) + "}",
        help=(
            "times of a device that is not here, by the peak rates of its data sheet; "
            "scratch is that of this machine's kernels"
        ),
    )
    parser.add_argument(
        "--method",
        type=_one_of("method", NAMED_POLICIES),
        metavar="METHOD",
        help="planning method (default: all but exact for a network, else auto): "
        + ", ".join(NAMED_POLICIES),
    )
    parser.add_argument(
        "--time-limit",
        type=_seconds,
        metavar="SECONDS",
        help=(
            "seconds after which --method auto takes the best plan so far, which "
            "depends on the machine; without it the plan is the same everywhere"
        ),
    )
    parser.add_argument(
        "--times",
        type=_one_of("times", TIMES),
        metavar="{" + ",".join(TIMES) + "}",
        help=(
            "times of the ops: nominal, the same on every machine, or measured on this "
            f"CPU (default: {TIMES[0]})"
        ),
    )
    add_places(parser)
    _add_ranks(parser)
    parser.add_argument(
        "--ladder",
        action="store_true",
        help=(
            "plan a network by one method at lower and lower limits, down to the "
            "smallest"
        ),
    )
    parser.add_argument(
        "--largest-batch",
        action="store_true",
        help="print how many samples fit --limit, instead of planning --batch",
    )
    parser.add_argument(
        "--program",
        choices=("train", "evaluate", "predict"),
        help="program of --largest-batch (default: train)",
    )
    parser.add_argument(
        "--run",
        action="store_true",
        dest="train",
        help="train the network under each plan, too",
    )
    parser.add_argument(
        "--steps", type=positive, metavar="N", help="steps of a run (default: 5)"
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help=(
            "file for the plan (-: standard output, without the summary), or for a "
            "ladder as .svg or .json"
        ),
    )
    parser.set_defaults(run=_plan, parser=parser)


def _add_ranks(parser: argparse.ArgumentParser) -> None:
    """Add the options of training on several ranks."""
    parser.add_argument(
        "--ranks",
        type=positive,
        metavar="N",
        help=(
            "plan for N ranks that train the network together, each with the limit, "
            "and compare what they can divide"
        ),
    )
    parser.add_argument(
        "--shard",
        choices=("none", *SHARDINGS, "auto"),
        help="what the ranks divide; auto, the default: each way in turn",
    )
    parser.add_argument(
        "--link",
        metavar="SIZE",
        help="bytes that a rank sends a second, such as 25GB (default: 1.25GB)",
    )
    parser.add_argument(
        "--latency",
        metavar="SECONDS",
        help="time of a collective without bytes, such as 5us (default: 50us)",
    )


def _add_step(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say which step is planned, and within which limit."""
    parser.add_argument(
        "network",
        nargs="?",
        metavar="NETWORK",
        type=_network,
        help=(
            "a network of memcfg.models, such as resnet50, or a model file, such as "
            f"own{_MODEL}"
        ),
    )
    parser.add_argument(
        "--graph",
        metavar="FILE",
        help="a graph as memcfg.graph/1 instead of a network; -: standard input",
    )
    parser.add_argument(
        "--batch",
        type=positive,
        metavar="N",
        help="samples per step (default: 32, or one a rank if that is more)",
    )
    parser.add_argument(
        "--set",
        type=read_setting,
        action="append",
        metavar="NAME=VALUE",
        help="an argument of the network, such as depth=1001",
    )
    parser.add_argument(
        "--lengths",
        type=_lengths,
        metavar="N[,N...]",
        help=(
            "length of the axes of None of a model file: one for all, or one for each "
            "with commas"
        ),
    )
    limits = parser.add_mutually_exclusive_group()
    limits.add_argument(
        "--limit",
        type=_limit,
        metavar="SIZE",
        help=(
            "memory limit, such as 4194304, 4MiB, or 50%% of the peak of share; "
            "without it each method plans its lowest peak, and auto its least time"
        ),
    )
    limits.add_argument(
        "--device-memory",
        type=_limit,
        dest="limit",
        metavar="SIZE",
        help="the same, as the memory of a device that is not here",
    )
    parser.add_argument(
        "--optimizer",
        metavar="NAME",
        help="optimizer of the network, such as adam (default: SGD with momentum)",
    )
    parser.add_argument(
        "--dtype",
        metavar="POLICY",
        help="dtype policy of the network, such as mixed_bfloat16 (default: float32)",
    )


def _plan(args: argparse.Namespace) -> int:
    _check(args)
    method = args.method or "auto"
    spill = _spill(args)
    if args.graph is not None:
        graph = replace(_read(args.graph, Graph.from_json), tiers=spill)
    else:
        task = _task(args)
        if args.ranks is not None:
            return _plan_ranks(args, task)
        if args.largest_batch:
            return _largest_batch(args, task)
        try:
            graph = task.graph()
        except (TypeError, ValueError, RuntimeError) as error:
            args.parser.error(str(error))
        graph = _profiled(args, graph)
        steps = (args.steps or _STEPS) if args.train else 0
        if args.ladder:
            return climb(task, graph, method, steps, args.output)
        if args.method is None or args.train:
            methods = tuple(POLICIES) if args.method is None else (args.method,)
            limit = _bytes(args.limit, graph)
            return compare(task, graph, methods, limit, steps)
    plan = _plan_once(args, method, graph)
    if args.output == _STANDARD:
        _print(plan.to_json() + "\n")
        return 0
    if args.output is not None:
        write_atomically(args.output, plan.to_json().encode())
    write(plan)
    return 0


def _task(args: argparse.Namespace) -> Task | OwnTask:
    """Return the network, or the model of a file."""
    if args.limit is not None and args.limit.is_bare:
        warn_of_few("--limit", args.limit.size)
    batch = args.batch or _BATCH
    if args.network.endswith(_MODEL):
        return OwnTask(args.network, batch, args.lengths)
    arguments = dict(args.set or ())
    task = Task(
        args.network,
        batch,
        arguments,
        args.times or TIMES[0],
        args.optimizer,
        args.dtype,
    )
    if needed := missing(task.network, arguments.keys()):
        args.parser.error(f"{task.network} needs an argument: {' '.join(needed)}")
    return task


def _profiled(args: argparse.Namespace, graph: Graph) -> Graph:
    """Return a graph with the times of another device, if one is given."""
    if args.profile is None:
        return graph
    profile = PROFILES[args.profile]
    _advise(args, profile)
    return with_profile(graph, profile)


def _advise(args: argparse.Namespace, profile: Profile) -> None:
    """Print that a GPU is too small to be worth it, if it is."""
    given = args.limit.size if args.limit is not None else None
    if profile.kind == "GPU" and isinstance(given, int) and given < _SMALL_GPU:
        write(
            f"Advice: a CUDA context takes much of a GPU's {format_bytes(given)}. "
            "Train on the CPU.\n"
        )


def _largest_batch(args: argparse.Namespace, task: Task | OwnTask) -> int:
    """Print the largest batches; they are within a number of bytes."""
    if not isinstance(args.limit.size, int):
        args.parser.error("--largest-batch needs --limit in bytes, such as 2GiB")
    methods = USUAL if args.method is None else (args.method,)
    program, result = args.program or "train", 2
    profile = None if args.profile is None else PROFILES[args.profile]
    if profile is not None and program != "train":
        args.parser.error("--profile with --largest-batch needs --program train")
    limit = args.limit.size
    lengths = None
    try:
        if isinstance(task, OwnTask):
            model, lengths = task.model_of_lengths(), task.of_axes
        else:
            model = task.model()
        if profile is not None:
            _advise(args, profile)
        result = largest_batches(model, methods, limit, program, profile, lengths)
    except (TypeError, ValueError, RuntimeError) as error:
        args.parser.error(str(error))
    return result


def _plan_ranks(args: argparse.Namespace, task: Task | OwnTask) -> int:
    """Print what each way to divide state takes on each rank; 1 if none fits."""
    limit = None if args.limit is None else args.limit.size
    if isinstance(limit, Fraction):
        args.parser.error("--ranks needs --limit in bytes, such as 80GiB")
    try:
        if isinstance(task, OwnTask):
            model = task.model()
        else:
            model = task.model(batch_statistics="micro")
        # Looking for cycles, of which there are few, takes a seventh of the time.
        with shown("planning"), gc.paused():
            found = estimate(
                model,
                args.ranks,
                args.batch,
                limit,
                shard={"none": None, None: "auto"}.get(args.shard, args.shard),
                link=args.link,
                latency=args.latency,
                profile=args.profile,
                policy=args.method,
            )
    except (TypeError, ValueError, RuntimeError) as error:
        args.parser.error(str(error))
    text = json.dumps(found.to_dict(), indent=1) + "\n"
    if args.output == _STANDARD:
        _print(text)
    else:
        if args.output is not None:
            write_atomically(args.output, text.encode())
        write(found)
    return 0 if found.best is not None else 1


def _spill(args: argparse.Namespace) -> tuple[Tier, ...]:
    """Configure where methods swap to, if given, and return the tiers."""
    wanted = said_places(args)
    if wanted is None:
        return ()
    configure(args, [wanted])
    return tiers_said(wanted)


def _plan_once(args: argparse.Namespace, method: str, graph: Graph) -> Plan:
    """Plan a graph as a model would; a network's graph is that of a CPU.

    The graph of a file may be that of a GPU, whose ops take algorithms with less
    scratch where the defaults do not fit.
    """
    limit = _bytes(args.limit, graph)
    plan = _plan_directly if args.graph is None else plan_within
    if method != "auto":
        return plan(NAMED_POLICIES[method](), graph, limit)
    with shown("planning") as update:

        def begin(method: str, _: float | None) -> None:
            assert update is not None
            update(f"planning: {method}")

        policy = auto(time_limit=args.time_limit, progress=begin if update else None)
        return plan(policy, graph, limit)


def _plan_directly(policy: Policy, graph: Graph, limit: int | None) -> Plan:
    return policy(graph, limit)


def _check(args: argparse.Namespace) -> None:
    """Refuse arguments that cannot be combined."""
    of_graph, drawn = args.graph is not None, args.ladder and args.output is not None
    many = args.method is None or args.train
    many = many and not of_graph and args.ranks is None
    other = args.ladder or args.train or args.largest_batch or args.time_limit
    of_ranks = args.shard or args.link or args.latency
    for_networks = bool(
        args.batch or args.set or args.ladder or args.train or args.times
    )
    own = args.network is not None and args.network.endswith(_MODEL)
    wrong = {
        "give either a network or --graph FILE": of_graph == (args.network is not None),
        "--ranks needs a network": of_graph and args.ranks is not None,
        "--ranks prints a table: leave out --ladder, --run, --largest-batch and "
        "--time-limit": args.ranks is not None and bool(other),
        "--shard, --link and --latency need --ranks": args.ranks is None
        and bool(of_ranks),
        "--batch, --set, --times, --ladder and --run need a network": of_graph
        and for_networks,
        "--set, --times and --run cannot be used with a model file": own
        and bool(args.set or args.train or args.times),
        "--time-limit needs --method auto, and one plan": args.time_limit is not None
        and (many or args.ladder or args.method not in (None, "auto")),
        "--steps needs --run": args.steps is not None and not args.train,
        "--largest-batch needs a network and a limit": args.largest_batch
        and (of_graph or args.limit is None),
        "--largest-batch chooses the batch and prints a table: leave out --batch, "
        "--ladder, --run, --output and --time-limit": args.largest_batch
        and bool(
            args.batch or args.ladder or args.train or args.output or args.time_limit
        ),
        "--profile, --optimizer and --dtype need a network": of_graph
        and bool(args.profile or args.optimizer or args.dtype),
        "--optimizer and --dtype cannot be used with a model file": own
        and bool(args.optimizer or args.dtype),
        "--lengths needs a model file, without --ranks": bool(args.lengths)
        and (not own or args.ranks is not None),
        "--profile has times of its own: leave out --times and --run": bool(
            args.profile
        )
        and bool(args.times or args.train),
        "--program needs --largest-batch": bool(args.program)
        and not args.largest_batch,
        "--ladder chooses its own limits: leave out --limit": args.ladder
        and args.limit is not None,
        "--output needs --ladder, or the plan of one --method": many
        and not args.ladder
        and args.output is not None,
        "a ladder is written to a .svg or .json file": drawn
        and not args.output.endswith((".svg", ".json")),
    }
    _refuse(args, wrong)


def add_timeline(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
) -> None:
    """Add ``memcfg timeline`` to a parser."""
    text = "show which tensor has which bytes when, in a training step within a limit"
    parser = subparsers.add_parser("timeline", help=text, description=text)
    _add_step(parser)
    parser.add_argument(
        "--plan",
        metavar="FILE",
        help="a plan of --graph FILE, instead of a new one",
    )
    parser.add_argument(
        "--method",
        type=_one_of("method", NAMED_POLICIES),
        default="auto",
        metavar="METHOD",
        help="planning method (default: auto)",
    )
    add_places(parser)
    parser.add_argument(
        "--run",
        action="store_true",
        dest="train",
        help="run a step of the network, too, and show its times and its peak",
    )
    parser.add_argument(
        "--output",
        type=_picture,
        metavar="FILE",
        help=(
            "file to write: .html (to zoom and search), .svg, .png, .json (for "
            "Perfetto) or .txt (default: text on standard output)"
        ),
    )
    parser.set_defaults(
        run=_timeline, parser=parser, time_limit=None, times=None, profile=None
    )


def _timeline(args: argparse.Namespace) -> int:
    of_graph = args.graph is not None
    own = args.network is not None and args.network.endswith(_MODEL)
    _refuse(
        args,
        {
            "give either a network or --graph FILE": of_graph
            == (args.network is not None),
            "--batch, --set, --optimizer, --dtype and --run need a network": of_graph
            and bool(
                args.batch or args.set or args.optimizer or args.dtype or args.train
            ),
            "--set, --optimizer, --dtype and --run cannot be used with a model "
            "file": own
            and bool(args.set or args.optimizer or args.dtype or args.train),
            "--plan needs --graph": args.plan is not None and not of_graph,
            "a plan has its limit: leave out --limit": args.plan is not None
            and args.limit is not None,
            "--lengths needs a model file": bool(args.lengths) and not own,
        },
    )
    result = _timeline_of(args)
    if args.output is None:
        write(result)
    else:
        result.save(args.output)
        write(
            f"{result.title}: peak {format_bytes(result.peak_bytes)}, "
            f"{len(result.boxes)} boxes; written to {args.output}"
        )
    return 0


def _timeline_of(args: argparse.Namespace) -> MemoryTimeline:
    """Return the timeline that the arguments ask for."""
    spill = _spill(args)
    if args.graph is not None:
        graph = replace(_read(args.graph, Graph.from_json), tiers=spill)
        if args.plan is not None:
            plan = _read(args.plan, Plan.from_json)
            validate(graph, plan)
            return memory_timeline(graph, plan)
        return memory_timeline(graph, _plan_once(args, args.method, graph))
    task = _task(args)
    try:
        graph = task.graph()
    except (TypeError, ValueError, RuntimeError) as error:
        args.parser.error(str(error))
    if args.train:
        assert isinstance(task, Task)
        policy = NAMED_POLICIES[args.method]()
        return measured_timeline(task, policy, _bytes(args.limit, graph))
    return memory_timeline(graph, _plan_once(args, args.method, graph))


def _picture(text: str) -> str:
    """Parse the name of a file for a timeline."""
    if not text.lower().endswith(SUFFIXES):
        known = ", ".join(SUFFIXES)
        raise argparse.ArgumentTypeError(f"{text!r} does not end in {known}")
    return text


def _refuse(args: argparse.Namespace, wrong: Mapping[str, bool]) -> None:
    """Exit with the first message whose condition holds."""
    for message, is_wrong in wrong.items():
        if is_wrong:
            args.parser.error(message)


def add_judge(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``memcfg judge`` to a parser."""
    text = "check a plan against its graph, both as JSON"
    parser = subparsers.add_parser("judge", help=text, description=text)
    parser.add_argument("graph", metavar="GRAPH", help="the file of the graph")
    parser.add_argument("plan", metavar="PLAN", help="the file of the plan")
    parser.set_defaults(run=_judge)


def _judge(args: argparse.Namespace) -> int:
    graph = _read(args.graph, Graph.from_json)
    plan = _read(args.plan, Plan.from_json)
    faults = violations(graph, plan)
    if faults:
        write(f"invalid: {len(faults)} violation{'s' if len(faults) > 1 else ''}")
        write("\n".join(f"  {text}" for text in faults))
        return 1
    limit = "none" if plan.limit_bytes is None else exact(plan.limit_bytes)
    write(f"valid: {plan.method} plans {graph.name!r}")
    write(f"  peak         {exact(plan.peak_bytes)}")
    write(f"  limit        {limit}")
    write(f"  lower bound  {exact(lower_bound(graph))}")
    for claim in unchecked_claims(graph, plan):
        write(f"  not checked  {claim}")
    return 0


def add_place(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``memcfg place`` to a parser."""
    text = "place buffers with fixed lifetimes (columns id,lower,upper,size)"
    parser = subparsers.add_parser("place", help=text, description=text)
    parser.add_argument(
        "buffers", metavar="BUFFERS", help="the CSV file; -: standard input"
    )
    parser.add_argument(
        "--capacity",
        type=size,
        metavar="SIZE",
        help="memory limit, such as 1048576 or 1MiB",
    )
    parser.add_argument(
        "--time-limit",
        type=_seconds,
        default=10.0,
        metavar="SECONDS",
        help="seconds after which the lowest placement so far is taken (default: 10)",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help=(
            "file for the rows with their offsets; -: standard output, without the "
            "summary"
        ),
    )
    parser.set_defaults(run=_place)


def _place(args: argparse.Namespace) -> int:
    buffers = _read(args.buffers, read_buffers)
    placement = place(buffers, capacity=args.capacity, time_limit=args.time_limit)
    if args.output == _STANDARD:
        _print(write_placement(buffers, placement))
        return 0
    if args.output is not None:
        text = write_placement(buffers, placement)
        write_atomically(args.output, text.encode())
    ratio = placement.height / placement.bound if placement.bound else 1.0
    is_least = placement.height == placement.floor
    write(f"buffers  {len(buffers)}")
    write(f"height   {placement.height} B")
    write(f"bound    {placement.bound} B live at the busiest step")
    write(f"ratio    {ratio:.4f}{', the least possible' * is_least}")
    write(f"order    {placement.order}")
    write(f"time     {placement.seconds * 1e3:.1f} ms")
    return 0


def _read(path: str, parse: Callable[[str], _Value]) -> _Value:
    """Read and parse a text file or standard input; errors name the file."""
    try:
        if path == _STANDARD:
            path, content = "standard input", sys.stdin.buffer.read(_MAX_FILE)
        else:
            content = read_file(path, _MAX_FILE)
        return parse(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not UTF-8 text: {error}") from error
    except (FormatError, GraphError) as error:
        raise FormatError(f"{path}: {error}") from error


def _print(text: str) -> None:
    """Write text to standard output in UTF-8, whatever its encoding is."""
    stream = getattr(sys.stdout, "buffer", None)
    if stream is None:  # no standard output, or a text stream without a buffer
        print(text, end="")
    else:
        sys.stdout.flush()
        stream.write(text.encode())


def _lengths(text: str) -> list[int]:
    """Parse lengths of axes."""
    return [positive(each) for each in text.split(",")]


def _limit(text: str) -> _Limit:
    """Parse a size, or a percentage of the peak of `share`."""
    try:
        part = parse_share(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if part == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive size")
    if part is not None:
        return _Limit(part)
    return _Limit(size(text), is_bare=is_bare(text))


def _bytes(limit: _Limit | None, graph: Graph) -> int | None:
    """Return a limit in bytes; percentages are of the peak of `share`."""
    if limit is None:
        return None
    if isinstance(limit.size, Fraction):
        return max(1, int(limit.size * share()(graph).peak_bytes))
    return limit.size


def _network(text: str) -> str:
    """Parse the name of a network or of a model file."""
    if text.endswith(_MODEL):
        return text
    if text not in NETWORKS and os.path.exists(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a network nor a model file, whose name ends in "
            f"{_MODEL}: Model.save writes one"
        )
    return _one_of("network", NETWORKS)(text)


def _one_of(what: str, known: Iterable[str]) -> Callable[[str], str]:
    """Return a parser of one of some names."""
    names = tuple(known)

    def read(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(str(unknown(what, text, names)))
        return text

    return read


def _seconds(text: str) -> float:
    """Parse a time in seconds, which may be ``inf``."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:  # nor is NaN
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a positive number of seconds"
        )
    return seconds
