"""Part of the forward phase is computed twice: less memory for more time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.plan.search._policy import Method
from memcfg.plan.search.recompute._recomputation import plan_recomputation

if TYPE_CHECKING:
    from memcfg.plan.search._policy import Policy


def sqrt_checkpoint() -> Policy:
    """Keep some outputs of the forward phase and recompute the others.

    Returns
    -------
    Policy
        The policy. Without a limit it plans for the least peak; with one, for the
        least recomputation within it. Memory is shared as by `share`.

    Notes
    -----
    The forward phase is cut into segments; what crosses a cut is kept, the rest of
    every segment but the last is computed again just before the first backward op
    that needs it. On a chain of n uniform ops k even segments need k + n/k tensors,
    at best 2 sqrt(n). While the j-th segment is run backward, only j checkpoints are
    left, so earlier segments may be longer: lengths m, m - 1, ..., 1 make
    n = m (m + 1) / 2 and need about sqrt(2 n). Cuts are searched exactly in a model
    of the memory (a minimax over all segmentations, skip connections counted once),
    under a range of budgets; Algorithm 3 of [1]_ and its rule to drop what is cheap
    make further candidates; the best are improved one op at a time.

    References
    ----------
    .. [1] T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training Deep Nets with Sublinear
       Memory Cost", 2016, arXiv:1604.06174.
    """
    return Method("sqrt_checkpoint", plan_recomputation)
