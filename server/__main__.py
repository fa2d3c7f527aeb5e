"""`python -m server` is the `penstock` command."""

import sys
import time

from server import cli
from workers.contract.process import TIME_FORMAT, end_with_threads, open_standard_error


def main() -> int:
    """The process of a command: its exit code, whatever has become of its standard error."""
    open_standard_error(
        lambda lines: f"{time.strftime(TIME_FORMAT)} WARNING {lines:,} lines were dropped"
    )
    end_with_threads()
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
