"""The names of columns in TensorBoard and W&B, which show what is before the first / as a group."""

GROUPS = {
    "episode": ("episode_return_mean", "episode_return_last", "episode/…"),
    "episodes": ("episode_length_mean", "episodes", "episodes_cut"),
    "evaluation": ("evaluation/…",),
    "loss": ("loss", "grad_norm", "non_finite_updates"),
    "remote_actor": ("remote_actor/…",),
    "ring": (
        "updates",
        "learner_cycles",
        "policy_lag_mean",
        "policy_lag/…",
        "queue_depth",
        "env_restarts",
    ),
    "speed": ("steps_per_second", "wall_time_s", "time/…", "all_reduce/…"),
}
"""The columns of each group; `…` stands for several. Sorted by name, returns come first."""
_OF_AGENTS = "loss"
"""The group of an agent's metrics."""

_GROUP_OF = {column: group for group, columns in GROUPS.items() for column in columns}


def tag_of(column: str) -> str:
    """Return the name of a column in TensorBoard and W&B, `group/column`.

    `episode_return_mean` is `episode/return_mean`. A metric of an agent is in the group `loss`,
    unless its name has a / and so a group of its own.
    """
    prefix, slash, _ = column.partition("/")
    group = _GROUP_OF.get(f"{prefix}/…" if slash else column)
    if group is None:
        return column if slash else f"{_OF_AGENTS}/{column}"
    if prefix == group and slash:
        return column
    return f"{group}/{column.removeprefix(f'{group}_')}"
