"""`python -m server` is the `penstock` command."""

import sys

from server.cli import main

sys.exit(main())
