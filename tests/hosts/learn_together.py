"""One of two hosts: `PORT PROCESS_ID OUT` learns from its half of fixed data."""

import sys

import numpy as np

from sebulba.config import DevicesConfig
from sebulba.config.schema import DistributedConfig
from sebulba.devices.roles import assign_devices
from sebulba.hosts import connection as hosts
from tests.hosts.test_learner_over_hosts import NUM_HOSTS, learn
from tests.ring_parts import published

port, process_id, out = sys.argv[1:]
hosts.connect(
    DistributedConfig(
        mode="manual",
        coordinator=f"127.0.0.1:{port}",
        num_processes=NUM_HOSTS,
        process_id=int(process_id),
    )
)
learner, metrics = learn(
    assign_devices(DevicesConfig(learner=(0, 1)), num_envs=2).learner_devices, host=int(process_id)
)
experience = learner.state_of_host.experience
np.savez(
    out,
    weights=np.asarray(published(learner)["weights"]),
    loss=np.concatenate([update["loss"] for update in metrics]),
    reward_sum=np.concatenate([update["reward_sum"] for update in metrics]),
    final_count=np.asarray(experience.final_count),
)
hosts.disconnect()
