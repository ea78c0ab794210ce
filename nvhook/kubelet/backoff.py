"""How long to wait before the next try."""

FIRST = 1.0
LAST = 30.0


class Backoff:
    """Pauses in seconds, each twice as long as the one before, from 1 to 30."""

    def __init__(self) -> None:
        self._next = FIRST

    def pause(self) -> float:
        """Return the next pause."""
        pause, self._next = self._next, min(2 * self._next, LAST)
        return pause

    def reset(self) -> None:
        """Begin with the shortest again."""
        self._next = FIRST
