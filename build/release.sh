#!/usr/bin/env bash
# release.sh VERSION DIRECTORY: makes a release: programs, packages, images, manifests, chart, bundles, sums.
# The same commit gives the same bytes, in any folder: -trimpath, times from the commit, pinned tools.
#   ARCHES="amd64 arm64"            what it is made for
#   PROGRAMS="cloudcore edgecore kubectl-skerry"   what it consists of
#   OLDER=1.36                      edgecore with that Kubernetes too: its version ends in +k8s1.36, and it is in no bundle
#   REGISTRY=registry.example.com/skerry  that will have the images. Without it they are named skerry.local/..., which is
#                                   found where the bundle was imported, and `cloudcore install` asks for --image
#   SKERRY_SIGN_KEY=FILE            a minisign key that signs SHA256SUMS; install.sh then asks for this signature
#   UPGRADE_ROOT=FILE               root.json of the repository of versions (kubectl skerry artefact init); devices that
#                                   install edgecore's package trust it, without a copy in /etc/skerry/keys.d
# TEST_LDFLAGS (the version of Kubernetes) and OLDER_LDFLAGS (of the one before) come from make.
set -euo pipefail
version=${1:?version} out=$(realpath -m "${2:?directory}")
cd "$(dirname "$0")/.."
read -ra arches <<<"${ARCHES:-amd64 arm64}"
read -ra programs <<<"${PROGRAMS:-cloudcore edgecore kubectl-skerry}"
older=${OLDER:-}
if [ -n "$older" ] && [ ! -e "build/kubernetes/$older/go.mod" ]; then
	echo "release: OLDER=$older: there is no build/kubernetes/$older" >&2
	exit 2
fi
registry=${REGISTRY:-skerry.local}
tags=grpcnotrace compiler=all=-dwarf=false # as the Makefile has them
[[ $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+ ]] || { echo "release: $version is no version: v1.2.3" >&2; exit 2; }
if [ -n "${SKERRY_SIGN_KEY:-}" ] && [ ! -r "$SKERRY_SIGN_KEY" ]; then
	echo "release: SKERRY_SIGN_KEY names $SKERRY_SIGN_KEY, which can't be read" >&2
	exit 2
fi
root=
if [ -n "${UPGRADE_ROOT:-}" ]; then
	if ! grep -Eq '"_type": *"root"' "$UPGRADE_ROOT"; then
		echo "release: UPGRADE_ROOT names $UPGRADE_ROOT, which is no readable root.json of a repository" >&2
		exit 2
	fi
	root=$(realpath "$UPGRADE_ROOT")
fi

# Nothing of the caller's environment may be seen in what is made.
export LC_ALL=C TZ=UTC CGO_ENABLED=0 GOTOOLCHAIN=local GOWORK=off GOFLAGS= GOAMD64=v1 GOARM64=v8.0
umask 022
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
time=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
mkdir -p "$(dirname "$out")"
# Whole or not at all: what is made is moved to its place at the end.
work=$(mktemp -d "$out.XXXXXX")
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
made=$work/out tmp=$work/tmp
mkdir "$made" "$tmp"

[ -z "$root" ] || install -m 644 "$root" "$tmp/root.json"

tool() { "$tmp/release" --epoch "$SOURCE_DATE_EPOCH" "$@"; }
pinned() { go tool -modfile=build/tools/release/go.mod "$@"; }
# Debian's versions begin with a digit, and ~ sorts before everything: v1.2.0-rc1 < v1.2.0.
package=${version#v}
package=${package/-/\~}
package=${package//-/.}

compile() { # compile PACKAGE ARCH FILE LDFLAGS [TAG [FLAG...]]
	local suffix=${5:+"+k8s${5#kubernetes}"} # install.sh keeps to it when it upgrades a device
	GOOS=linux GOARCH=$2 build/compile.sh "$(basename "$3")" go build -v -trimpath -gcflags "$compiler" -tags "$tags,${5:-}" "${@:6}" -buildvcs=false -ldflags \
		"-s -w -X github.com/skerry-io/skerry/common/version.version=$version$suffix -X github.com/skerry-io/skerry/common/version.registry=${REGISTRY:-} $4" \
		-o "$3" "$1"
}

# A plugin's package is called as kubectl finds it.
named() { [ "$1" = kubectl-skerry ] && echo "$1" || echo "skerry-$1"; }

packages() { # packages PROGRAM ARCH [+SUFFIX of the version]
	local name=$1 arch=$2 config=$tmp/$1-$2.yaml version=$version${3:-} package=$package${3:-} format called
	called=$(named "$name")
	printf '%s\n' "$version" >"$tmp/version" # skerry-launch compares it with what runs
	go run -C build/tools/release ./notices "$made/${name}_${version}_linux_$arch" "$tmp/pause_$arch" >"$tmp/notices_$name"
	sed "s|@ARCH@|$arch|; s|@VERSION@|$package|; s|@PROGRAM@|$made/${name}_${version}_linux_$arch|; s|@TIME@|$time|; s|@PAUSE@|$tmp/pause_$arch.oci.tar|; s|@LAUNCH@|$tmp/skerry-launch_$arch|; s|@RELEASED@|$tmp/version|; s|@NOTICES@|$tmp/notices_$name|" "build/package/$name.yaml" >"$config"
	if [ -n "$root" ]; then sed -i "s|@ROOT@|$tmp/root.json|" "$config"; else sed -i '\|/usr/share/skerry/keys|d' "$config"; fi
	for format in deb rpm; do
		pinned nfpm package --config "$config" --packager "$format" --target "$made/${called}_${package}_$arch.$format" >/dev/null
	done
	local files=("usr/bin/$name=$made/${name}_${version}_linux_$arch" "usr/share/doc/$called/copyright=LICENSE"
		"usr/share/doc/$called/NOTICE=NOTICE" "usr/share/doc/$called/THIRD_PARTY_NOTICES=$tmp/notices_$name")
	case $name in edgecore | cloudcore) files+=("usr/lib/systemd/system/$name.service=build/systemd/$name.service") ;; esac
	case $name in
	edgecore)
		files+=("usr/lib/systemd/system/edgecore-names.socket=build/systemd/edgecore-names.socket")
		files+=("usr/share/doc/skerry-edgecore/examples/10-bridge.conflist=build/package/examples/10-bridge.conflist")
		files+=("usr/lib/skerry/skerry-launch=$tmp/skerry-launch_$arch" "usr/share/skerry/version=$tmp/version")
		files+=("usr/share/skerry/pause.oci.tar=$tmp/pause_$arch.oci.tar") # what devices restore the image of pods' sandboxes from
		[ -z "$root" ] || files+=("usr/share/skerry/keys/root.json=$tmp/root.json")
		;;
	cloudcore) files+=("usr/lib/sysusers.d/skerry.conf=build/systemd/skerry.sysusers") ;;
	kubectl-skerry) files+=("usr/bin/kubectl_complete-skerry=build/package/kubectl_complete-skerry") ;;
	esac
	tool tar --out "$made/${called}_${version}_linux_$arch.tar.gz" "${files[@]}"
}

# image PROGRAM PATH USER FILE-PREFIX [FLAG...]: an image over all architectures; prints its digest.
image() {
	local arch all=()
	for arch in "${arches[@]}"; do all+=("$arch=$4$arch"); done
	tool image --out "$made/$1_$version.oci.tar" --name "$registry/$1:$version" --path "$2" --user "$3" --version "$version" \
		--file "/usr/share/doc/skerry/LICENSE=LICENSE,/usr/share/doc/skerry/NOTICE=NOTICE,/usr/share/doc/skerry/THIRD_PARTY_NOTICES=$tmp/notices_$1" "${@:5}" "${all[@]}"
}

go build -o "$tmp/release" ./build/release
for arch in "${arches[@]}"; do
	compile ./tests/images/pause "$arch" "$tmp/pause_$arch" ""
	compile ./edge/cmd/skerry-launch "$arch" "$tmp/skerry-launch_$arch" ""
	tool image --out "$tmp/pause_$arch.oci.tar" --name "$registry/pause:$version" --path /pause --user 65535:65535 --version "$version" "$arch=$tmp/pause_$arch" >/dev/null
	for name in "${programs[@]}"; do
		kind=cloud
		[ "$name" != edgecore ] || kind=edge
		compile "./$kind/cmd/$name" "$arch" "$made/${name}_${version}_linux_$arch" "${TEST_LDFLAGS:-}"
		packages "$name" "$arch"
		if [ "$name" = edgecore ] && [ -n "$older" ]; then
			compile ./edge/cmd/edgecore "$arch" "$made/edgecore_$version+k8s${older}_linux_$arch" "${OLDER_LDFLAGS:-}" "kubernetes$older" "-modfile=build/kubernetes/$older/go.mod"
			packages edgecore "$arch" "+k8s$older"
		fi
	done
done
for name in "${programs[@]}"; do
	prefix=$made/${name}_${version}_linux_
	go run -C build/tools/release ./sbom "$name" "$version" "$time" "$prefix${arches[0]}" >"$made/${name}_$version.cdx.json"
	case $name in
	edgecore) image edgecore /edgecore "" "$prefix" --program "/skerry-launch=$tmp/skerry-launch_" >/dev/null ;; # files to be copied: a kubelet runs on its host
	cloudcore)
		cloudcore=$registry/cloudcore:$version@$(image cloudcore /cloudcore 65532:65532 "$prefix")
		{
			echo "# Skerry $version. Put the name or address under which your devices reach cloudcore in place of cloud.example.com."
			tool install --image "$cloudcore" --advertise cloud.example.com
		} >"$made/install.yaml"
		tool chart --out "$made/skerry-${version#v}.tgz" --version "${version#v}" --image "$cloudcore"
		;;
	esac
done
go run -C build/tools/release ./notices "$tmp/pause_${arches[0]}" >"$tmp/notices_pause"
image pause /pause 65535:65535 "$tmp/pause_" >/dev/null

# krew's manifest names a package for each platform, with its sum.
if [[ " ${programs[*]} " == *" kubectl-skerry "* ]]; then
	{
		sed "s|@VERSION@|$version|" build/package/krew.yaml
		for arch in "${arches[@]}"; do
			file=kubectl-skerry_${version}_linux_$arch.tar.gz
			cat <<-EOF
				  - selector: {matchLabels: {os: linux, arch: $arch}}
				    uri: ${RELEASE_URL:-https://github.com/skerry-io/skerry/releases/download/$version}/$file
				    sha256: $(sha256sum "$made/$file" | cut -d' ' -f1)
				    files: [{from: usr/bin/kubectl-skerry, to: kubectl-skerry}, {from: usr/bin/kubectl_complete-skerry, to: kubectl_complete-skerry}]
				    bin: kubectl-skerry
			EOF
		done
	} >"$made/krew-skerry.yaml"
fi

key=
if [ -n "${SKERRY_SIGN_KEY:-}" ]; then
	pinned minisign -R -s "$SKERRY_SIGN_KEY" -p "$tmp/key.pub" >/dev/null
	key=$(tail -n 1 "$tmp/key.pub")
fi
own=$(awk '$1 == "k8s.io/kubernetes" { print substr($2, 2) }' go.mod)
sed "s|^KEY=.*|KEY=$key|; s|^VERSION=.*|VERSION=$version|; s|^KUBERNETES=.*|KUBERNETES=${own%.*}|" build/install.sh >"$made/install.sh"
chmod 755 "$made/install.sh"

# The sums are of all files but the bundles, which carry them: one signature holds for both.
tool sums "$made"/* >"$tmp/SHA256SUMS"
mv "$tmp/SHA256SUMS" "$made/SHA256SUMS"
signed=()
if [ -n "$key" ]; then
	pinned minisign -S -s "$SKERRY_SIGN_KEY" -m "$made/SHA256SUMS" -x "$made/SHA256SUMS.minisig" -c "signature of Skerry $version" -t "Skerry $version" >/dev/null
	signed=("SHA256SUMS.minisig=$made/SHA256SUMS.minisig")
fi
# A bundle has no rpm: install.sh takes the tar in its place, and a bundle stays below 150 MB.
for arch in "${arches[@]}"; do
	files=()
	for file in "$made"/*_linux_"$arch".tar.gz "$made"/*_"$arch".deb "$made"/skerry-*.tgz "$made"/install.yaml "$made"/install.sh "$made"/{cloudcore,pause}_*.oci.tar; do
		[ ! -e "$file" ] || [[ $file == *+k8s* ]] || files+=("$(basename "$file")=$file")
	done
	tool tar --out "$made/airgap-$arch.tar" "SHA256SUMS=$made/SHA256SUMS" "${signed[@]}" "${files[@]}"
	(cd "$made" && sha256sum "airgap-$arch.tar" >"airgap-$arch.tar.sha256")
done
rm -rf "$out"
mv "$made" "$out"
echo "release: $out"
if [ -z "$key" ]; then
	echo "release: it is not signed (SKERRY_SIGN_KEY): devices take it by 'sh install.sh --sha256 $(sha256sum "$out/SHA256SUMS" | cut -d' ' -f1) SOURCE', or a bundle by its own sum"
fi
