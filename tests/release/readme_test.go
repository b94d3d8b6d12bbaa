package release_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/suite"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

const (
	// registry would have the images; nothing of this name can be reached.
	registry = "registry.example.com/skerry"
	// balancer is the address in the place of cloud.example.com: the trial's hosts have no DNS.
	balancer = "198.51.100.100"
)

// blocks are the lines of shell of the README's section, without their comments: those for the cloud, and those for the device.
func blocks(t *testing.T, readme string) (cloud, device []string) {
	t.Helper()
	_, section, ok := strings.Cut(readme, "\n## On real machines\n")
	section, _, end := strings.Cut(section, "\n## ")
	parts := strings.Split(section, "```\n")
	if !ok || !end || len(parts) != 5 {
		t.Fatalf("the README's section has %d parts, not a block for the cloud and one for the device", len(parts))
	}
	lines := func(block string) (all []string) {
		for line := range strings.Lines(block) {
			line, _, _ = strings.Cut(line, "  #")
			all = append(all, strings.TrimSpace(line))
		}
		return all
	}
	return lines(parts[1]), lines(parts[3])
}

// device is what the machine of the test has besides the README: its own /usr and dpkg on top of this machine's, and a systemctl that starts what a unit
// says, since no systemd runs here. The mounts are shared with containerd's, as those of a kubelet must be, and go with the host.
const device = `set -eu
mkdir -p /run/over
mount -t tmpfs tmpfs /run/over
mkdir /run/over/up /run/over/work
mount -t overlay overlay -o lowerdir=/usr,upperdir=/run/over/up,workdir=/run/over/work /usr
cat >/usr/local/bin/systemctl <<'END'
#!/bin/sh
case "$*" in
"enable --now edgecore") ;;
*) exit 0 ;; # what the package's scripts ask
esac
setsid $(sed -n 's/^ExecStart=//p' /usr/lib/systemd/system/edgecore.service) >/var/log/edgecore.log 2>&1 </dev/null &
END
chmod 755 /usr/local/bin/systemctl
mkdir -p /run/over/root/carried
mount --bind /run/over/root /root
hostname edge-17
`

// TestReadmeOnRealMachines runs the README's blocks "On real machines" as they stand, from a release's files: the cloud is a real cluster of two nodes that has
// nothing of Skerry, the device a host with containerd that has not joined, and there is no registry and no Internet. In place of cloud.example.com stands the load balancer's
// address, in place of the release's URL the bundle. The seconds of each line are logged.
func TestReadmeOnRealMachines(t *testing.T) {
	if !slices.Equal(programs(), []string{"cloudcore", "edgecore"}) {
		t.Fatal("PROGRAMS leaves out what the README installs")
	}
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	secret, _, err := key(t.Context(), root, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	release := filepath.Join(work, "readme")
	command(t, root, []string{"SKERRY_SIGN_KEY=" + secret, "RELEASE_FLAGS=", "ARCHES=" + runtime.GOARCH, "REGISTRY=" + registry}, "build/release.sh", newer, release)

	o := trial.Options{Edges: 1, Plain: 2, Link: "auto", InCluster: true, Bare: true}
	if _, err := binary.Build(t.Context(), root, append(o.Programs(), "trial")...); err != nil {
		t.Fatal(err)
	}
	s := suite.Make(t, "readme", o)
	for _, n := range []string{"plain1", "plain2"} {
		on(t, s, n, "ctr --namespace k8s.io images import "+one(t, release, "cloudcore_*.oci.tar"))
	}

	// The administrator's machine: the release's cloudcore, and a kubectl.
	bin, desk := t.TempDir(), t.TempDir()
	if err := os.Symlink(one(t, release, "cloudcore_*_linux_"+runtime.GOARCH), filepath.Join(bin, "cloudcore")); err != nil {
		t.Fatal(err)
	}
	kubectl := "#!/bin/sh\nexec env TRIAL_DIR=" + s.Dir + " " + root + "/bin/trial kubectl \"$@\"\n"
	if err := os.WriteFile(filepath.Join(bin, "kubectl"), []byte(kubectl), 0o755); err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	cloud, edge := blocks(t, string(readme))
	began := time.Now()
	timed := func(line string, run func(string)) {
		line = strings.ReplaceAll(line, "cloud.example.com", balancer)
		start := time.Now()
		run(line)
		t.Logf("%6.1f s  %s", time.Since(start).Seconds(), line)
	}
	env := []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "KUBECONFIG=" + s.Trial.Kubeconfig()}
	for _, line := range cloud {
		timed(line, func(line string) { t.Log(command(t, desk, env, "bash", "-euo", "pipefail", "-c", line)) })
	}
	timed("cloudcore's pods are Ready", func(string) {
		s.WaitPods("skerry-system", "app.kubernetes.io/name=cloudcore", "", 2)
		s.WaitPods("skerry-system", "app.kubernetes.io/name=cloudcore-approver", "", 2)
	})

	prepareDevice(t, s, release, filepath.Join(desk, "edge-17.token"))
	for _, line := range edge {
		line = strings.ReplaceAll(line, "https://releases.example.com/v1.2.3", "airgap-"+runtime.GOARCH+".tar")
		timed(line, func(line string) { t.Log(on(t, s, "edge1", "cd /root/carried && "+line)) })
	}
	timed("the device is Ready", func(string) { s.WaitReady("edge-17", true) })
	t.Logf("%6.1f s  from the first command to Ready", time.Since(began).Seconds())

	namespace := s.Namespace()
	s.Apply(namespace, "apiVersion: v1\nkind: Pod\nmetadata: {name: hello, labels: {app: hello}}\nspec:\n  nodeName: edge-17\n  containers: [{name: app, image: skerry.local/sample:1}]\n")
	s.WaitPods(namespace, "app=hello", "edge-17", 1)
}

// prepareDevice carries to the device what the README's user has there.
func prepareDevice(t *testing.T, s *suite.System, release, token string) {
	t.Helper()
	h, err := s.Trial.Host("edge1")
	if err != nil {
		t.Fatal(err)
	}
	// Beneath the host's own /var/lib, which hides the machine's.
	command(t, "/", nil, "cp", "-a", "/var/lib/dpkg", filepath.Join(h.Root(), "var/lib/"))
	on(t, s, "edge1", device)
	for _, file := range []string{one(t, release, "install.sh"), one(t, release, "airgap-*.tar"), token} {
		command(t, "/", nil, "cp", file, filepath.Join(h.Root(), "root/carried/"))
	}
}

// on runs a line of shell on a host.
func on(t *testing.T, s *suite.System, host, line string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var out, errs strings.Builder
	code, err := s.Trial.Exec(ctx, host, trial.Streams{Out: &out, Err: &errs}, nil, "bash", "-euo", "pipefail", "-c", line)
	if err == nil && code != 0 {
		err = fmt.Errorf("code %d", code)
	}
	if err != nil {
		t.Fatalf("%s: %s: %v\n%s%s", host, line, err, out.String(), errs.String())
	}
	return out.String()
}
