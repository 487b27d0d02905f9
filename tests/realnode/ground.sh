# What a node has before its servers start: a network, shared mounts, and kernel settings as a kubelet wants them.
# $1 is the node's address, $2 the first node's where it is another: then its uplink is there already. The settings are files in front of the kernel's own, which stay as they are.
set -eu
mount --make-rshared /
ip link set lo up
if [ $# -eq 1 ]; then
    ip addr add 10.96.0.1/32 dev lo # the service's address of the API server
    ip link add uplink type veth peer name nodes
    ip link set nodes up
fi
ip link set uplink up
ip addr add "$1/24" dev uplink
[ $# -eq 1 ] || ip route add 10.96.0.1 via "$2"
ip route add default via "${1%.*}.1" dev uplink
# A pod with users of its own gets a /proc only where the node has one that nothing covers.
mkdir -p /run/settings /run/proc
mount -t proc proc /run/proc
setting() {
    echo "$2" >"/run/settings/$(basename "$1")"
    mount --bind "/run/settings/$(basename "$1")" "/proc/sys/$1"
}
setting vm/overcommit_memory 1
setting vm/panic_on_oom 0
setting kernel/panic 10
setting kernel/panic_on_oops 1
setting kernel/keys/root_maxkeys 1000000
setting kernel/keys/root_maxbytes 25000000
mknod -m 600 /dev/kmsg c 1 11 2>/dev/null || true
for kept in /var/lib/kubelet /usr/local/vgpu; do # such pods get no mount of an overlay
    mkdir -p "$kept"
    mount -t tmpfs -o mode=755 tmpfs "$kept"
done
mkdir -p /var/lib/cni /usr/libexec/kubernetes /var/log/containers
