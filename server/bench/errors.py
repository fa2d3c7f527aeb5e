"""What ends a measurement."""


class BenchError(Exception):
    """A case cannot be measured, or what came back is not what was asked for; one line says why."""
