"""Generated from ``proto/hami_plugin/kubelet/podresources/v1/podresources.proto`` by ``make proto``."""
