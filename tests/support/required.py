"""Whether this machine must be able to run every test: in CI, where a skipped test would go unnoticed."""

import os


def required() -> bool:
    """``REQUIRE_ALL`` is set in the environment, to anything but nothing."""
    return bool(os.environ.get("REQUIRE_ALL"))
