"""What the process itself runs on: the event loop's tools (``aio``), threads, and loggers."""
