"""When the loop checks its stages and sends its heartbeat."""

from engine_core.executor.base import CHECK_SECONDS, CHECKS_A_BEAT


class Cadence:
    """Checks every CHECK_SECONDS, of which the first and then every fourth brings a heartbeat."""

    def __init__(self) -> None:
        self.next_check = 0.0
        self._checks = 0

    def check_is_due(self, now: float) -> bool:
        """Called in every iteration, with the time in seconds; true begins a check."""
        if now < self.next_check:
            return False
        # The loop's delays do not add up; what a stopped process has missed is not made up for.
        self.next_check = max(self.next_check + CHECK_SECONDS, now)
        self._checks += 1
        return True

    def beat_is_due(self) -> bool:
        """The check that has begun brings a heartbeat."""
        return self._checks % CHECKS_A_BEAT == 1
