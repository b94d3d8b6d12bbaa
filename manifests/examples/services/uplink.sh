#!/bin/sh
# uplink.sh [PORT]: answers to clients of one node port (30080) leave by the second uplink, whose route is in table 24 (uplink.yaml). Run it on the device at boot, as root; running
# it twice is fine. `uplink.sh PORT off` takes everything back.
set -eu
port=${1:-30080}
packet=0x240000 # the mark of packets, in bits that nobody else here uses

rule() { # CHAIN: the answers of connections that Skerry marked as TCP Services' (24), to this port alone
	echo "$1 -m connmark --mark 24/0xff -m conntrack --ctdir REPLY --ctorigdstport $port -j MARK --set-xmark $packet/0xff0000"
}
ip rule del fwmark $packet/0xff0000 lookup 24 2>/dev/null || true
for chain in PREROUTING OUTPUT; do # answers of pods, and of the device itself
	# shellcheck disable=SC2046 # words of a rule
	iptables -w 10 -t mangle -D $(rule $chain) 2>/dev/null || true
done
[ "${2:-on}" = off ] && exit 0
ip rule add fwmark $packet/0xff0000 lookup 24
for chain in PREROUTING OUTPUT; do
	# shellcheck disable=SC2046
	iptables -w 10 -t mangle -A $(rule $chain)
done
