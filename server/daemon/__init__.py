"""The daemon: its processes, from the start to the end."""
