#!/bin/sh
# uplink.sh INTERFACE GATEWAY [PORT]: routes replies to clients of one node port (30090) over another uplink. Run it on the device at boot, as root; you can run it repeatedly.
# `uplink.sh off [PORT]` removes everything. The route is not a StaticRoute: those never cover a device's own networks, in any table.
set -eu
interface=${1:?interface of the uplink, or off} gateway=${2:-}
port=${3:-30090}
[ "$interface" != off ] || port=${2:-30090}
packet=0x240000/0xff0000 # the mark of packets, in bits that no other rule here uses
table=24

rule() { # CHAIN: replies of connections that Skerry marked as TCP Services' (24), only to this port
	echo "$1 -m connmark --mark 24/0xff -m conntrack --ctdir REPLY --ctorigdstport $port -j MARK --set-xmark $packet"
}
while ip rule del fwmark $packet lookup $table 2>/dev/null; do :; done
for chain in PREROUTING OUTPUT; do # replies of pods, and of the device itself
	# shellcheck disable=SC2046 # words of a rule
	iptables -w 10 -t mangle -D $(rule $chain) 2>/dev/null || true
done
if [ "$interface" = off ]; then
	ip route flush table $table 2>/dev/null || true
	exit 0
fi
ip route replace default via "$gateway" dev "$interface" table $table
ip rule add fwmark $packet lookup $table
for chain in PREROUTING OUTPUT; do
	# shellcheck disable=SC2046
	iptables -w 10 -t mangle -A $(rule $chain)
done
