"""What one vendor's hardware has now: discovered, watched for faults, and described to container runtimes."""
