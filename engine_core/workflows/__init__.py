"""A workflow for each task, from a client's job to the rows that are scheduled."""
