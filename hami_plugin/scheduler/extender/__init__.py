"""The server that kube-scheduler asks: filter, bind, and the cache behind both."""
