package release_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/suite"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// balancer is the address in the place of cloud.example.com: the trial's hosts have no DNS.
const balancer = "198.51.100.100"

// blocks are the lines of shell of the README's section, without their comments: those for the
// cloud, and those for the device.
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

// device makes the machine of the test with the README's prerequisites: its own /usr and dpkg on
// top of this machine's, and a systemctl that acts on the unit as the package's scripts and the
// README ask, since no systemd runs here. The mounts are shared with containerd's, as those of a
// kubelet must be, and go with the host.
const device = `set -eu
mkdir -p /run/over /run/systemd/system
mount -t tmpfs tmpfs /run/over
mkdir /run/over/up /run/over/work
mount -t overlay overlay -o lowerdir=/usr,upperdir=/run/over/up,workdir=/run/over/work /usr
cat >/usr/local/bin/systemctl <<'END'
#!/bin/sh
echo "systemctl $*" >>/var/log/systemctl.log
pid=/run/edgecore.pid
unit=/usr/lib/systemd/system/edgecore.service
running() { [ -e $pid ] && kill -0 "$(cat $pid)" 2>/dev/null; }
stop() {
	running || return 0
	kill "$(cat $pid)"
	while running; do sleep 0.1; done
	[ "$1" = restart ] || grep -qx RuntimeDirectoryPreserve=yes $unit || rm -rf /run/skerry # RuntimeDirectory
}
start() {
	[ -e /etc/skerry/edgecore.yaml ] || return 0 # ConditionPathExists
	rm -f /run/notify
	perl -MSocket -e 'socket(S, AF_UNIX, SOCK_DGRAM, 0); bind(S, pack_sockaddr_un("/run/notify")) or die $!; recv(S, $m, 64, 0); exit($m ne "READY=1")' &
	notified=$!
	until [ -S /run/notify ]; do sleep 0.1; done
	NOTIFY_SOCKET=/run/notify setsid $(sed -n 's/^ExecStart=//p' $unit) >>/var/log/edgecore.log 2>&1 </dev/null &
	echo $! >$pid
	while running && kill -0 $notified 2>/dev/null; do sleep 0.1; done # Type=notify
	kill $notified 2>/dev/null || true
}
case "$*" in
daemon-reload | "enable --quiet edgecore.service") ;;
"enable --now edgecore") running || start ;;
"restart edgecore.service") stop restart; start ;;
"disable --quiet --now edgecore-names.socket edgecore.service" | "stop edgecore-names.socket edgecore") stop stop ;;
*) echo "systemctl $*: not known here" >&2; exit 1 ;;
esac
END
chmod 755 /usr/local/bin/systemctl
mkdir -p /run/over/root/carried
mount --bind /run/over/root /root
hostname edge-17
`

// A site is the cloud and the device that the README's blocks have made.
type site struct {
	*suite.System
	desk, bin string // the administrator's folder, and programs
	env       []string
}

// onRealMachines runs the README's blocks "On real machines" as they are, from a release's files:
// the cloud is a real cluster of two nodes with kube-proxy without any part of Skerry, the device a
// host with containerd and no image, which has not joined; and there is no registry and no
// Internet. In place of cloud.example.com stands the load balancer's address, in place of the
// release's URL the bundle. The seconds of each line are logged.
func onRealMachines(t *testing.T) *site {
	t.Helper()
	if !slices.Equal(programs(), []string{"cloudcore", "edgecore", "kubectl-skerry"}) {
		t.Fatal("PROGRAMS leaves out what the README installs")
	}
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	release := shared(t)
	o := trial.Options{Edges: 1, Plain: 2, Link: "auto", InCluster: true, Bare: true}
	if _, err := binary.Build(t.Context(), root, append(o.Programs(), "trial")...); err != nil {
		t.Fatal(err)
	}
	s := &site{System: suite.Make(t, "readme", o), desk: t.TempDir(), bin: t.TempDir()}
	t.Cleanup(func() {
		if t.Failed() {
			s.logs()
		}
	})
	for _, n := range []string{"plain1", "plain2"} {
		s.on(n, "ctr --namespace k8s.io images import "+one(t, release, "cloudcore_*.oci.tar"))
	}
	// The trial's hosts have no way to any other network.
	if routes := s.on("router", "ip -4 route show default; ip -6 route show default"); routes != "" {
		t.Fatalf("the router knows a way out: %s", routes)
	}
	if images := s.on("edge1", "ctr --namespace k8s.io images list -q"); images != "" {
		t.Fatalf("the device has images before anything is installed:\n%s", images)
	}

	// The administrator's machine: the release's programs, and a kubectl.
	for _, program := range []string{"cloudcore", "kubectl-skerry"} {
		s.Check(os.Symlink(one(t, release, program+"_*_linux_"+runtime.GOARCH), filepath.Join(s.bin, program)))
	}
	kubectl := "#!/bin/sh\ncd " + root + " && exec env TRIAL_DIR=" + s.Dir + " " + root + "/bin/trial kubectl \"$@\"\n"
	s.Check(os.WriteFile(filepath.Join(s.bin, "kubectl"), []byte(kubectl), 0o755))
	s.env = []string{"PATH=" + s.bin + ":" + os.Getenv("PATH"), "KUBECONFIG=" + s.Trial.Kubeconfig()}

	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	s.Check(err)
	cloud, edge := blocks(t, string(readme))
	began := time.Now()
	timed := func(line string, run func(string)) {
		line = strings.ReplaceAll(line, "cloud.example.com", balancer)
		start := time.Now()
		run(line)
		t.Logf("%6.1f s  %s", time.Since(start).Seconds(), line)
	}
	for _, line := range cloud {
		timed(line, func(line string) { t.Log(s.atDesk(line)) })
	}
	timed("cloudcore's pods are Ready", func(string) {
		s.WaitPods("skerry-system", "app.kubernetes.io/name=cloudcore", "", 2)
		s.WaitPods("skerry-system", "app.kubernetes.io/name=cloudcore-approver", "", 2)
	})
	s.prepareDevice(release)
	for _, line := range edge {
		line = strings.ReplaceAll(line, "https://releases.example.com/v1.2.3", "airgap-"+runtime.GOARCH+".tar")
		timed(line, func(line string) {
			t.Log(s.on("edge1", "cd /root/carried && "+line))
		})
	}
	timed("the device is Ready", func(string) { s.WaitReady("edge-17", true) })
	t.Logf("%6.1f s  from the first command to Ready", time.Since(began).Seconds())
	return s
}

// atDesk runs a line of shell on the administrator's machine.
func (s *site) atDesk(line string) string {
	s.T.Helper()
	return command(s.T, s.desk, s.env, "bash", "-euo", "pipefail", "-c", line)
}

// on runs a line of shell on a host.
func (s *site) on(host, line string) string {
	s.T.Helper()
	ctx, cancel := context.WithTimeout(s.T.Context(), 5*time.Minute)
	defer cancel()
	return s.Must(s.tryOn(ctx, host, line))
}

func (s *site) tryOn(ctx context.Context, host, line string) (string, error) {
	var out, errs strings.Builder
	code, err := s.Trial.Exec(ctx, host, trial.Streams{Out: &out, Err: &errs}, nil, "bash", "-euo", "pipefail", "-c", line)
	if err == nil && code != 0 {
		err = fmt.Errorf("code %d", code)
	}
	if err != nil {
		err = fmt.Errorf("%s: %s: %w\n%s%s", host, line, err, out.String(), errs.String())
	}
	return out.String(), err
}

// log waits until the pod's log is read by the release's kubectl-skerry: kube-apiserver takes a
// moment to serve an API that was just installed.
func (s *site) log() {
	s.T.Helper()
	s.WaitFor("the pod's log", func(ctx context.Context) error {
		log, err := try(ctx, s.desk, s.env, filepath.Join(s.bin, "kubectl-skerry"), "logs", "hello")
		if err == nil && !strings.Contains(log, "GET / from") {
			err = fmt.Errorf("it is %q", log)
		}
		return err
	})
}

// logs are the ends of the logs of the device's programs.
func (s *site) logs() {
	h, err := s.Trial.Host("edge1")
	if err != nil {
		s.T.Log(err)
		return
	}
	for _, name := range []string{"edgecore.log", "systemctl.log"} {
		raw, err := os.ReadFile(filepath.Join(h.Root(), "var/log", name))
		s.T.Logf("%s (%v):\n%s", name, err, raw[max(0, len(raw)-6000):])
	}
}

// carry copies files to the device.
func (s *site) carry(files ...string) {
	s.T.Helper()
	h, err := s.Trial.Host("edge1")
	s.Check(err)
	for _, file := range files {
		command(s.T, "/", nil, "cp", file, filepath.Join(h.Root(), "root/carried/"))
	}
}

// prepareDevice carries the files of the README's user to the device.
func (s *site) prepareDevice(release string) {
	s.T.Helper()
	h, err := s.Trial.Host("edge1")
	s.Check(err)
	// Beneath the host's own /var/lib, which hides the machine's.
	command(s.T, "/", nil, "cp", "-a", "/var/lib/dpkg", filepath.Join(h.Root(), "var/lib/"))
	s.on("edge1", device)
	s.carry(one(s.T, release, "install.sh"), one(s.T, release, "airgap-*.tar"), filepath.Join(s.desk, "edge-17.token"))
}

// hello runs a pod of an image that was carried to the device, and returns it.
func (s *site) hello() corev1.Pod {
	s.T.Helper()
	s.carry(filepath.Join(s.Dir, "images", "sample.tar"))
	s.on("edge1", "ctr --namespace k8s.io images import /root/carried/sample.tar")
	s.Apply("default", `apiVersion: v1
kind: Pod
metadata: {name: hello, labels: {app: hello}}
spec:
  nodeName: edge-17
  containers:
  - name: app
    image: skerry.local/sample:1
    env:
    - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
`)
	return s.WaitPods("default", "app=hello", "edge-17", 1)[0]
}

// TestShip_06_BundleWithoutInternet: README's "On real machines", with the bundle, and neither a
// registry nor the Internet: the device is Ready, and a pod runs on it, in a network that needed no
// configuration, in a sandbox whose image is the bundle's. Its log is read by the release's
// kubectl-skerry.
func TestShip_06_BundleWithoutInternet(t *testing.T) {
	s := onRealMachines(t)
	pod := s.hello()
	if page := s.on("edge1", "curl -sS --max-time 10 http://"+pod.Status.PodIP+":8080/"); !strings.Contains(page, "pod hello on node edge-17") {
		t.Errorf("the pod answers %q", page)
	}
	s.log()
	images := s.on("edge1", "ctr --namespace k8s.io images list -q")
	if !strings.Contains(images, registry+"/pause:"+version+"\n") {
		t.Errorf("the device has these images:\n%s", images)
	}
	if status := s.on("edge1", "edgecore status"); !strings.Contains(status, balancer+":443") {
		t.Errorf("edgecore says:\n%s", status)
	}
}

// TestShip_03_UpgradeKeepsPodsAndPurgeLeavesNothing: on a device that has joined an upgrade leaves
// its pods alone, and a purge removes exactly the files that edgecore made.
func TestShip_03_UpgradeKeepsPodsAndPurgeLeavesNothing(t *testing.T) {
	next := upgrade(t)
	s := onRealMachines(t)
	pod := s.hello()
	sandboxes := func() string {
		return s.on("edge1", "ctr --namespace k8s.io tasks list | awk '$3 == \"RUNNING\" { print $1 }' | sort")
	}
	before := sandboxes()
	if strings.Count(before, "\n") < 2 {
		t.Fatalf("these containers run:\n%s", before)
	}
	s.carry(one(t, next, "airgap-*.tar"))
	s.on("edge1", "sh /root/carried/install.sh /root/carried/airgap-"+runtime.GOARCH+".tar")
	s.WaitFor("the device to say that it is upgraded", func(ctx context.Context) error {
		out := s.on("edge1", "edgecore status || true")
		if !strings.Contains(out, newer+" (Kubernetes") || !strings.Contains(out, "up for") {
			return errors.New(out)
		}
		return nil
	})
	s.WaitReady("edge-17", true)
	// The new one's reports arrive, and are of the same containers.
	s.on("edge1", "curl -sS --max-time 10 http://"+pod.Status.PodIP+":8080/")
	s.log()
	if after := sandboxes(); after != before {
		t.Errorf("containers before the upgrade:\n%safter it:\n%s", before, after)
	}
	now, err := s.Client.CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
	s.Check(err)
	if now.UID != pod.UID || now.Status.ContainerStatuses[0].RestartCount != 0 || now.Status.PodIP != pod.Status.PodIP {
		t.Errorf("after the upgrade the pod is %s with %d restarts and address %s", now.UID, now.Status.ContainerStatuses[0].RestartCount, now.Status.PodIP)
	}

	const netd = "/etc/cni/net.d/"
	// bash -e ignores a failure behind a "!".
	s.on("edge1", "dpkg --remove skerry-edgecore; if pgrep -x edgecore; then exit 9; fi; test -e "+netd+"10-skerry.conflist; test -e /var/lib/skerry/store.db")
	// The pod's address is not given again while it runs.
	s.on("edge1", "test -e /run/skerry/cni/skerry/"+pod.Status.PodIP)
	if after := sandboxes(); after != before {
		t.Errorf("containers before the removal:\n%safter it:\n%s", before, after)
	}
	s.on("edge1", "echo '{}' >"+netd+"99-mine.conflist; dpkg --purge skerry-edgecore; test -e "+netd+"99-mine.conflist")
	s.on("edge1", "for gone in "+netd+"10-skerry.conflist /var/lib/skerry /run/skerry /var/lib/kubelet/pki/kubelet-server-current.pem /etc/skerry/edgecore.yaml; do if test -e $gone; then echo $gone >&2; exit 9; fi; done")
}
