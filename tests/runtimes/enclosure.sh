# The first process of an enclosure: builds its file system, moves into it, and lives until its input ends.
# $1 is the tree of programs, which stays as it is; $2 an empty directory to work on; both relative. What follows are
# pairs: a directory of the machine, and the path under which it is seen inside.
set -eu
tree=$1 spot=$2
shift 2

mount -t tmpfs -o mode=755 tmpfs "$spot"
mkdir "$spot/upper" "$spot/work" "$spot/state" "$spot/root"
mount -t overlay -o "lowerdir=$tree,upperdir=$spot/upper,workdir=$spot/work" overlay "$spot/root"
cd "$spot/root"
mkdir -p proc sys dev run tmp root old opt mnt etc/cdi var/lib/containerd var/lib/containers var/log/pods var/tmp
chmod 1777 tmp var/tmp
rm -rf var/run
ln -s ../run var/run

mount -t proc proc proc
mount --rbind /sys sys
mount -t tmpfs -o mode=755 tmpfs run
# An overlay cannot lie on an overlay: what runtimes keep lies beside it.
for kept in containerd containers; do
    mkdir "../state/$kept"
    mount --bind "../state/$kept" "var/lib/$kept"
done
mkdir run/cdi

mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
mount -t tmpfs tmpfs dev/shm
for node in null:3 zero:5 full:7 random:8 urandom:9; do
    mknod -m 666 "dev/${node%:*}" c 1 "${node#*:}"
done
mknod -m 666 dev/tty c 5 0
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd

while [ $# -gt 0 ]; do
    mkdir -p ".$2"
    mount --bind "$1" ".$2"
    shift 2
done

echo "root:x:0:0:root:/root:/bin/sh" >etc/passwd
echo "root:x:0:" >etc/group
echo "127.0.0.1 localhost enclosure" >etc/hosts
: >etc/resolv.conf

pivot_root . old
exec 3<&0
exec /bin/busybox sh -euc '
    cd /
    busybox umount -l /old
    busybox hostname enclosure
    busybox ip link set lo up
    busybox cat >/dev/null <&3 &
    echo ready
    wait $! # and meanwhile reap whatever is left to the first process
'
