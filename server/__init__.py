"""The daemon: command line, supervisor and HTTP processes. No torch."""

__version__ = "0.1.0"
