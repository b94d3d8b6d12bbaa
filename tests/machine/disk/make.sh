#!/bin/sh
# make.sh ROOT [IMAGE]: makes the disk of a Debian 12 with systemd and containerd, without edgecore, of the tree in ROOT; mmdebstrap makes that where it is absent.
# $DISK is the folder of this script's files. Guests write into overlay files next to the disk, never to it.
set -eu
root=$1 image=${2:-}
if [ ! -d "$root" ]; then
	rm -rf "$root.new"
	# The machine's own sources of packages, where they are of this release: they are those that it reaches.
	sources=
	for file in /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list; do
		if [ -z "$sources" ] && grep -qs bookworm "$file"; then sources=$file; fi
	done
	mmdebstrap --quiet --variant=minbase --include=systemd,systemd-sysv,dbus,containerd,runc,iptables,conntrack,kmod,udev,iproute2,procps,ca-certificates,containernetworking-plugins,libpam-systemd \
		bookworm "$root.new" $sources
	mv "$root.new" "$root"
fi
[ -n "$image" ] || exit 0
units=$root/etc/systemd/system
wanted() { # wanted UNIT TARGET [FOLDER of the unit]
	mkdir -p "$units/$2.wants"
	ln -sfn "${3:-/etc/systemd/system}/$1" "$units/$2.wants/$1"
}
install -m 755 "$DISK/machine-setup" "$root/usr/local/sbin/machine-setup"
install -m 644 "$DISK/machine-setup.service" "$DISK/channel.socket" "$DISK/channel@.service" "$units/"
wanted machine-setup.service sysinit.target
wanted channel.socket sockets.target
wanted systemd-networkd.service multi-user.target /lib/systemd/system
# A device boots without a network; what else a guest does without costs it time.
for unit in systemd-networkd-wait-online.service systemd-timesyncd.service getty.target apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer \
	e2scrub_reap.service fstrim.timer modprobe@.service systemd-update-utmp.service systemd-update-utmp-runlevel.service; do
	ln -sfn /dev/null "$units/$unit"
done
# The cards are all that udev is asked for at the boot.
mkdir -p "$units/systemd-udev-trigger.service.d"
printf '[Service]\nExecStart=\nExecStart=udevadm trigger --type=devices --action=add --subsystem-match=net\n' >"$units/systemd-udev-trigger.service.d/cards.conf"
mkdir -p "$root/etc/systemd/logind.conf.d" "$root/var/log/journal"
printf '[Login]\nNAutoVTs=0\nReserveVT=0\n' >"$root/etc/systemd/logind.conf.d/consoles.conf"
: >"$root/etc/fstab" # the kernel mounts the root, to write
: >"$root/etc/machine-id" # the first boot makes one
rm -f "$root/var/lib/dbus/machine-id"
printf 'net.ipv4.ip_forward=1\nfs.inotify.max_user_instances=1024\n' >"$root/etc/sysctl.d/50-pods.conf"
# The kernel's modules. It has nf_tables without the families that iptables and edgecore need: the older front end, and no nft.
mkdir -p "$root/lib/modules"
cp -a /usr/lib/uml/modules/. "$root/lib/modules/"
printf '%s\n' overlay br_netfilter ip_tables ip6_tables iptable_nat iptable_filter iptable_mangle ipv6 >"$root/etc/modules-load.d/skerry.conf"
for name in iptables ip6tables; do
	for part in '' -save -restore; do ln -sfn "/usr/sbin/$name-legacy$part" "$root/etc/alternatives/$name$part"; done
done
[ ! -e "$root/usr/sbin/nft" ] || chmod -x "$root/usr/sbin/nft"
rm -f "$image.new"
mke2fs -q -t ext4 -E lazy_itable_init=1 -m 0 -d "$root" "$image.new" 3G
mv "$image.new" "$image"
