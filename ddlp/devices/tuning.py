"""How many workers are best, found by trying while they work. No processes, no tasks, no clock of its own."""

from __future__ import annotations

WINDOW_S, WINDOW_BATCHES = 3.0, 32  # that a pace is measured over, at least
SETTLE_S = 0.5  # after a change, what was begun before it is still being finished
MARGIN = 0.05  # more workers must be so much better, and fewer may be so much worse than the best
CHANGE = 0.1  # of the pace, twice in a row: the load is another one
REST, LONGEST_REST = 8, 64  # windows between two rounds of trials; each round that finds nothing doubles it


class Window:
    """The pace of batches since SETTLE_S after `now`, without the longest pause: loops validate and save between."""

    def __init__(self, now: float) -> None:
        self._opens = now + SETTLE_S
        self._first: float | None = None
        self._last = 0.0
        self._pause_s = 0.0
        self._batches = 0

    def add(self, now: float) -> None:
        """A batch was finished."""
        if now < self._opens:
            return
        if self._first is None:
            self._first = now
        else:
            self._batches += 1
            self._pause_s = max(self._pause_s, now - self._last)
        self._last = now

    @property
    def rate(self) -> float | None:
        """Batches per second; None while too little was measured."""
        seconds = 0.0 if self._first is None else self._last - self._first - self._pause_s
        return (self._batches - 1) / seconds if self._batches > WINDOW_BATCHES and seconds >= WINDOW_S else None


class Tuner:
    """Climbs to the number of workers, 1 to `most`, that make the most batches per second.

    It begins with `most`, for too many cost little and too few cost time. From `home`, the best number that is known,
    it tries an eighth more or fewer, at least one. More are the new home, when they are better by MARGIN; fewer, while
    the pace stays within MARGIN of the best, and is not found to be better with more again. Then it rests, until the
    load changes or the rest is over.

    The pace is also that at which batches are used: where training is slower than the workers, fewer are enough.

    workers  how many should work now
    wanted   how many there should be: until a round of trials is over, those who rest may be needed again
    home     the best that is known
    """

    def __init__(self, most: int) -> None:
        self.most = self.workers = self.wanted = self.home = most
        self._rate = 0.0  # at home, the mean of
        self._known = 0  # windows
        self._best = 0.0  # of the rates that are well known, since the load has changed
        self._top = 0.0  # the best in this round
        self._strange = 0  # windows in a row whose pace is another one
        self._ways: list[int] = []  # +1, -1: those still to be tried in this round
        self._rest = 0  # windows that are left of it
        self._next_rest = REST
        self._window: Window | None = None

    def made(self, now: float) -> None:
        """A batch was finished at the time `now`, in seconds."""
        if self.most == 1:
            return
        self._window = self._window or Window(now)
        self._window.add(now)
        if (rate := self._window.rate) is not None:
            self._window = None
            self._conclude(rate)

    def _conclude(self, rate: float) -> None:
        """That was the pace with `workers`."""
        if self._ways:
            self._judge(rate)
        elif self._is_strange(rate):
            self._settle(self.home, rate)
            self._best = 0.0
            self._try()
        else:
            self._learn(rate)
            self._rest -= 1
            if self._rest < 0:
                self._try()

    def _learn(self, rate: float) -> None:
        """The pace at home is better known."""
        self._known += 1
        self._rate += (rate - self._rate) / min(self._known, REST)
        if self._known >= REST:
            self._best = max(self._best, self._rate)

    def _is_strange(self, rate: float) -> bool:
        """Whether the load has changed."""
        self._strange = self._strange + 1 if abs(rate - self._rate) > CHANGE * self._rate else 0
        return self._strange == 2

    def _settle(self, home: int, rate: float) -> None:
        self.home, self._rate, self._known, self._strange, self._next_rest = home, rate, 1, 0, REST

    def _try(self) -> None:
        """Begin a round of trials, with more workers first, for that costs no time."""
        self._top, self._ways = max(self._best, self._rate), [+1, -1]
        self._go()

    def _judge(self, rate: float) -> None:
        """A trial has ended."""
        way = self._ways[0]
        if rate > (1 + MARGIN) * self._rate if way > 0 else rate >= (1 - MARGIN) * self._top:
            self._settle(self.workers, rate)
            self._top = max(self._top, rate)
            self._ways = [+1] if way > 0 else [-1, +1]
        else:
            del self._ways[0]
        self._go()

    def _go(self) -> None:
        """On to the next trial, or home to rest."""
        while self._ways:
            self.workers = min(self.most, max(1, self.home + self._ways[0] * -(-self.home // 8)))
            if self.workers != self.home:
                self.wanted = max(self.wanted, self.workers)
                return
            del self._ways[0]
        self.workers = self.wanted = self.home
        self._strange = 0
        self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, LONGEST_REST)
