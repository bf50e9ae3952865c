import threading
import time

import pytest

from sebulba.storage.metrics.writers import MetricsFanOut

LONG_S = 60.0  # never waited for in a passing test


class ListWriter:
    def __init__(self):
        self.rows = []
        self.closed_by = None

    def write(self, row):
        assert self.closed_by is None
        self.rows.append(row)

    def close(self):
        self.closed_by = threading.current_thread()


class RaisingWriter:
    def __init__(self, *, bad_env_steps=(), close_raises=False):
        self.rows = []
        self.close_raises = close_raises
        self.bad_env_steps = bad_env_steps

    def write(self, row):
        if row["env_steps"] in self.bad_env_steps:
            raise OSError(28, "No space left on device")
        self.rows.append(row)

    def close(self):
        if self.close_raises:
            raise RuntimeError("cannot close")


class BlockingWriter:
    def __init__(self):
        self.rows = []
        self.is_writing = threading.Event()
        self.may_write = threading.Event()

    def write(self, row):
        self.is_writing.set()
        self.may_write.wait()
        self.rows.append(row)

    def close(self):
        pass


@pytest.fixture
def start():
    threads = []

    def start_queues(fan_out):
        threads.extend(threading.Thread(target=queue.run, daemon=True) for queue in fan_out.queues)
        for thread in threads:
            thread.start()
        return threads

    yield start_queues
    for thread in threads:
        thread.join(LONG_S)
        assert not thread.is_alive()


def env_steps(writer):
    return [row["env_steps"] for row in writer.rows]


def test_fan_out_writes_every_row_before_a_normal_end(start):
    writers, warnings = [ListWriter(), ListWriter()], []
    fan_out = MetricsFanOut(writers, warnings.append)
    threads = start(fan_out)
    for step in range(500):
        fan_out.put({"env_steps": step})
    assert fan_out.close(LONG_S)
    for writer, thread in zip(writers, threads, strict=True):
        assert env_steps(writer) == list(range(500))
        assert writer.closed_by is thread
    assert (warnings, fan_out.dropped_rows) == ([], {})


def test_fan_out_close_without_threads_writes_the_rows_itself():
    writer, warnings = ListWriter(), []
    fan_out = MetricsFanOut([writer], warnings.append)
    fan_out.put({"env_steps": 1})
    assert fan_out.close(LONG_S)
    assert (env_steps(writer), writer.closed_by) == ([1], threading.current_thread())
    fan_out.queues[0].run()  # a thread that starts late finds nothing to do
    assert warnings == []


def test_fan_out_row_may_be_changed_after_it_was_put():
    writer = ListWriter()
    fan_out = MetricsFanOut([writer], pytest.fail)
    row = {"env_steps": 1}
    fan_out.put(row)
    row["env_steps"] = 2
    fan_out.close(LONG_S)
    assert env_steps(writer) == [1]


def test_fan_out_writer_that_raises_causes_one_warning_and_the_others_continue(start):
    raising, good, warnings = RaisingWriter(bad_env_steps=(2, 3)), ListWriter(), []
    fan_out = MetricsFanOut([raising, good], warnings.append)
    start(fan_out)
    for step in range(1, 6):
        fan_out.put({"env_steps": step})
    assert fan_out.close(LONG_S)
    assert env_steps(raising) == [1, 4, 5]
    assert env_steps(good) == [1, 2, 3, 4, 5]
    assert fan_out.dropped_rows == {"RaisingWriter": 2}
    assert warnings == [
        "metrics: RaisingWriter failed at 2 env steps: OSError: [Errno 28] No space left on device;"
        " training continues without its rows"
    ]


def test_fan_out_writer_that_blocks_delays_neither_put_nor_the_others(start):
    blocking, good, warnings = BlockingWriter(), ListWriter(), []
    fan_out = MetricsFanOut([blocking, good], warnings.append, max_rows=3)
    start(fan_out)
    fan_out.put({"env_steps": 0})
    blocking.is_writing.wait(LONG_S)
    for step in range(1, 6):  # rows 1 and 2 fill the queue: its first slot is row 0's
        fan_out.queues[0].put({"env_steps": step})
    assert fan_out.dropped_rows == {"BlockingWriter": 3}
    fan_out.queues[1].put({"env_steps": 1})
    fan_out.queues[1].close()
    assert fan_out.queues[1].join(LONG_S)
    assert env_steps(good) == [0, 1]

    blocking.may_write.set()
    assert fan_out.close(LONG_S)
    assert env_steps(blocking) == [0, 1, 2]
    assert fan_out.dropped_rows == {"BlockingWriter": 3}
    assert warnings == [
        "metrics: BlockingWriter hangs with 3 rows waiting; training continues without its rows"
    ]


def test_fan_out_waits_longer_for_a_service_than_for_files(start):
    class Connecting(ListWriter):
        def write(self, row):
            time.sleep(0.1)
            super().write(row)

    service = Connecting()
    fan_out = MetricsFanOut([], pytest.fail, services=[service])
    start(fan_out)
    fan_out.put({"env_steps": 1})
    assert fan_out.close(0.0, LONG_S)
    assert service.rows == [{"env_steps": 1}]


def test_fan_out_close_abandons_a_writer_that_blocks_and_counts_its_rows(start):
    blocking, warnings = BlockingWriter(), []
    fan_out = MetricsFanOut([blocking], warnings.append)
    start(fan_out)
    for step in range(4):
        fan_out.put({"env_steps": step})
    blocking.is_writing.wait(LONG_S)
    assert not fan_out.close(0.0)
    assert fan_out.dropped_rows == {"BlockingWriter": 4}
    assert len(warnings) == 1
    assert "did not finish in time with 4 rows left" in warnings[0]

    blocking.may_write.set()
    fan_out.queues[0].join(LONG_S)
    assert env_steps(blocking) == [0]  # written after it was counted, and not counted twice
    assert fan_out.dropped_rows == {"BlockingWriter": 4}


def test_fan_out_row_after_close_is_dropped_and_counted():
    writer, warnings = ListWriter(), []
    fan_out = MetricsFanOut([writer], warnings.append)
    fan_out.close(LONG_S)
    fan_out.put({"env_steps": 1})
    assert (writer.rows, fan_out.dropped_rows) == ([], {"ListWriter": 1})
    assert len(warnings) == 1


def test_fan_out_survives_a_close_and_a_warning_that_raise():
    def refuse(text):
        raise RuntimeError(text)

    fan_out = MetricsFanOut([RaisingWriter(bad_env_steps=(1,), close_raises=True)], refuse)
    fan_out.put({"env_steps": 1})
    assert fan_out.close(LONG_S)
    assert fan_out.dropped_rows == {"RaisingWriter": 1}


def test_fan_out_adds_up_the_dropped_rows_of_two_writers_of_one_type():
    writers = [RaisingWriter(bad_env_steps=(1,)), RaisingWriter(bad_env_steps=(1, 2))]
    fan_out = MetricsFanOut(writers, lambda text: None)
    for step in (1, 2):
        fan_out.put({"env_steps": step})
    fan_out.close(LONG_S)
    assert fan_out.dropped_rows == {"RaisingWriter": 3}
