"""Whether tests may have mounts of their own, which nobody else sees."""

import shutil
import subprocess

#: The reason of a skip.
NO_MOUNTS = "no private mounts here: they need root, and / must be a mount point"


def can_mount() -> bool:
    """Whether `unshare --mount` works. A chroot that is no mount point cannot have mounts of its own, even for root."""
    if not shutil.which("unshare"):
        return False
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, timeout=10, check=False).returncode == 0
