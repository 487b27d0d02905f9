"""What an operator sees of the daemon: logs, metrics, probes. It reports, and decides nothing."""
