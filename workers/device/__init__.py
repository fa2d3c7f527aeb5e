"""The device of a stage: copies from and to the host, timing, measured numbers, a CPU's heap."""
