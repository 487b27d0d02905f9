"""One profile of Hypothesis for all tests: none of them may fail because the machine is slow just now."""

import os

from hypothesis import HealthCheck, settings

# No example has a deadline: Hypothesis' own, 200 ms, fails whichever test a loaded machine holds up, and what must be
# fast has a test that counts. Making examples may be slow for the same reason. Where a build decides about a change,
# examples follow from the test alone, so that a red build is about the change; everywhere else they are new each time.
_CALM = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}
settings.register_profile("any machine", **_CALM)
settings.register_profile("the same examples", derandomize=True, **_CALM)
settings.load_profile("the same examples" if os.environ.get("CI") else "any machine")
