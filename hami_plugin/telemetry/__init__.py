"""What an operator sees of the daemon: logs, metrics, probes. It reports, and decides nothing."""

import hami_plugin.process.log  # noqa: F401  # loads structlog without rich, before a module here imports it
