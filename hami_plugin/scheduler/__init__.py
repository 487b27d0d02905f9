"""The scheduler process: kube-scheduler's extender and the admission webhook, over the families' rules."""
