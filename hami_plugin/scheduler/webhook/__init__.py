"""The admission webhook: a pod is given defaults and a scheduler, or refused."""
