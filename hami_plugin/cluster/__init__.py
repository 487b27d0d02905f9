"""The API server: the ``Cluster`` port over ``kubernetes.aio``'s bare client and plain JSON. No models."""
