"""What an operator sees of the daemon: logs, metrics, probes. It reports, and decides nothing."""

from hami_plugin.log import structlog_logger

structlog_logger()  # before a module here imports structlog, and rich with it
