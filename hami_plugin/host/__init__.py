"""The node's own files, threads and tools behind small types. No Kubernetes, no vendor."""
