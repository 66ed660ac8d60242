"""Decides how long threads that wait for each other spin before they sleep.

Values in, values out: knows no clock, no thread and no library.
"""

from __future__ import annotations

LONG = 300_000
"""GOMP's default number of turns: a waiting thread keeps its core for some milliseconds."""
SHORT = 1009
"""Turns after which the core is given up soon. A prime, because the place where GOMP keeps the
number is found by its value."""

CROWDED_SHARE = 0.25
"""Share of a pass that a spinning thread waited for a core, from which on it sleeps soon instead.
Other work of low priority takes a tenth; one busy program on two cores takes a third."""
FADING = 0.8
"""Weight of earlier passes in these shares, per pass."""
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 16.0
"""Time without spinning, which doubles where spinning fails again soon."""
SOON_S = 4.0


class SpinRule:
    """Lets waiting threads spin as long as others want few of their cores; otherwise tries it again
    after pauses. The first pass does not spin."""

    def __init__(self) -> None:
        self.spins = False
        self._changed = float("-inf")
        self._pause_s = SHORTEST_PAUSE_S
        self._pass_s = self._waited_s = 0.0

    def see_pass(self, end: float, pass_s: float, waited_s: float) -> None:
        """Judge a pass of `pass_s` that ended at the time `end`, whose thread was ready to run and
        waited for a core for `waited_s` of it."""
        self._pass_s = FADING * self._pass_s + pass_s
        self._waited_s = FADING * self._waited_s + waited_s
        share = self._waited_s / self._pass_s if self._pass_s else 0.0
        since = end - self._changed
        if self.spins and share > CROWDED_SHARE:
            longer_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
            self._pause_s = longer_s if since < SOON_S else SHORTEST_PAUSE_S
            self._change(end)
        elif not self.spins and since >= self._pause_s:
            self._change(end)

    def _change(self, now: float) -> None:
        self.spins = not self.spins
        self._changed = now
        self._pass_s = self._waited_s = 0.0
