"""Generated from ``proto/hami_plugin/kubelet/v1beta1/deviceplugin.proto`` by ``make proto``."""
