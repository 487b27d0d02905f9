"""Keeps one vendor's errors from the others: checked answers, restarted tasks, a process of its own for a driver."""
