package release_test

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// offline runs install.sh with a bundle on a machine of the test's own: this one's files, with its
// own /usr, /etc, /run and /var/lib on top, in an isolated network, with a real containerd. It
// prints containerd's images, and dpkg's list.
const offline = `set -eu
work=$1 bundle=$2 script=$3 sum=$4
mount --make-rprivate /
mount -t tmpfs tmpfs "$work"
for dir in usr etc var/lib/dpkg; do
	mkdir -p "$work/$dir.up" "$work/$dir.work"
	mount -t overlay overlay -o "lowerdir=/$dir,upperdir=$work/$dir.up,workdir=$work/$dir.work" "/$dir"
done
mount -t tmpfs tmpfs /run
mkdir -p "$work/containerd"
ip link set lo up
cat >"$work/containerd.toml" <<END
version = 2
root = "$work/containerd"
state = "/run/containerd"
[plugins."io.containerd.internal.v1.opt"]
  path = "$work/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.invalid/pause:3"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
END
mkdir -p /etc/containerd
cp "$work/containerd.toml" /etc/containerd/config.toml
containerd >"$work/containerd.log" 2>&1 &
daemon=$!
trap 'kill $daemon; wait $daemon || true' EXIT
until ctr version >/dev/null 2>&1; do
	kill -0 $daemon || { cat "$work/containerd.log"; exit 9; }
	sleep 0.1
done
sh "$script" --sha256 "$sum" "$bundle"
echo "images: $(ctr -n k8s.io images ls -q | tr '\n' ' ')"
echo "state: $(dpkg-query -f '${db:Status-Status}' -W skerry-edgecore)"
echo "program: $(edgecore version)"
ls /usr/share/doc/skerry-edgecore/examples/10-bridge.conflist /usr/share/skerry/pause.oci.tar
`

// TestBundleOffline: without any network install.sh installs edgecore from the bundle by dpkg, and
// gives a real containerd the image of pods' sandboxes under the name that it would else pull. No
// pod is run: that is the rest of scenario 6.
func TestBundleOffline(t *testing.T) {
	if !slices.Contains(programs(), "edgecore") {
		t.Fatal("PROGRAMS leaves edgecore out, which is what a bundle installs")
	}
	dir := shared(t)
	raw, err := os.ReadFile(filepath.Join(dir, "airgap-"+runtime.GOARCH+".tar.sha256"))
	if err != nil {
		t.Fatal(err)
	}
	out := command(t, dir, nil, "unshare", "--mount", "--net", "sh", "-c", offline, "sh", t.TempDir(),
		filepath.Join(dir, "airgap-"+runtime.GOARCH+".tar"), filepath.Join(dir, "install.sh"), string(raw[:64]))
	for _, want := range []string{"registry.invalid/pause:3 ", registry + "/pause:" + version + " ", "state: installed", "program: edgecore " + version, "10-bridge.conflist", "/usr/share/skerry/pause.oci.tar"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}
