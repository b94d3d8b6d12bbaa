#!/bin/sh
# Installs edgecore (or another program) from a release of Skerry: a URL, a folder, or a bundle for machines without Internet.
#   install.sh [--sha256 HASH | --key KEY] [--program edgecore] [--kubernetes 1.36] [--root DIR] SOURCE
# --program: edgecore on a device, kubectl-skerry where people use kubectl, cloudcore where it does not run in the cluster
# --kubernetes: for clusters that are older than this edgecore's kubelet, where the release has one for them. Without it an edgecore
#            of another Kubernetes than its release's (its version ends in +k8s1.36) is followed by one of the same
# SOURCE:    https://.../v1.2.3, a folder with the release's files, or airgap-ARCH.tar
# --sha256:  of the release's SHA256SUMS, or of the bundle, from a place that you trust; then no signature is needed
# --key:     the minisign public key (RW...) that must have signed SHA256SUMS, instead of the one in this file
# --root:    install into this folder instead of the machine (for images of machines); no package manager is asked
# Nothing of the source is run, unpacked or installed before its sum fits the signed list. Exit codes: 0 installed, 1 it
# failed on the way, 2 refused, and nothing was changed.
set -eu
LC_ALL=C
export LC_ALL
umask 022
KEY=
VERSION=
KUBERNETES=

refuse() {
	echo "install.sh: $*" >&2
	exit 2
}

program=edgecore root='' given='' source='' kubernetes=''
while [ $# -gt 0 ]; do
	case $1 in
	--sha256 | --key | --program | --kubernetes | --root)
		[ $# -ge 2 ] || refuse "$1 needs a value"
		case $1 in --sha256) given=$2 ;; --key) KEY=$2 ;; --program) program=$2 ;; --kubernetes) kubernetes=$2 ;; --root) root=$2 ;; esac
		shift 2
		;;
	-h | --help)
		sed -n '2,13s/^# \{0,1\}//p' "$0"
		exit 0
		;;
	-*) refuse "unknown flag $1; see --help" ;;
	*)
		[ -z "$source" ] || refuse "one source, not two: $source, $1"
		source=$1
		shift
		;;
	esac
done
[ -n "$source" ] || refuse "name a source: a URL, a folder or a bundle; see --help"
case $program in
edgecore | cloudcore) called=skerry-$program ;;
kubectl-skerry) called=$program ;;
*) refuse "--program $program: edgecore, kubectl-skerry or cloudcore" ;;
esac
case $kubernetes in
'') ;;
[0-9]*.[0-9]*) [ "$program" = edgecore ] || refuse "--kubernetes is for edgecore alone" ;;
*) refuse "--kubernetes $kubernetes: like 1.36" ;;
esac
case $(uname -m) in
x86_64 | amd64) arch=amd64 ;;
aarch64 | arm64) arch=arm64 ;;
*) refuse "there is no release for $(uname -m)" ;;
esac
if [ -z "$root" ] && [ "$(id -u)" -ne 0 ]; then refuse "installing needs root"; fi

# installed prints what edgecore itself and the package managers say of the version that is there.
installed() {
	{
		"$root/usr/bin/edgecore" version || true
		if [ -z "$root" ]; then dpkg-query -W -f '${Version}\n' skerry-edgecore || rpm -q skerry-edgecore || true; fi
	} 2>/dev/null
}
# The cluster of a device that has +k8s1.36 may have no newer Kubernetes, and a kubelet must not be newer than that.
was='' kept=''
if [ "$program" = edgecore ]; then was=$(installed | sed -n 's/.*+k8s\([0-9]*[.][0-9]*\).*/\1/p' | head -n 1); fi
if [ -z "$kubernetes" ] && [ -n "$was" ]; then
	kubernetes=$was
	kept=", which the one here has${KUBERNETES:+; in a cluster of $KUBERNETES give --kubernetes $KUBERNETES}"
fi
# What stands in the names of packages: "+k8s" where they have another Kubernetes than this release's.
of='[^_+]*'
if [ "$kubernetes" = "$KUBERNETES" ]; then kubernetes=''; fi
if [ -n "$kubernetes" ]; then of="$of[+]k8s$kubernetes"; fi
# To package managers 1.2.3 is older than 1.2.3+k8s1.36.
lower=''
if [ "$was" != "$kubernetes" ]; then lower=yes; fi
tmp=$(mktemp -d) || refuse "no folder for temporary files can be made"
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM

# get NAME MAX-MB: brings a file of the release to $tmp. Names come from here or from the signed list, and are plain.
get() {
	case $1 in */* | '' | .* | -*) refuse "the release names a file $1" ;; esac
	case $source in
	http://* | https://*)
		if command -v curl >/dev/null; then
			curl -fsSL --max-filesize "$(($2 * 1048576))" -o "$tmp/$1" "${source%/}/$1" 2>"$tmp/error"
		elif command -v wget >/dev/null; then
			wget -q -O "$tmp/$1" "${source%/}/$1" 2>"$tmp/error"
		else
			refuse "curl or wget is needed for a URL"
		fi
		;;
	*)
		if [ -d "$source" ]; then
			cp -- "$source/$1" "$tmp/$1" 2>"$tmp/error"
		else
			tar -xOf "$source" -- "$1" >"$tmp/$1" 2>"$tmp/error"
		fi
		;;
	esac
}

sum() { sha256sum <"$1" | cut -d' ' -f1; }

# verify checks SHA256SUMS' minisign signature with minisign, or by openssl: an Ed25519 signature of its BLAKE2b-512.
verify() {
	[ -n "$KEY" ] || refuse "this release is not signed: give the sum of its SHA256SUMS by --sha256"
	get SHA256SUMS.minisig 1 || refuse "the release has no SHA256SUMS.minisig: $(head -n 1 "$tmp/error")"
	if command -v minisign >/dev/null; then
		minisign -V -q -P "$KEY" -m "$tmp/SHA256SUMS" -x "$tmp/SHA256SUMS.minisig" >/dev/null 2>&1 || refuse "the signature of SHA256SUMS is wrong"
		return
	fi
	command -v openssl >/dev/null || refuse "minisign or openssl is needed to verify the signature"
	printf '%s' "$KEY" | base64 -d >"$tmp/key" 2>/dev/null && [ "$(wc -c <"$tmp/key")" -eq 42 ] || refuse "the key is no minisign public key"
	sed -n 2p "$tmp/SHA256SUMS.minisig" | base64 -d >"$tmp/sig" 2>/dev/null && [ "$(wc -c <"$tmp/sig")" -eq 74 ] || refuse "SHA256SUMS.minisig is no minisign signature"
	[ "$(tail -c +3 "$tmp/key" | head -c 8 | od -An -tx1)" = "$(tail -c +3 "$tmp/sig" | head -c 8 | od -An -tx1)" ] || refuse "SHA256SUMS is signed by another key"
	# RFC 8410: an Ed25519 public key as a SubjectPublicKeyInfo.
	{
		printf '\060\052\060\005\006\003\053\145\160\003\041\000'
		tail -c 32 "$tmp/key"
	} >"$tmp/key.der"
	tail -c 64 "$tmp/sig" >"$tmp/sig.raw"
	case $(head -c 2 "$tmp/sig") in
	ED) openssl dgst -blake2b512 -binary "$tmp/SHA256SUMS" >"$tmp/signed" 2>/dev/null || refuse "openssl knows no BLAKE2b-512: install minisign" ;;
	Ed) cp "$tmp/SHA256SUMS" "$tmp/signed" ;;
	*) refuse "SHA256SUMS.minisig is no minisign signature" ;;
	esac
	openssl pkeyutl -verify -pubin -inkey "$tmp/key.der" -keyform DER -rawin -in "$tmp/signed" -sigfile "$tmp/sig.raw" >/dev/null 2>&1 ||
		refuse "the signature of SHA256SUMS is wrong"
}

# fetch NAME: a file of the release, its sum verified.
fetch() {
	want=$(awk -v name="$1" '$2 == name { print $1 }' "$tmp/SHA256SUMS")
	[ ${#want} -eq 64 ] || refuse "SHA256SUMS does not list $1"
	get "$1" 512 || refuse "$1 can't be read: $(head -n 1 "$tmp/error")"
	[ "$(sum "$tmp/$1")" = "$want" ] || refuse "$1 is damaged or not the release's: its sum differs from SHA256SUMS"
}

# listed PATTERN: the name in SHA256SUMS that fits, an awk expression.
listed() { awk -v pattern="$1" '$2 ~ pattern { print $2; exit }' "$tmp/SHA256SUMS"; }

bundle=''
case $source in
http://* | https://*) ;;
*)
	if [ -f "$source" ]; then
		bundle=yes
		tar -tf "$source" >"$tmp/list" 2>"$tmp/error" || refuse "$source is no bundle, or is truncated: $(head -n 1 "$tmp/error")"
	elif [ ! -d "$source" ]; then
		refuse "there is no $source"
	fi
	;;
esac
get SHA256SUMS 1 || refuse "$source has no SHA256SUMS: $(head -n 1 "$tmp/error")"
if [ -n "$given" ]; then
	if [ "$(sum "$tmp/SHA256SUMS")" != "$given" ] && { [ -z "$bundle" ] || [ "$(sum "$source")" != "$given" ]; }; then
		refuse "neither SHA256SUMS nor the source has the sum that --sha256 gives"
	fi
else
	verify
fi

tarball=$(listed "^${called}_${of}_linux_$arch[.]tar[.]gz\$")
[ -n "$tarball" ] || refuse "this release has no $program for $arch${kubernetes:+ with Kubernetes $kubernetes}$kept"
if [ -n "$bundle" ] && ! grep -qxF "$tarball" "$tmp/list"; then
	[ -z "$kubernetes" ] || refuse "this bundle has no $program with Kubernetes $kubernetes$kept"
	refuse "this bundle is not for $arch, which this machine is"
fi
image=
if [ -n "$bundle" ] && [ "$program" = edgecore ]; then
	image=$(listed '^pause_.*[.]oci[.]tar$')
	fetch "$image"
fi

# From here on the machine changes.
failed() {
	echo "install.sh: $*" >&2
	exit 1
}

# settle does after unpacking what a package's scripts do: the user that cloudcore runs as; and what runs is the new program.
settle() {
	case $program in
	edgecore) ;;
	cloudcore)
		if command -v systemd-sysusers >/dev/null; then
			systemd-sysusers /usr/lib/sysusers.d/skerry.conf || failed "the user skerry, which cloudcore runs as, could not be made"
		fi
		;;
	*) return 0 ;;
	esac
	[ -d /run/systemd/system ] || return 0
	systemctl daemon-reload && systemctl try-restart "$program.service" || failed "$program is installed, and could not be restarted: systemctl status $program"
}

if [ -n "$root" ]; then
	fetch "$tarball"
	mkdir -p "$root" && tar -xzf "$tmp/$tarball" -C "$root" || failed "$tarball can't be unpacked in $root"
elif command -v dpkg >/dev/null; then
	package=$(listed "^${called}_${of}_$arch[.]deb\$")
	fetch "$package"
	if [ -n "$bundle" ] || ! command -v apt-get >/dev/null; then
		dpkg -i "$tmp/$package" || failed "dpkg could not install it; what it asks for must be installed first"
	else
		apt-get install -y --no-install-recommends ${lower:+--allow-downgrades} "$tmp/$package" || failed "apt-get could not install it"
	fi
elif [ -z "$bundle" ] && command -v rpm >/dev/null; then
	package=$(listed "^${called}_${of}_$arch[.]rpm\$")
	fetch "$package"
	rpm -U ${lower:+--oldpackage} "$tmp/$package" || failed "rpm could not install it; what it asks for must be installed first"
else
	fetch "$tarball"
	tar -xzf "$tmp/$tarball" -C / || failed "$tarball can't be unpacked"
	settle
fi
echo "installed $program $VERSION${kubernetes:+ with Kubernetes $kubernetes}"

# Without Internet containerd can't pull the image of pods' sandboxes: it gets the release's under the name that it asks for.
if [ -n "$image" ] && [ -z "$root" ]; then
	if command -v ctr >/dev/null && ctr version >/dev/null 2>&1; then
		name=$(ctr -n k8s.io images import "$tmp/$image" | sed -n 's/^unpacking \([^ ]*\) .*/\1/p' | head -n 1)
		wanted=$(containerd config dump 2>/dev/null | sed -n "s/^ *\(sandbox_image\|sandbox\) = [\"']\([^\"']*\)[\"'].*/\2/p" | head -n 1)
		if [ -n "$name" ] && [ -n "$wanted" ]; then ctr -n k8s.io images tag --force "$name" "$wanted" >/dev/null || failed "the sandbox image could not be named $wanted"; fi
		sync # containerd does not write unpacked layers to the disk
	else
		echo "containerd does not run: start it and run this again, so that it gets the image of pods' sandboxes"
	fi
fi
data=$(sed -n 's/^dataDir: *\([^ #]*\).*/\1/p' "$root/etc/skerry/edgecore.yaml" 2>/dev/null | head -n 1)
if [ "$program" = edgecore ] && [ ! -e "$root${data:-/var/lib/skerry}/identity/node.pem" ]; then
	echo "next: edgecore check, then edgecore join --token-file FILE HOST"
fi
