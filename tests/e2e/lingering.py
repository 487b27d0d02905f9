"""The daemon that keeps its predecessor for as long as a test looks: ``python lingering.py run …``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from hami_plugin import cli
from hami_plugin.daemon import app
from tests.support.forked import stand_in

LOOKED_S = 60.0

if __name__ == "__main__":
    stand_in(app, "LINGER_S", LOOKED_S)
    cli.main()
