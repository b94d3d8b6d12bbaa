package join_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/process"
)

// release is the programs of one release, and its replica of cloudcore.
type release struct {
	cloudcore, hollowedge string
	address               string // of its replica
	config, health, log   string
	replica               *process.Started // nil: it does not run
}

// matrix is the previous release and this one, and a device of each.
type matrix struct {
	*testing.T
	plane       *cluster.ControlPlane
	before, now *release
	port, join  string
	devices     []*feeder
}

// feeder is a device whose kubelet reports all the time: events, each with a name of its own, until
// the device has taken it, and a number as the status of a pod.
type feeder struct {
	*deviceOf
	node, namespace string
	stop            func() // its program

	mu     sync.Mutex
	events []string
	status int
}

func newMatrix(t *testing.T) *matrix {
	t.Helper()
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	old, err := binary.BuildBefore(t.Context(), root, "cloudcore", "hollowedge")
	if errors.Is(err, binary.ErrNoHistory) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	programs, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	m := &matrix{
		T: t, plane: cluster.Shared(t), join: cluster.FreeAddress(t, "tcp"),
		before: &release{cloudcore: old[0], hollowedge: old[1], address: "127.43.1.1"},
		now:    &release{cloudcore: programs[0], hollowedge: programs[2], address: "127.43.1.2"},
	}
	m.plane.Apply(t, "manifests/crds")
	m.plane.Apply(t, "manifests/cloudcore")
	_, m.port, _ = net.SplitHostPort(cluster.FreeAddress(t, "tcp"))
	dir := t.TempDir()
	kubeconfig, approver := filepath.Join(dir, "cloudcore.kubeconfig"), filepath.Join(dir, "approver.kubeconfig")
	m.plane.AccountKubeconfig(t, "cloudcore", kubeconfig)
	m.plane.AccountKubeconfig(t, "cloudcore-approver", approver)
	for i, r := range []*release{m.before, m.now} {
		r.config, r.log, r.health = filepath.Join(dir, strconv.Itoa(i)+".yaml"), filepath.Join(dir, strconv.Itoa(i)+".log"), cluster.FreeAddress(t, "tcp")
		join := ""
		if r == m.before {
			join = m.join
		}
		config := fmt.Sprintf("apiVersion: config.skerry.io/v1alpha1\nkind: CloudCore\nkubeconfig: %s\napprover: {kubeconfig: %s}\nhealth: {listen: %q}\ntunnel: {listen: \"\"}\ndevices: {listen: \"\"}\n"+
			"advertise: [%s, %s, 127.0.0.1]\nhub: {websocket: {listen: %q}}\njoin: {listen: %q}\n",
			kubeconfig, approver, r.health, m.before.address, m.now.address, net.JoinHostPort(r.address, m.port), join)
		if err := os.WriteFile(r.config, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		m.clouds()
		for _, log := range []string{m.before.log, m.now.log} {
			if t.Failed() {
				raw, _ := os.ReadFile(log)
				t.Logf("%s", raw[max(0, len(raw)-6000):])
			}
		}
	})
	return m
}

// clouds has the replicas of these releases run, and no other: first they start.
func (m *matrix) clouds(of ...*release) {
	m.Helper()
	runs := map[*release]bool{}
	for _, r := range of {
		runs[r] = true
		if r.replica != nil {
			continue
		}
		var err error
		if r.replica, err = process.Start(process.Spec{Path: r.cloudcore, Args: []string{"--config", r.config}, Log: r.log, Bound: true}); err != nil {
			m.Fatal(err)
		}
		cluster.WaitReady(m, "cloudcore", r.health)
	}
	for _, r := range []*release{m.before, m.now} {
		if r.replica != nil && !runs[r] {
			if err := r.replica.Stop(context.Background(), 30*time.Second); err != nil {
				m.Error(err)
			}
			r.replica = nil
		}
	}
}

// device joins a device and has its kubelet report until the test ends.
func (m *matrix) device(node string) *feeder {
	m.Helper()
	d := &feeder{deviceOf: newDevice(m.T), node: node}
	s := &system{plane: m.plane, cloudcore: m.now.cloudcore, join: m.join}
	programs, err := programs()
	if err != nil {
		m.Fatal(err)
	}
	s.edgecore = programs[1]
	d.configure(m.T, net.JoinHostPort("", m.port))
	if _, errs, code := s.edge(m.T, d.config, s.token(m.T), node, m.join); code != 0 {
		m.Fatalf("edgecore join: %d: %s", code, errs)
	}
	m.devices = append(m.devices, d)
	return d
}

// run has a device run a release's program, with a link to these replicas.
func (m *matrix) run(d *feeder, program *release, servers ...*release) {
	m.Helper()
	if d.stop != nil {
		d.stop()
	}
	var addresses []string
	for _, r := range servers {
		addresses = append(addresses, r.address)
	}
	d.configure(m.T, net.JoinHostPort("", m.port), addresses...)
	d.stop = d.work(m.T, []string{"", "", program.hollowedge})
}

// feed reports until ctx is done.
func (d *feeder) feed(ctx context.Context) {
	const pause = 200 * time.Millisecond
	for n := 1; ; n++ {
		name := d.node + "." + strconv.Itoa(n)
		for {
			_, err := d.kubelet.CoreV1().Events(d.namespace).Create(ctx, &corev1.Event{
				ObjectMeta: metav1.ObjectMeta{Name: name}, Reason: "Fed", Message: name, Type: corev1.EventTypeNormal, Count: 1,
				FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now(), Source: corev1.EventSource{Component: "kubelet", Host: d.node},
				InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: d.namespace, Name: "pod-" + d.node},
			}, metav1.CreateOptions{})
			if err == nil || apierrors.IsAlreadyExists(err) { // of a try without an answer
				break
			}
			if !sleep(ctx, pause) {
				return
			}
		}
		d.mu.Lock()
		d.events = append(d.events, name)
		d.mu.Unlock()
		if d.report(ctx, n) == nil {
			d.mu.Lock()
			d.status = n
			d.mu.Unlock()
		}
		if !sleep(ctx, pause) {
			return
		}
	}
}

func (d *feeder) report(ctx context.Context, n int) error {
	_, err := d.kubelet.CoreV1().Pods(d.namespace).Patch(ctx, "pod-"+d.node, types.StrategicMergePatchType,
		fmt.Appendf(nil, `{"status":{"message":"%d"}}`, n), metav1.PatchOptions{}, "status")
	return err
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// taken is what the device has taken of its kubelet.
func (d *feeder) taken() (events []string, status int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.events, d.status
}

// arrived returns why not all that a device had taken is at kube-apiserver.
func (m *matrix) arrived(ctx context.Context, d *feeder, events []string, status int) error {
	list, err := m.plane.Client().CoreV1().Events(d.namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=Fed"})
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, e := range list.Items {
		there[e.Message] = true
	}
	for _, name := range events {
		if !there[name] {
			return fmt.Errorf("event %s is not there; %d are, of %d", name, len(there), len(events))
		}
	}
	pod, err := m.plane.Client().CoreV1().Pods(d.namespace).Get(ctx, "pod-"+d.node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if have, _ := strconv.Atoi(pod.Status.Message); have < status {
		return fmt.Errorf("the status is %d, not %d", have, status)
	}
	return nil
}

// flows waits until what each device takes now is at kube-apiserver: in a state of the matrix both
// directions work.
func (m *matrix) flows(state string) {
	m.Helper()
	for _, d := range m.devices {
		before, _ := d.taken()
		var events []string
		var status int
		cluster.Eventually(m, d.node+" to take reports: "+state, func(context.Context) error {
			if events, status = d.taken(); len(events) < len(before)+3 || status < len(before)+3 {
				return fmt.Errorf("%d events, status %d", len(events), status)
			}
			return nil
		})
		cluster.Eventually(m, "the reports of "+d.node+" to arrive: "+state, func(ctx context.Context) error { return m.arrived(ctx, d, events, status) })
		name := "from-the-cloud"
		if _, err := m.plane.Client().CoreV1().Secrets(d.namespace).Patch(m.Context(), "secret-"+d.node, types.MergePatchType,
			fmt.Appendf(nil, `{"stringData":{%q:%q}}`, name, state), metav1.PatchOptions{}); err != nil {
			m.Fatal(err)
		}
		cluster.Eventually(m, d.node+" to have a change of its Secret: "+state, func(ctx context.Context) error {
			secret, err := d.kubelet.CoreV1().Secrets(d.namespace).Get(ctx, "secret-"+d.node, metav1.GetOptions{})
			if err == nil && string(secret.Data[name]) != state {
				err = fmt.Errorf("it has %q", secret.Data[name])
			}
			return err
		})
	}
}

// backwards watches the status of a pod, and returns each that is older than one before.
func (m *matrix) backwards(d *feeder) (stop func() []string) {
	m.Helper()
	ctx, cancel := context.WithCancel(m.Context())
	w, err := m.plane.Client().CoreV1().Pods(d.namespace).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=pod-" + d.node})
	if err != nil {
		m.Fatal(err)
	}
	found := make(chan []string, 1)
	go func() {
		last, all := 0, []string(nil)
		for e := range w.ResultChan() {
			p, ok := e.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			n, _ := strconv.Atoi(p.Status.Message)
			if n < last {
				all = append(all, fmt.Sprintf("%d after %d", n, last))
			}
			last = n
		}
		found <- all
	}()
	return func() []string {
		cancel()
		w.Stop()
		return <-found
	}
}

// repeated watches the events of a device's kubelet, and returns those that were written more than
// once: made under another name too, or changed.
func (m *matrix) repeated(d *feeder) (stop func() []string) {
	m.Helper()
	ctx, cancel := context.WithCancel(m.Context())
	w, err := m.plane.Client().CoreV1().Events(d.namespace).Watch(ctx, metav1.ListOptions{FieldSelector: "reason=Fed"})
	if err != nil {
		m.Fatal(err)
	}
	found := make(chan []string, 1)
	go func() {
		writes, all := map[string]int{}, []string(nil)
		for change := range w.ResultChan() {
			e, ok := change.Object.(*corev1.Event)
			if !ok {
				if ctx.Err() == nil { // else that it was ended here
					all = append(all, fmt.Sprintf("the watch ended: %v", change.Object))
				}
				continue
			}
			if writes[e.Message]++; writes[e.Message] > 1 {
				all = append(all, fmt.Sprintf("%s of %s as %s, count %d", change.Type, e.Message, e.Name, e.Count))
			}
		}
		if ctx.Err() == nil {
			all = append(all, "the watch ended")
		}
		found <- all
	}()
	return func() []string {
		cancel()
		w.Stop()
		return <-found
	}
}

// TestFleet_01_NeighbouringReleasesWorkTogether: cloudcore and a device of the previous release and
// of this one, in every pair, with a replica of each, and each put back with its data. During it
// the devices' kubelets report: no event is lost or written twice, and no status is lost or goes
// back.
func TestFleet_01_NeighbouringReleasesWorkTogether(t *testing.T) {
	m := newMatrix(t)
	m.clouds(m.before)
	older, newer := m.device("edge-older"), m.device("edge-newer")
	m.run(older, m.before, m.before)
	m.run(newer, m.now, m.before)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var feeding sync.WaitGroup
	stops, again := map[*feeder]func() []string{}, map[*feeder]func() []string{}
	for _, d := range m.devices {
		d.namespace = d.gives(t, &system{plane: m.plane}, d.node, d.node)
		stops[d], again[d] = m.backwards(d), m.repeated(d)
		feeding.Go(func() { d.feed(ctx) })
	}
	m.flows("the previous cloud")

	m.clouds(m.before, m.now)
	m.run(older, m.before, m.now)
	m.run(newer, m.now, m.before)
	m.flows("a replica of each, and each device at that of the other release")

	for _, d := range m.devices {
		m.run(d, map[*feeder]*release{older: m.before, newer: m.now}[d], m.before, m.now)
	}
	m.clouds(m.now)
	m.flows("the new cloud")
	m.clouds(m.before)
	m.flows("the previous cloud, put back")

	m.run(older, m.now, m.before, m.now)
	m.run(newer, m.before, m.before, m.now)
	m.flows("an upgraded device, and one put back, with its data")
	m.clouds(m.now)
	m.run(older, m.before, m.now)
	m.run(newer, m.now, m.now)
	m.flows("the same the other way")

	cancel()
	feeding.Wait()
	for _, d := range m.devices {
		events, status := d.taken()
		cluster.Eventually(t, "all reports of "+d.node, func(ctx context.Context) error { return m.arrived(ctx, d, events, status) })
		if all := stops[d](); len(all) > 0 {
			t.Errorf("statuses of %s went back: %v", d.node, all)
		}
		if all := again[d](); len(all) > 0 {
			t.Errorf("events of %s were written again: %v", d.node, all)
		}
		t.Logf("%s: %d events, status %d", d.node, len(events), status)
	}
}
