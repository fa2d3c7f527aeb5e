"""Which rows the next step computes: one scheduler for generation, one for encoders."""
