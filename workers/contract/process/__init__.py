"""Standard error, log and end of a process of the daemon."""
