"""Trajectories without anything in them, for tests of the deques."""

from sebulba.types import TrajectoryItem


def make_item(actor_id, sequence_number, env_steps=10, policy_version=0):
    return TrajectoryItem(
        initial_state=None,
        final_state=None,
        trajectory=None,
        actor_id=actor_id,
        sequence_number=sequence_number,
        policy_version=policy_version,
        env_steps=env_steps,
        episodes=(),
    )
