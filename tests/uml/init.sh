#!/bin/sh
# The first process of the test kernel (user-mode Linux on the machine's own file tree, read-only). It mounts what a system needs, runs the job given on the
# kernel's command line (umljob=DIRECTORY with a file cmd), leaves its output and exit code there, and switches off.
export PATH=/run/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run/home LC_ALL=C
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lock /run/netns /run/bin /run/home /run/m/lib /run/job /run/tmp
JOB=$(sed -n 's/.*umljob=\([^ ]*\).*/\1/p' /proc/cmdline)
mount -t hostfs none /run/job -o "$JOB" || echo "mounting the job failed"
export TMPDIR=/run/tmp
# The kernel has its modules in a place of its own, and looks for modprobe in the usual one.
ln -s /usr/lib/uml/modules /run/m/lib/modules
# The kernel calls it without our environment, in which GLIBC_TUNABLES keeps programs off registers that the guest loses (registers.go).
printf '#!/bin/sh\nexport GLIBC_TUNABLES=%s\nexec /sbin/modprobe -d /run/m "$@"\n' "$GLIBC_TUNABLES" >/run/bin/modprobe
chmod +x /run/bin/modprobe
echo /run/bin/modprobe >/proc/sys/kernel/modprobe
# It has no NAT for nftables: use the older front ends.
for b in iptables ip6tables iptables-save ip6tables-save; do
	ln -s "/usr/sbin/$(echo "$b" | sed 's/tables/tables-legacy/')" "/run/bin/$b"
done
modprobe -a ipv6 ip_vs ip_vs_rr 2>&1
ip link set lo up 2>/dev/null
cd /run/job || exit 1
sh ./cmd >/run/job/out 2>&1 </dev/null
echo $? >/run/job/rc
sync
busybox poweroff -f
