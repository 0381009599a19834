"""Choose a contender that may be the fastest, and time it in another process, until the fastest is known.

A ratio differs between processes by more than its interval within one process (`records/processes.py`). So only close
contenders get more processes.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from torchwise.plan.effort import EffortProfile
from torchwise.records.benchmark import EAGER, Row
from torchwise.records.processes import is_plain
from torchwise.records.scale import Scale, ScaledRow, may_be_faster
from torchwise.records.statistics import Interval


def next_duel(scale: Scale, effort: EffortProfile, repeatable: Collection[str]) -> Row | None:
    """Return Torchwise's row if it needs another duel with its rival in a new process, or None.

    Args:
        scale: the rows of one target.
        effort: sets the required width of an interval and the maximum number of processes.
        repeatable: contenders that can run again.
    """
    for row in (one.row for one in scale.rows):
        ratio, count = row.speed_over_rival, len(row.duels)
        if ratio is None or row.is_its_rival or not row.is_right or row.contender not in repeatable:
            continue
        if count < effort.processes and not is_plain(ratio, _distance(ratio), count, effort.half_width):
            return row
    return None


def next_repeat(scale: Scale, effort: EffortProfile, repeatable: Collection[str]) -> Row | None:
    """Return the row to time against eager in another process, or None once the fastest is known.

    Args:
        scale: the rows of one target.
        effort: sets the required width of an interval and the maximum numbers of rows and processes.
        repeatable: contenders that can run again.
    """
    right = [one for one in scale.rows if one.row.is_right and not _is_eager(one.row)]
    for precision in dict.fromkeys(one.row.precision for one in right):  # precisions are never compared
        same_precision = [one for one in right if one.row.precision == precision]
        leader, *others = sorted(same_precision, key=lambda one: -one.speedup.mid)
        close = [one for one in others if may_be_faster(one, leader)][: effort.duels]
        if not close and is_plain(leader.speedup, _distance(leader.speedup), _processes(leader), effort.half_width):
            continue
        waiting = [one for one in (leader, *close) if one.row.contender in repeatable and _may_have_more(one, effort)]
        if waiting:
            return min(waiting, key=_processes).row
    return None


def _is_eager(row: Row) -> bool:
    """Return whether a row runs eager, as its contender or by its decision."""
    return row.contender == EAGER or (row.plan is not None and row.plan.is_eager)


def _may_have_more(one: ScaledRow, effort: EffortProfile) -> bool:
    ratio = one.row.speedup
    is_narrow = ratio is not None and ratio.half_width <= effort.half_width and _processes(one) > 1
    return _processes(one) < effort.processes and not is_narrow


def _processes(one: ScaledRow) -> int:
    return len(one.row.performance.processes) if one.row.performance else 0


def _distance(ratio: Interval) -> float:
    """Return the log-distance of a ratio from 1, in half-widths of its interval."""
    width = math.log(ratio.high / ratio.low) / 2
    return abs(math.log(ratio.mid)) / width if width else math.inf
