"""What the processes of a remote actor have done, for rows of metrics and the summary."""

import dataclasses

from sebulba.devices.memory import num_bytes
from sebulba.remote.wire import Arrays, Record


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemoteCounts:
    """What the processes of a remote actor have done so far."""

    num_restarts: int = 0  # processes that replaced another
    num_cycles: int = 0  # that came back
    machine: str | None = None  # of the process that answered last
    # Of points and what is collected from them. Networks cross for all actors of a machine at once.
    bytes_sent: int = 0
    bytes_received: int = 0
    process_cpu_s: float = 0.0  # CPU time, with all threads of the processes
    thread_cpu_s: float = 0.0  # CPU time of the thread that asks them


class RemoteCounter:
    """Counts in the thread that asks the processes; any thread may read `counts`."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.counts = RemoteCounts()  # Others read it, so it is replaced as a whole.
        self._process: tuple[str, int] | None = None  # machine and process that answered last
        self._process_cpu_s = 0.0  # that it had used by then

    def add(self, **more: float) -> None:
        """Add to the counts of these names."""
        sums = {name: getattr(self.counts, name) + number for name, number in more.items()}
        self.counts = dataclasses.replace(self.counts, **sums)

    def add_answer(self, answer: tuple[Record, Arrays | None, Arrays | None]) -> None:
        """Count what a call has returned, and its process if that has replaced another."""
        record, *arrays = answer
        process, is_first = (record["machine"], record["pid"]), self._process is None
        if process != self._process:
            self._process, self._process_cpu_s = process, 0.0
            self.add(num_restarts=int(not is_first))
            self.counts = dataclasses.replace(self.counts, machine=record["machine"])
        self.add(
            bytes_received=num_bytes((record.get("tally"), arrays)),
            process_cpu_s=record["cpu_s"] - self._process_cpu_s,
        )
        self._process_cpu_s = record["cpu_s"]
