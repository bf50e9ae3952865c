"""Holders of runs that answer, and die, as they are told to."""


def reply(**changes):
    usual = {"machine": "a", "is_start": False, "problem": None, "output": b"", "code": None}
    return usual | changes


START = reply(is_start=True)
RUNS = "runs until a signal comes"


class FakeHolder:
    """Gives the answers that it is made with, one a call, or raises them."""

    def __init__(self, *answers):
        self.asked = []
        self.is_killed = False
        self._answers = list(answers)

    def call(self, method, order, is_again, signals):
        assert method == "follow" and not self.is_killed
        self.asked.append((is_again, signals))

    def wait(self, seconds):
        next_ = self._answers[0] if self._answers else None
        if next_ is RUNS:
            code = sum(self.asked[-1][1][:1])
            return (reply(code=128 + code) if code else reply(),)
        if next_ is not None:
            self._answers.pop(0)
        if isinstance(next_, Exception):
            raise next_
        return None if next_ is None else (next_,)

    def kill(self):
        self.is_killed = True
