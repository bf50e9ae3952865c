"""A Ray cluster of nodes on this machine: `ray_cluster.py NODES [CPUS]`, with one CPU each if not.

Commands on stdin: `kill I` ends node I with all that it started, as if its machine were gone; `add`
adds a node.
"""

import os
import pathlib
import signal
import sys

from ray.cluster_utils import Cluster


def descendants(pid):
    """Return the processes that a process has started, and those that these have."""
    try:
        tasks = list(pathlib.Path(f"/proc/{pid}/task").iterdir())
        children = [int(each) for task in tasks for each in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [each for child in children for each in (child, *descendants(child))]


def kill(node):
    """End a node's processes with SIGKILL, all at once."""
    raylet = node.all_processes["raylet"][0].process.pid
    os.kill(raylet, signal.SIGSTOP)  # It would start others.
    for pid in [*descendants(raylet), raylet]:
        os.kill(pid, signal.SIGKILL)
    cluster.remove_node(node, allow_graceful=False)


if __name__ == "__main__":
    head = {"num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    num_nodes, num_cpus = map(int, (*sys.argv[1:], 1)[:2])
    nodes = [cluster.add_node(num_cpus=num_cpus) for _ in range(num_nodes)]
    print(cluster.address, flush=True)
    for line in sys.stdin:
        command, *number = line.split()
        if command == "kill":
            kill(nodes[int(number[0])])
        else:
            nodes.append(cluster.add_node(num_cpus=num_cpus))
        print(len(nodes), flush=True)
    cluster.shutdown()
