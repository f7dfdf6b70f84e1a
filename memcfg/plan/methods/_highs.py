"""Solver of a staged schedule's program with HiGHS (linear and mixed-integer).

HiGHS runs with one thread and a fixed seed, and is stopped after a number of its own
interrupt checks, so the same program gives the same answer. A clock stops it only
within `planning_until`.
"""

from __future__ import annotations

from importlib import import_module
from itertools import accumulate
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg.errors import MissingDependencyError
from memcfg.plan.search._watch import seconds_left, waiting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memcfg.plan.methods._stages import Stages

_WORK = 2_000_000  # interrupt checks times nonzero coefficients


class Answer(NamedTuple):
    """A solver's result: columns (empty without a solution), and if it is optimal."""

    columns: list[float]
    value: float
    optimal: bool


def _highspy() -> Any:
    try:
        return import_module("highspy")
    except ImportError:
        raise MissingDependencyError(
            "This method solves linear programs with HiGHS, which is not installed: "
            "pip install highspy."
        ) from None


def _silent(highspy: Any) -> Any:
    """Return a silent solver; highspy prints a banner in the constructor otherwise."""

    def enable_callbacks(solver: Any) -> None:
        solver.setOptionValue("output_flag", False)
        highspy.Highs.enableCallbacks(solver)

    return type("Silent", (highspy.Highs,), {"enableCallbacks": enable_callbacks})()


def solve(
    stages: Stages,
    limit: int | None,
    *,
    whole: bool = True,
    start: Mapping[int, float] | None = None,
    checks: int | None = None,
) -> Answer:
    """Solve the program of a step.

    Parameters
    ----------
    stages : Stages
        The program.
    limit : int or None
        Limit in bytes within which the cost is minimized; None minimizes the load.
    whole : bool, default True
        Solve the mixed-integer program; False solves the linear relaxation.
    start : mapping of int to float, optional
        The integer columns of a solution to start from.
    checks : int, optional
        The number of interrupt checks after which the search stops.
    """
    highspy = _highspy()
    left_seconds = seconds_left()
    if left_seconds <= 0:
        return Answer([], float("inf"), optimal=False)
    solver = _silent(highspy)
    options = (("threads", 1), ("random_seed", 0), ("time_limit", left_seconds))
    for option, value in options:
        solver.setOptionValue(option, value)
    program = _program(highspy, stages, limit, whole=whole)
    solver.passModel(program)
    if start and whole:
        solver.setSolution(len(start), [*start], [*start.values()])
    most = checks or max(20, _WORK // max(1, len(program.a_matrix_.value_)))
    asked = 0
    left = False

    def check(event: Any) -> None:
        nonlocal asked
        asked += 1
        if left or asked > most:
            event.interrupt()

    solver.cbMipInterrupt.subscribe(check)
    done = Event()

    def run() -> None:
        solver.run()
        done.set()

    Thread(target=run, name="memcfg HiGHS").start()
    try:
        with waiting():
            done.wait()
    except BaseException:  # KeyboardInterrupt must not be raised inside of HiGHS
        left = True
        done.wait()
        raise
    status = solver.getModelStatus()
    optimal = status == highspy.HighsModelStatus.kOptimal
    info = solver.getInfo()
    feasible = int(highspy.SolutionStatus.kSolutionStatusFeasible)
    if int(info.primal_solution_status) != feasible:
        return Answer([], float("inf"), optimal)
    columns = [float(value) for value in solver.getSolution().col_value]
    return Answer(columns, float(info.objective_function_value), optimal)


def _program(highspy: Any, stages: Stages, limit: int | None, *, whole: bool) -> Any:
    """Return the program as a HighsLp; the load is the last column."""
    columns, rows = stages.columns, stages.rows
    load = len(columns)
    program = highspy.HighsLp()
    program.num_col_ = load + 1
    program.num_row_ = len(rows) + len(stages.loads)
    most = float("inf") if limit is None else (limit - stages.base) / stages.unit
    costs = [0.0 if limit is None else column.cost for column in columns]
    program.col_cost_ = [*costs, 1.0 if limit is None else 0.0]
    program.col_lower_ = [*(column.lower for column in columns), -float("inf")]
    program.col_upper_ = [*(column.upper for column in columns), most]
    many = len(stages.loads)
    program.row_lower_ = [*(r.lower for r in rows), *[-float("inf")] * many]
    program.row_upper_ = [*(r.upper for r in rows), *[0.0] * many]
    indices = [r.columns for r in rows] + [[each, load] for each in stages.loads]
    factors = [r.factors for r in rows] + [[1.0, -1.0]] * len(stages.loads)
    matrix = program.a_matrix_
    matrix.format_ = highspy.MatrixFormat.kRowwise
    matrix.start_ = [0, *accumulate(len(row) for row in indices)]
    matrix.index_ = [index for row in indices for index in row]
    matrix.value_ = [factor for row in factors for factor in row]
    if whole:
        kind = highspy.HighsVarType
        program.integrality_ = [
            *(kind.kInteger if c.whole else kind.kContinuous for c in columns),
            kind.kContinuous,
        ]
    return program
