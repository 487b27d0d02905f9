"""The node's files, threads and container runtime. No Kubernetes, no vendor."""
