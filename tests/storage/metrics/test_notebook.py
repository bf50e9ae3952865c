import sys
import types

from sebulba.storage.metrics.notebook import NotebookDisplay, in_notebook


class FakeNotebook:
    """Keeps what is shown: the bundle of each call, and of each update in place."""

    def __init__(self):
        self.shown, self.updates = [], []

    def show(self, bundle, *, raw, display_id):
        assert raw and display_id
        self.shown.append(bundle)
        return self

    def update(self, bundle, *, raw):
        assert raw
        self.updates.append(bundle)


def row(env_steps, mean=0.5):
    return {"env_steps": env_steps, "steps_per_second": 1000.0, "episode_return_mean": mean}


def test_a_notebook_has_one_line_that_is_updated_in_place_a_few_times_a_second():
    notebook, now = FakeNotebook(), [0.0]
    display = NotebookDisplay(4000, show=notebook.show, clock=lambda: now[0])
    display.message("impala on Catch")
    for now[0], env_steps, mean in ((1.0, 1000, 0.5), (1.1, 3000, 0.5), (1.3, 3500, None)):
        display.update(row(env_steps, mean))
    now[0] = 1.4
    display.update(row(4200))
    display.close()
    (first,) = notebook.shown
    assert first["text/plain"].startswith("  0% · starting")
    assert [bundle["text/plain"] for bundle in notebook.updates] == [
        " 25% · 1,000 env steps · return 0.5 · 1,000 env steps/s · at most 0:00:03 left",
        " 88% · 3,500 env steps · 1,000 env steps/s · at most 0:00:00 left",
        "100% · 4,200 env steps · return 0.5 · 1,000 env steps/s",
    ]
    assert notebook.updates[-1]["text/html"].startswith('<progress value="4000" max="4000">')


def test_a_notebook_shows_the_slowest_and_the_fastest_remote_actor():
    notebook = FakeNotebook()
    remote = {"remote_actor/0/steps_per_second": 400.0, "remote_actor/1/steps_per_second": 600.0}
    restarts = {"remote_actor/0/restarts": 0, "remote_actor/1/restarts": 1}
    remote |= {"remote_actor/0/machine": "a", "remote_actor/1/machine": "b"}
    NotebookDisplay(4000, show=notebook.show).update(row(1000) | remote | restarts)
    text = notebook.shown[0]["text/plain"]
    assert " · 1,000 env steps/s · 2 remote: 400/s–600/s, 1 restart · at most " in text


def test_a_notebook_that_cannot_show_does_not_stop_training():
    def fail(*args, **kwargs):
        raise OSError("the page is closed")

    display = NotebookDisplay(100, show=fail)
    display.message("text")
    display.update(row(50))
    display.close()


def test_only_a_kernel_is_a_notebook(monkeypatch):
    kernel, terminal = types.SimpleNamespace(kernel=object()), types.SimpleNamespace()
    for shell, expected in ((kernel, True), (terminal, False), (None, False)):
        fake = types.SimpleNamespace(get_ipython=lambda shell=shell: shell)
        monkeypatch.setitem(sys.modules, "IPython", fake)
        assert in_notebook() is expected
    monkeypatch.delitem(sys.modules, "IPython")
    assert not in_notebook()
    assert "IPython" not in sys.modules, "it is not imported to find out"
