"""Whether a job may come in: a bound on work in flight, and one on the expected wait (HTTP 429)."""
