#!/usr/bin/env bash
# deps.sh [machine|release|conformance]: installs the programs that a trial cluster and the tests need, with a word also those of `make test`, of `make
# release-test` or of `make conformance`, and that this machine lacks. It does nothing when all are there.
set -euo pipefail
export PATH="$PATH:/usr/sbin:/sbin"

# package                    file that proves it                 what for
list='
containerd                   containerd                          runs the pods of every edge; the trial starts its own, with its own state
runc                         runc                                what containerd starts containers with
containernetworking-plugins  /usr/lib/cni/bridge                 networks of pods (bridge, host-local, portmap)
iptables                     iptables                            masquerading by the CNI plugins; NAT between edge and cloud
nftables                     nft                                 kube-proxy in nftables mode, and packet loss on purpose in tests
conntrack                    conntrack                           kube-proxy forgets connections with it
openssl                      openssl                             install.sh verifies the signature of a release with it
keepalived                   keepalived                          elects the holders of virtual IPs; edgecore runs it
dbus-daemon                  dbus-daemon                         a bus of their own for tests of shutdowns; no daemon of the host is started
user-mode-linux              linux.uml                           a kernel with IPVS for the tests of that data plane; no module of the host is needed
ipvsadm                      ipvsadm                             looking at what those tests have made
busybox-static               busybox                             the first process of that kernel ends with its poweroff
kmod                         modprobe                            loads the modules of that kernel
qemu-system-x86              qemu-system-x86_64                  an emulator, for tests of WireGuard in a kernel that has it
prometheus                   promtool                            evaluates the alerts, and the queries of the dashboards; promtool checks them
prometheus-alertmanager      prometheus-alertmanager             inhibits alerts, in tests
chromium-headless-shell      chromium-headless-shell             shows the page of kubectl skerry ui, in tests
iproute2                     ip                                  looking at namespaces and links; tc shapes slow ones
'
if [ "${1:-}" = machine ]; then
	list+='
mmdebstrap                   mmdebstrap                          makes the file tree of a real machine, a guest of user-mode Linux
e2fsprogs                    mke2fs                              makes its disk
'
	if grep -qw amx_tile /proc/cpuinfo; then
		list+='
gcc                          gcc                                 compiles the ptrace of user-mode Linux for a processor with AMX
'
	fi
fi
if [ "${1:-}" = release ]; then
	list+='
rpm                          rpm                                 installs the packages of a release that are no Debian ones
qemu-user-static             qemu-aarch64-static                 runs programs of a release that are for arm64
'
fi
if [ "${1:-}" = conformance ]; then
	list+='
dash                         dash                                the shell of the pods that the cases run
bash                         bash                                the other shell of those pods
curl                         curl                                in those pods, as all that follows
bind9-dnsutils               dig                                 asks name servers
libc-bin                     getent                              asks the resolver
netcat-openbsd               nc.openbsd                          asks TCP and UDP servers
socat                        socat                               the same, for the cases of affinity
hostname                     hostname                            says which pod has answered
'
fi

missing=()
while read -r package file why; do
	[ -n "$package" ] || continue
	if [ "${file#/}" != "$file" ]; then
		[ -e "$file" ] || [ -e "/opt/cni/bin/${file##*/}" ] || missing+=("$package")
	else
		command -v "$file" >/dev/null || missing+=("$package")
	fi
	if [ "${missing[*]+${missing[-1]}}" = "$package" ]; then echo "deps: missing $package: $why"; fi
done <<<"$list"

# That kernel is unpacked only: it is not installed, and the machine's own stays unchanged.
kernel=/var/cache/skerry/kernel
fetch_kernel() {
	[ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null && [ "$(dpkg --print-architecture)" = amd64 ] || return 0
	compgen -G "$kernel/boot/vmlinuz-*" >/dev/null && return 0
	local package work
	package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: \(linux-image-[^ ]*\)$/\1/p' | head -n 1)
	work=$(mktemp -d)
	echo "deps: fetching ${package:-linux-image-cloud-amd64}: a kernel with WireGuard for tests"
	if [ -n "$package" ] && (cd "$work" && apt-get download -q "$package" >/dev/null 2>&1 && dpkg -x ./*.deb tree && rm -rf tree/usr && depmod -b tree "${package#linux-image-}"); then
		rm -rf "$kernel"
		mkdir -p "$(dirname "$kernel")"
		mv "$work/tree" "$kernel"
	else
		echo "deps: it can't be fetched: the tests in tests/vm will fail" >&2
	fi
	rm -rf "$work"
}

# The file tree of real machines (tests/machine), which takes half a minute on a machine that has no other work.
machine=
if [ "${1:-}" = machine ]; then machine=/var/cache/skerry/machine/root; fi
make_machine() {
	[ -n "$machine" ] && [ ! -d "$machine" ] && [ "$(id -u)" -eq 0 ] || return 0
	echo "deps: making the file tree of a real machine"
	mkdir -p "${machine%/*}"
	DISK=tests/machine/disk sh tests/machine/disk/make.sh "$machine" || echo "deps: it can't be made: the tests in tests/machine will try again" >&2
}

if [ ${#missing[@]} -eq 0 ]; then
	fetch_kernel
	make_machine
	exit 0
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
	echo "deps: this is no Debian (there is no apt-get): install ${missing[*]} with your own package manager, then run this again" >&2
	exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
	echo "deps: installing needs root: sudo apt-get install --no-install-recommends ${missing[*]}" >&2
	exit 1
fi
echo "deps: installing ${missing[*]} (10 s or so)"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() { apt-get install -y -q --no-install-recommends "${missing[@]}" >"$log" 2>&1; }
# The package lists of a fresh machine may be absent or stale: update only if the first attempt fails.
if ! install; then
	if ! apt-get update -q >"$log" 2>&1 || ! install; then
		cat "$log" >&2
		echo "deps: apt-get could not install ${missing[*]}; its output is above" >&2
		exit 1
	fi
fi
fetch_kernel
make_machine
echo "deps: done"
