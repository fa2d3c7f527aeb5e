"""What ends a command that starts no daemon."""


class CommandError(Exception):
    """A command cannot do what it is asked; its message is one line, its exit code 1."""
