"""Messages and configuration of a worker: all that others may import. No torch."""
