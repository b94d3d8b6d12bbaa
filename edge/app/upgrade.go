package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/protocol"
	"github.com/skerry-io/skerry/common/version"
	"github.com/skerry-io/skerry/edge/internal/agents/upgrade"
	"github.com/skerry-io/skerry/edge/internal/core/artefact"
	"github.com/skerry-io/skerry/edge/internal/core/launch"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/edge/internal/kernel/host/healthcheck"
	"github.com/skerry-io/skerry/edge/internal/pods/cri"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
)

const (
	requiredChecks = "/etc/skerry/check/required.d"
	wantedChecks   = "/etc/skerry/check/wanted.d"
	packageKeys    = "/usr/share/skerry/keys"
	ownKeys        = "/etc/skerry/keys.d"
	artefactsDir   = "artefacts" // in the data directory
	bundleDir      = "bundle"    // in the data directory
	trialLog       = "trial.log" // in the directory of skerry-launch
)

// launched is the directory of the skerry-launch that has executed this process.
func launched() (launch.Directory, bool) {
	started, ok := launch.FromEnvironment()
	return launch.Directory{Path: started.Dir, Disk: launch.System{}}, ok
}

// OnTrial reports whether this process is the trial of a version or a configuration.
func OnTrial() bool {
	started, ok := launch.FromEnvironment()
	return ok && started.Trial
}

// Overlaid returns edgecore.yaml with the overlay that this process was started with. An invalid
// one is ignored, unless this is its trial.
func Overlaid(file string, data []byte) ([]byte, error) {
	started, ok := launch.FromEnvironment()
	if !ok || started.Program.Overlay == "" {
		return data, nil
	}
	patch, err := (launch.Directory{Path: started.Dir, Disk: launch.System{}}).ReadOverlay(started.Program.Overlay)
	var merged []byte
	if err == nil {
		merged, err = overlay(file, data, patch)
	}
	switch {
	case err == nil:
		return merged, nil
	case started.Trial:
		return nil, fmt.Errorf("the configuration that is tried can't be used: %w", err)
	}
	fmt.Fprintf(os.Stderr, "edgecore: the overlay of the configuration can't be used, and is left out: %v\n", err)
	return data, nil
}

// overlay lays a merge patch, as JSON, over edgecore.yaml and checks the result.
func overlay(file string, data, patch []byte) ([]byte, error) {
	var fields map[string]any
	if err := json.Unmarshal(patch, &fields); err != nil {
		return nil, fmt.Errorf("config.patch is no object: %w", err)
	}
	if bad := edgeconfig.NotRemote(fields); len(bad) > 0 {
		return nil, fmt.Errorf("config.patch: only on the device itself can be changed: %s", strings.Join(bad, ", "))
	}
	base, err := yaml.YAMLToJSON(data)
	if err != nil {
		return nil, err
	}
	merged, err := jsonpatch.MergePatch(base, patch)
	if err != nil {
		return nil, fmt.Errorf("config.patch: %w", err)
	}
	text, err := yaml.JSONToYAML(merged)
	if err != nil {
		return nil, err
	}
	if _, err := Configuration(file+" with config.patch", text); err != nil {
		return nil, err
	}
	return text, nil
}

// ReadBundle puts a bundle of signed programs onto the device and returns the newest version in it
// for this device. It is not trusted before the running edgecore has verified it.
func ReadBundle(cfg *edgeconfig.Config, r io.Reader) (*v1alpha1.UpgradeSpec, error) {
	dir := filepath.Join(cfg.DataDir, bundleDir)
	if err := artefact.ReadBundle(r, dir); err != nil {
		return nil, err
	}
	all, err := artefact.Named(dir)
	if err != nil {
		return nil, err
	}
	var newest *v1alpha1.UpgradeSpec
	for _, t := range all {
		if t.Arch == runtime.GOARCH && (newest == nil || launch.Older(newest.Version, t.Version)) {
			newest = &v1alpha1.UpgradeSpec{Version: t.Version, Digest: t.Digest}
		}
	}
	if newest == nil {
		return nil, fmt.Errorf("the bundle has no edgecore for %s", runtime.GOARCH)
	}
	return newest, nil
}

// worksConfig is the process that upgrades change.
type worksConfig struct {
	keys    []string      // directories of keys that sign versions
	file    func() string // of the configuration
	restart func()        // ends this process for skerry-launch
	kubelet *kubelet
	uplink  *uplink
	// neighbours are the devices of the site; nil where there is no contact with them.
	neighbours artefact.Neighbours
}

// self is the file of this process's program, also where the package has another one since.
const self = "/proc/self/exe"

// slotsOf is how this process was started, and the directory of its slots.
func slotsOf(cfg *edgeconfig.Config) (launch.Started, launch.Directory) {
	started, ok := launch.FromEnvironment()
	directory := launch.Directory{Path: started.Dir, Disk: launch.System{}}
	if !ok {
		directory.Path = filepath.Join(cfg.DataDir, "bin")
	}
	return started, directory
}

// newWorks makes the Works that carry out upgrades, configurations and image pulls. kept returns
// the images that garbage collection must leave alone.
func newWorks(b *base, core *coreWing, rescue *rescue, cloud *rest.Config, c worksConfig) (_ *upgrade.Works, kept func() ([]string, error), err error) {
	edge, err := kubernetes.NewForConfig(core.client())
	if err != nil {
		return nil, nil, fmt.Errorf("making the client for upgrades: %w", err)
	}
	kube, err := kubernetes.NewForConfig(cloud)
	if err != nil {
		return nil, nil, fmt.Errorf("making the client for upgrades: %w", err)
	}
	started, directory := slotsOf(b.config)
	_, ok := launch.FromEnvironment()
	images := newImages(b, c.kubelet, edge)
	return upgrade.New(upgrade.Config{
		Started: started, Launched: ok, Self: self, Directory: directory,
		Artefacts: artefact.New(artefact.Config{
			Keys: c.keys, Dir: filepath.Join(b.config.DataDir, artefactsDir), Programs: directory.Path, Arch: runtime.GOARCH, Now: b.clock.Now, Free: freeBytes,
		}),
		Cloud: artefact.Link{Dial: c.uplink.open}, Neighbours: c.neighbours,
		Bundle: artefact.Files(filepath.Join(b.config.DataDir, bundleDir)),
		Device: &device{node: b.node, file: c.file, kubelet: c.kubelet, uplink: c.uplink, rescue: rescue, edge: edge, cloud: kube, began: time.Now()},
		Images: images, Checks: siteChecks,
		Writable: func() error { return executable(directory.Path) },
		Restart:  c.restart,
		Log:      func() string { return readTail(filepath.Join(directory.Path, trialLog), 4<<10) },
		ClearLog: func() error { return os.RemoveAll(filepath.Join(directory.Path, trialLog)) },
		Boot:     bootID(), Version: version.Skerry(), Arch: runtime.GOARCH, Now: time.Now, Clock: b.clock.Now, Zone: time.Local,
	}), images.list, nil
}

func siteChecks(ctx context.Context) ([]v1alpha1.HealthCheck, error) {
	var all []v1alpha1.HealthCheck
	for _, dir := range []struct {
		path     string
		required bool
	}{{requiredChecks, true}, {wantedChecks, false}} {
		results, err := healthcheck.Run(ctx, dir.path)
		if err != nil {
			return all, err
		}
		for _, r := range results {
			all = append(all, v1alpha1.HealthCheck{Name: r.Name, Required: dir.required, ExitCode: int32(r.Code)})
		}
	}
	return all, nil
}

func freeBytes(dir string) (int64, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, err
	}
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * s.Bsize, nil
}

// executable returns why programs can't be executed from a directory.
func executable(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return err
	}
	switch {
	case s.Flags&unix.ST_NOEXEC != 0:
		return fmt.Errorf("%s is mounted noexec", dir)
	case s.Flags&unix.ST_RDONLY != 0:
		return fmt.Errorf("%s is read-only", dir)
	}
	return nil
}

func readTail(file string, most int) string {
	raw, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	return string(raw[max(0, len(raw)-most):])
}

// device is this process as the upgrade.Device.
type device struct {
	node        string
	file        func() string
	kubelet     *kubelet
	uplink      *uplink
	rescue      *rescue
	edge, cloud kubernetes.Interface
	began       time.Time
}

// Linked implements upgrade.Device.
func (d *device) Linked() bool { return d.uplink.linked() }

// Reaches implements upgrade.Device.
func (d *device) Reaches() bool { return d.Linked() || d.rescue.Open() }

// Protocols implements upgrade.Device.
func (d *device) Protocols(ctx context.Context) (protocol.Window, error) {
	if !d.rescue.Open() {
		return protocol.Ours(), nil
	}
	facts, err := d.rescue.facts(ctx)
	return protocol.Stated(facts.Protocol, facts.ProtocolMin), err
}

// Schema implements upgrade.Device.
func (d *device) Schema() int { return store.Readers }

// ServerVersion implements upgrade.Device.
func (d *device) ServerVersion(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if d.rescue.Open() {
		facts, err := d.rescue.facts(ctx)
		return facts.Kubernetes, err
	}
	raw, err := d.cloud.Discovery().RESTClient().Get().AbsPath("/version").Do(ctx).Raw()
	if err != nil {
		return "", err
	}
	var v struct {
		GitVersion string `json:"gitVersion"`
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		return "", fmt.Errorf("reading kube-apiserver's version: %w", err)
	}
	return v.GitVersion, nil
}

// Judge implements upgrade.Device.
func (d *device) Judge(patch []byte) error {
	file := d.file()
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	_, err = overlay(file, data, patch)
	return err
}

// Problems implements upgrade.Device.
func (d *device) Problems(ctx context.Context, rebooted bool) []string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if d.kubelet.module == nil {
		return nil // a device without a kubelet
	}
	node, err := d.edge.CoreV1().Nodes().Get(ctx, d.node, metav1.GetOptions{})
	if err != nil {
		return []string{"the device's API: " + err.Error()}
	}
	var problems []string
	if !d.ready(node) {
		problems = append(problems, "the node is not Ready by this process")
	}
	pods, err := d.edge.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", d.node).String()})
	if err != nil {
		return append(problems, "the pods of the device: "+err.Error())
	}
	running, err := runningContainers(ctx, d.kubelet.module.Runtime())
	if err != nil {
		return append(problems, "the container runtime: "+err.Error())
	}
	for i := range pods.Items {
		switch p := &pods.Items[i]; {
		case !rebooted && restartedBy(p, d.began):
			problems = append(problems, "the containers of pod "+p.Namespace+"/"+p.Name+" were restarted by the switch")
		case endedBy(p, d.began, running):
			problems = append(problems, "the containers of pod "+p.Namespace+"/"+p.Name+" have ended")
		}
	}
	return problems
}

// runningContainers are the IDs that the container runtime at an endpoint has.
func runningContainers(ctx context.Context, endpoint string) (map[string]bool, error) {
	conn, err := cri.Dial(endpoint)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	list, err := runtimev1.NewRuntimeServiceClient(conn).ListContainers(ctx, &runtimev1.ListContainersRequest{
		Filter: &runtimev1.ContainerFilter{State: &runtimev1.ContainerStateValue{State: runtimev1.ContainerState_CONTAINER_RUNNING}},
	})
	if err != nil {
		return nil, err
	}
	all := map[string]bool{}
	for _, c := range list.Containers {
		all[c.Id] = true
	}
	return all, nil
}

// ready reports whether the kubelet of this process has set the node Ready.
func (d *device) ready(node *corev1.Node) bool {
	return readySince(node, d.began.Round(0), time.Now(), time.Since(d.began))
}

// readySince reports whether the node was set Ready since a process began, which runs for so long:
// by the clock as it was at the begin, or as it is now. The clock may have been set since then:
// back, which must not make the process unhealthy, or forward, as on a device without a clock of
// its own, which boots in 1970: there a condition of the process before is newer than the begin.
func readySince(node *corev1.Node, began, now time.Time, runs time.Duration) bool {
	within := func(at, from time.Time) bool {
		return !at.Before(from.Truncate(time.Second)) && !at.After(from.Add(runs))
	}
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		at := c.LastHeartbeatTime.Time
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue && (within(at, began) || within(at, now.Add(-runs)))
	})
}

// endedBy reports whether no container runs of those that the status of a pod, which is older than
// a time, has as running: the kubelet has not noticed their end yet.
func endedBy(pod *corev1.Pod, since time.Time, running map[string]bool) bool {
	if pod.Status.StartTime == nil || !pod.Status.StartTime.Time.Before(since) {
		return false
	}
	ended := false
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Running == nil {
			continue
		}
		_, id, _ := strings.Cut(c.ContainerID, "://")
		if running[id] {
			return false
		}
		ended = true
	}
	return ended
}

// stable is the run after which a container's end is no part of a crash loop: the kubelet resets
// its back-off then.
const stable = 10 * time.Minute

// restartedBy reports whether all containers of a pod that is older than a time were started again
// since. One that was started again before, and ran for a short time, restarts by itself; each
// reboot of the device counts as a restart too.
func restartedBy(pod *corev1.Pod, since time.Time) bool {
	if pod.Status.StartTime == nil || !pod.Status.StartTime.Time.Before(since) || len(pod.Status.ContainerStatuses) == 0 {
		return false
	}
	for _, c := range pod.Status.ContainerStatuses {
		last := c.LastTerminationState.Terminated
		byItself := c.RestartCount > 1 && (last == nil || last.FinishedAt.Sub(last.StartedAt.Time) < stable)
		if c.RestartCount == 0 || byItself || c.State.Running == nil || c.State.Running.StartedAt.Time.Before(since) {
			return false
		}
	}
	return true
}
