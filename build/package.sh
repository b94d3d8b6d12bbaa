#!/usr/bin/env bash
# package.sh NAME VERSION: makes build/out/skerry-NAME_VERSION_ARCH.deb from bin/NAME, build/systemd and build/deb/NAME. The same input gives the same package.
set -euo pipefail
name=${1:?edgecore or cloudcore} version=${2:?version}
cd "$(dirname "$0")/.."
[ -x "bin/$name" ] || { echo "package: bin/$name is missing: make build-$name" >&2; exit 2; }
command -v dpkg-deb >/dev/null || { echo "package: dpkg-deb is missing: packages are made on Debian" >&2; exit 2; }

# Debian's versions begin with a digit, and ~ sorts before everything: v1.2.0-rc1 < v1.2.0. A bare commit (no tag yet) is below every release.
deb=${version#v}
deb=${deb/-/\~}
deb=${deb//-/.}
[[ $deb =~ ^[0-9]+\. ]] || deb=0~$deb
arch=$(dpkg --print-architecture)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"

install -Dm755 "bin/$name" "$root/usr/bin/$name"
install -Dm644 "build/systemd/$name.service" "$root/usr/lib/systemd/system/$name.service"
install -Dm644 LICENSE "$root/usr/share/doc/skerry-$name/copyright"
install -d "$root/etc/skerry"
if [ "$name" = cloudcore ]; then
	install -Dm644 build/systemd/skerry.sysusers "$root/usr/lib/sysusers.d/skerry.conf"
fi
size=$(du -ks "$root" | cut -f1)
install -d "$root/DEBIAN"
sed -e "s/@VERSION@/$deb/; s/@ARCH@/$arch/; s/@SIZE@/$size/" "build/deb/$name/control" >"$root/DEBIAN/control"
for script in postinst prerm postrm; do
	install -m755 "build/deb/$name/$script" "$root/DEBIAN/$script"
done

mkdir -p build/out
# The time of the last commit, so that the package depends on what is in it and on nothing else.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || echo 0)
export SOURCE_DATE_EPOCH
find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
out=build/out/skerry-${name}_${deb}_${arch}.deb
dpkg-deb --root-owner-group -Zxz -z6 --build "$root" "$out" >/dev/null
echo "$out"
