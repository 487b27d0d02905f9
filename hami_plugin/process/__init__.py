"""What the process itself runs on: the event loop's tools, threads, and loggers."""
