"""What updates do to parts of networks without gradients: copies, and parts that never change.

A part is an attribute or a key of the networks, such as the target network.
"""

from collections.abc import Callable

import jax
import numpy as np

from sebulba.check.evidence import Evidence
from sebulba.check.policy import with_noise
from sebulba.check.result import Answer, as_numpy, failed, is_equal
from sebulba.check.trees import with_leaf
from sebulba.check.update_run import (
    SHIFT_OF_PARAMETERS,
    TARGET_PERIOD_UPDATES,
    UpdateRun,
    Usage,
)
from sebulba.types import Networks


def fixed_leaves(run: UpdateRun, init_networks: Callable[[], Networks]) -> np.ndarray:
    """Return the leaves of the parts of the networks that never change and begin as no copies.

    As the random features of RND (Burda et al. 2018, arXiv 1810.12894). A target network begins as
    a copy of another part.

    Args:
        run: some updates.
        init_networks: returns networks as they begin; called only if a part never changes.

    Returns:
        Their numbers `[n]`, ascending.
    """
    parts = np.array([str(path[:1]) for path in run.paths])
    is_touched = run.is_changed | run.has_gradient
    untouched = [part for part in dict.fromkeys(parts) if not is_touched[parts == part].any()]
    if not untouched:
        return np.array([], int)
    leaves = list(map(np.asarray, jax.tree.leaves(as_numpy(init_networks()))))
    learned = [leaf for leaf, learns in zip(leaves, run.has_gradient, strict=True) if learns]
    fixed: list[int] = []
    for part in untouched:
        of_part = np.flatnonzero(parts == part)
        varied = [leaves[index] for index in of_part if len(np.unique(leaves[index])) > 1]
        is_copy = any(np.array_equal(one, other) for one in varied for other in learned)
        if varied and not is_copy:
            fixed += of_part.tolist()
    return np.array(fixed, int)


def useless_part(run: UpdateRun, evidence: Evidence) -> Answer | None:
    """Look for a part of the networks that changes without a gradient, and is of no use.

    Some of its leaves may be of no use, as a model's are in a search with few simulations.
    """
    usage = evidence.shared(Usage)
    parts: dict[str, list[int]] = {}
    is_large = [np.size(leaf) > 1 for leaf in jax.tree.leaves(evidence.loss.networks)]
    for index in map(int, np.flatnonzero(run.is_changed & ~run.has_gradient & is_large)):
        parts.setdefault(str(run.paths[index][:1]), []).append(index)
    for part in parts.values():
        if not any(map(usage.is_used, part)):
            return failed(
                f"{run.name(part[0])}: expected the loss or acting to use a leaf that optimize"
                " changes, got no difference with other values of it, and of the leaves beside it",
                "the online network takes the place of the target network",
            )
    return None


def wrong_period(run: UpdateRun) -> Answer | None:
    """Compare the updates that change leaves without a gradient with a target period of 3."""
    period = TARGET_PERIOD_UPDATES
    copies = np.flatnonzero(run.changes[:, ~run.has_gradient].any(axis=1))
    learns = np.flatnonzero(run.changes[:, run.has_gradient].any(axis=1))
    if not len(copies) or not len(learns):
        return None
    name = run.name(int(np.flatnonzero(~run.has_gradient & run.is_changed)[0]))
    # The first copy may come before the first update, or after a whole period.
    if copies[0] > period or np.any(np.diff(copies) != period):
        return failed(
            f"{name}: expected a change in every {period}rd with agent.target_period {period}, and"
            f" the first until update {period}, got changes in {', '.join(map(str, copies))}",
            "the target network is not kept between copies, or the period does not count updates"
            " from the first one on",
        )
    return None


def publishes_copies_only(run: UpdateRun) -> bool:
    """Return whether actors get other networks in updates with a copy to a target network only."""
    copies = run.changes[:, ~run.has_gradient].any(axis=1)
    learns = run.changes[:, run.has_gradient].any(axis=1)
    return bool(copies.sum() < learns.sum() and not np.any(run.publishes & ~copies))


def target_acts(run: UpdateRun, evidence: Evidence) -> Answer | None:
    """Look for actors that get the target network in place of the one that learns.

    Some agents act with a copy on purpose: V-MPO (Song et al. 2019, arXiv 1909.12238) uses it for
    nothing else, and MPO (Abdolmaleki et al. 2018, arXiv 1806.06920) copies a critic as well, which
    does not act.
    """
    if not publishes_copies_only(run):
        return None
    usage, agent = evidence.shared(Usage), evidence.subject.agent
    networks = run.first.networks

    def reaches_actors(index: int) -> bool:
        rng = np.random.default_rng(0)
        other = with_leaf(networks, index, lambda leaf: with_noise(leaf, rng, SHIFT_OF_PARAMETERS))
        return not is_equal(*(as_numpy(agent.actor_networks(each)) for each in (networks, other)))

    is_array = [np.size(leaf) > 1 for leaf in jax.tree.leaves(networks)]
    is_copied = run.is_changed & ~run.has_gradient & is_array
    copied = [int(index) for index in np.flatnonzero(is_copied)]
    if not all(map(reaches_actors, copied)) or not any(map(usage.is_used_by_loss, copied)):
        return None
    return failed(
        f"actor_networks (updates 0 … {len(run.changes) - 1}): expected other networks for the"
        f" actors after every update, got them with copies to {run.name(copied[0])} only",
        "actors get the target network",
    )
