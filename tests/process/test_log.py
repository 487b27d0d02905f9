"""The project's loggers."""

import subprocess
import sys

import structlog

from hami_plugin.process.log import logger


def test_a_module_logs_events_with_fields():
    with structlog.testing.capture_logs() as events:
        logger("hami_plugin.node").warning("device unhealthy", device="GPU-1")

    assert events == [{"event": "device unhealthy", "device": "GPU-1", "log_level": "warning"}]


def test_logs_do_not_load_rich_and_commands_that_draw_still_can():
    program = (
        "import sys, hami_plugin.telemetry.logs; assert 'rich' not in sys.modules; import rich.table; print('drawn')"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.stdout == "drawn\n", done.stderr
