"""The parts of the loop: jobs, admission, queues that keys share, pace, updates, reports."""
