"""Between host and device: copies, timing."""
