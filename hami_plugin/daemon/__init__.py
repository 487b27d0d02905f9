"""The daemon: from settings to objects, and the tasks that it keeps running."""
