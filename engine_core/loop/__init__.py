"""What the loop is made of: jobs, admission, queues that keys share, pace, updates, reports."""
