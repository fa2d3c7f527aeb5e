"""HEALTHCHECK of the image: fails unless the daemon answers at PENSTOCK_HEALTH_URL with 200."""

import os
import ssl
import sys
import urllib.request

# The certificate names the host that clients use, not this address.
_UNVERIFIED = ssl._create_unverified_context()  # noqa: S323, SLF001

try:
    url = os.environ["PENSTOCK_HEALTH_URL"]
    with urllib.request.urlopen(url, timeout=4, context=_UNVERIFIED):  # noqa: S310
        pass
except OSError as error:
    sys.exit(f"not healthy: {error}")
