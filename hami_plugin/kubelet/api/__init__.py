"""Generated from ``proto/hami_plugin/kubelet/api`` by ``make proto``: the kubelet's two gRPC services."""
