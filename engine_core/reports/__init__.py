"""What an engine core reports: counters for its heartbeat, the times of its steps."""
