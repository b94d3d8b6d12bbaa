package drain_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/edges"
	"github.com/skerry-io/skerry/tests/cluster/poll"
)

const patience = 60 * time.Second

var labNumber atomic.Int32

// lab is a node of the real control plane, with a kubelet that only removes deleted pods, and the
// agent of that node.
type lab struct {
	t      *testing.T
	name   string // of the node and of the namespace
	admin  kubernetes.Interface
	store  *memory
	hub    *hub // where the agent runs as a module
	module *drain.Module
	hooks  *hooks
	real   drain.Hooks // in the place of hooks, where a test has them run
	rules  drain.Rules
	boot   string
	agent  *drain.Agent
	stop   func()
	events *record.FakeRecorder
	sent   record.EventRecorder // in the place of events, where a test has them sent
	logs   logs

	cut       atomic.Bool  // the API can't be reached
	broken    atomic.Bool  // the link fails, undetected so far
	updates   atomic.Int32 // of the node, by the worker
	conflicts atomic.Int32 // so many updates of the node come too late
}

func newLab(t *testing.T) *lab {
	t.Helper()
	plane := cluster.Shared(t)
	l := &lab{
		t: t, name: fmt.Sprintf("edge%d", labNumber.Add(1)), admin: plane.Client(), boot: "boot-1",
		store: &memory{changed: make(chan struct{})}, hooks: &hooks{},
		rules: drain.Rules{
			Attempts: 5, Interval: 100 * time.Millisecond, Timeout: patience,
			ProceedAfter: 300 * time.Millisecond, RetryInterval: 50 * time.Millisecond,
		},
	}
	l.rights()
	ctx := t.Context()
	l.must(l.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: l.name}}, metav1.CreateOptions{}))
	if _, err := l.admin.CoreV1().ServiceAccounts(l.name).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
		metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	l.node(l.name)
	l.node("spare")
	go l.kubelet(ctx)
	return l
}

func (l *lab) must(_ any, err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) node(name string) {
	l.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}}
	n, err := l.admin.CoreV1().Nodes().Create(l.t.Context(), n, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return
	}
	l.must(n, err)
	n.ResourceVersion = "" // the controllers write too
	n.Status.Allocatable = corev1.ResourceList{"pods": resource.MustParse("100"), "cpu": resource.MustParse("4"), "memory": resource.MustParse("4Gi")}
	n.Status.Capacity = n.Status.Allocatable
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}
	l.must(l.admin.CoreV1().Nodes().UpdateStatus(l.t.Context(), n, metav1.UpdateOptions{}))
	l.eventually("the controllers have seen the node", func() bool {
		n, err := l.admin.CoreV1().Nodes().Get(l.t.Context(), name, metav1.GetOptions{})
		return err == nil && len(n.Spec.Taints) == 0
	})
}

// rights gives nodes the RBAC rules of the manifests.
func (l *lab) rights() {
	l.t.Helper()
	plane := cluster.Shared(l.t)
	for _, name := range []string{"nodes.yaml", "drain.yaml"} {
		raw, err := os.ReadFile("../../../../manifests/cloudcore/" + name)
		l.must(raw, err)
		decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(raw), 4096)
		for {
			var o unstructured.Unstructured
			err := decoder.Decode(&o)
			if errors.Is(err, io.EOF) {
				break
			}
			l.must(o, err)
			plane.ApplyObjects(l.t, &o)
		}
	}
	l.must(nil, edges.Rights(l.t.Context(), l.admin, l.name))
}

// kubelet ends the pods of the node that were deleted, as a kubelet does.
func (l *lab) kubelet(ctx context.Context) {
	end := func(pod *corev1.Pod) {
		o := metav1.NewDeleteOptions(0)
		o.Preconditions = metav1.NewUIDPreconditions(string(pod.UID))
		_ = l.admin.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, *o) // another pod of its name is not ours
	}
	// kube-apiserver ends a watch that can't follow, as on a busy machine: the next one begins with
	// all pods that there are.
	for ctx.Err() == nil {
		watch, err := l.admin.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + l.name})
		if err != nil {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		for e := range watch.ResultChan() {
			if pod, ok := e.Object.(*corev1.Pod); ok && pod.DeletionTimestamp != nil {
				end(pod)
			}
		}
		watch.Stop()
	}
}

// pod makes a pod that is Ready on the node.
func (l *lab) pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	l.t.Helper()
	grace := int64(1)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			NodeName: l.name, TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{{Name: "c", Image: "example.invalid/none:1"}},
		},
	}
	for _, c := range change {
		c(p)
	}
	p, err := l.admin.CoreV1().Pods(l.name).Create(l.t.Context(), p, metav1.CreateOptions{})
	l.must(p, err)
	p.ResourceVersion = ""
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	l.must(l.admin.CoreV1().Pods(l.name).UpdateStatus(l.t.Context(), p, metav1.UpdateOptions{}))
	return p
}

// pdb covers the pods that are labelled app=app, and waits until the disruption controller
// has seen it.
func (l *lab) pdb(name, app string, least int) {
	l.t.Helper()
	ctx := l.t.Context()
	m := intstr.FromInt32(int32(least))
	pdb := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: policyv1.PodDisruptionBudgetSpec{
		MinAvailable: &m, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
	}}
	l.must(l.admin.PolicyV1().PodDisruptionBudgets(l.name).Create(ctx, pdb, metav1.CreateOptions{}))
	l.eventually("the PDB is observed", func() bool {
		p, err := l.admin.PolicyV1().PodDisruptionBudgets(l.name).Get(ctx, name, metav1.GetOptions{})
		return err == nil && p.Status.ObservedGeneration >= p.Generation && p.Status.CurrentHealthy >= int32(least)
	})
}

// eventually polls for a condition without an event.
func (l *lab) eventually(what string, ok func() bool) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), patience)
	defer cancel()
	err := poll.Until(ctx, 100*time.Millisecond, func(context.Context) error {
		if !ok() {
			return errors.New("it is not so")
		}
		return nil
	})
	if err != nil {
		l.t.Fatalf("gave up waiting: %s\nstate: %s", what, l.dump())
	}
}

func (l *lab) dump() string {
	if l.agent == nil {
		return "no agent"
	}
	b, _ := json.MarshalIndent(l.agent.Status(), "", "  ")
	return string(b)
}

// start starts the agent with the stored state, linked and Ready.
func (l *lab) start() {
	l.t.Helper()
	plane := cluster.Shared(l.t)
	api := plane.Admin()
	api.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + l.name, Groups: []string{"system:nodes"}}
	api.Wrap(func(next http.RoundTripper) http.RoundTripper { return &link{l, next} })
	worker, err := drain.NewWorker(drain.WorkerConfig{NodeName: l.name, API: api, EvictDelay: 100 * time.Millisecond, CordonDelay: time.Millisecond})
	l.must(worker, err)
	l.events = record.NewFakeRecorder(1000)
	l.agent = drain.New(drain.Config{NodeName: l.name, Boot: l.boot, Node: worker, Hooks: l.theHooks(), Store: l.store, Rules: l.rules, Events: l.recorder()})
	ctx, cancel := context.WithCancel(l.logs.in(l.t.Context()))
	done := make(chan error, 1)
	agent := l.agent
	go func() { done <- agent.Run(ctx) }()
	l.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			l.t.Errorf("the agent: %v", err)
		}
	})
	l.t.Cleanup(l.stop)
	l.eventually("the agent runs", func() bool { return agent.Reachable(ctx, !l.cut.Load()) == nil })
	if err := agent.Node(ctx, true, false, false); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) ask(name string, operation v1alpha1.OperationType, change ...func(*v1alpha1.NodeOperationSpec)) {
	l.t.Helper()
	spec := v1alpha1.NodeOperationSpec{Operation: operation}
	for _, c := range change {
		c(&spec)
	}
	if err := l.agent.Request(l.t.Context(), drain.Operation{Name: name, Spec: spec}); err != nil {
		l.t.Fatal(err)
	}
}

// await waits for a state that was kept.
func (l *lab) await(what string, ok func(drain.State) bool) drain.State {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), patience)
	defer cancel()
	for {
		changed := l.store.wait()
		if s := l.agent.Status(); ok(s) {
			return s
		}
		select {
		case <-changed:
		case <-time.After(20 * time.Millisecond): // kept, and shown a moment later
		case <-ctx.Done():
			l.t.Fatalf("gave up waiting: %s\nstate: %s", what, l.dump())
		}
	}
}

func (l *lab) awaitStage(name string, stage drain.Stage) drain.Operation {
	l.t.Helper()
	s := l.await(name+" is "+string(stage), func(s drain.State) bool { o := operation(s, name); return o != nil && o.Stage == stage })
	return *operation(s, name)
}

func operation(s drain.State, name string) *drain.Operation {
	i := slices.IndexFunc(s.Operations, func(o drain.Operation) bool { return o.Name == name })
	if i < 0 {
		return nil
	}
	return &s.Operations[i]
}

func (l *lab) getNode() *corev1.Node {
	l.t.Helper()
	n, err := l.admin.CoreV1().Nodes().Get(l.t.Context(), l.name, metav1.GetOptions{})
	l.must(n, err)
	return n
}

// cordon reports whether the node is cordoned, and whether by us.
func (l *lab) cordon() (cordoned, ours bool) {
	l.t.Helper()
	n := l.getNode()
	return n.Spec.Unschedulable, n.Annotations[v1alpha1.CordonAnnotation] != ""
}

func (l *lab) awaitCordon(cordoned, ours bool) {
	l.t.Helper()
	l.eventually("the cordon", func() bool { c, o := l.cordon(); return c == cordoned && o == ours })
}

// pods returns the names of existing pods that are not ending.
func (l *lab) pods() []string {
	l.t.Helper()
	list, err := l.admin.CoreV1().Pods(l.name).List(l.t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + l.name})
	l.must(list, err)
	var names []string
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil {
			names = append(names, p.Name)
		}
	}
	return names
}

func (l *lab) hasPod(uid types.UID) bool {
	l.t.Helper()
	list, err := l.admin.CoreV1().Pods(l.name).List(l.t.Context(), metav1.ListOptions{})
	l.must(list, err)
	return slices.ContainsFunc(list.Items, func(p corev1.Pod) bool { return p.UID == uid && p.DeletionTimestamp == nil })
}

func (l *lab) setLink(up bool) {
	l.t.Helper()
	l.cut.Store(!up)
	if l.hub != nil {
		l.hub.up <- up
		return
	}
	if err := l.agent.Reachable(l.t.Context(), up); err != nil {
		l.t.Fatal(err)
	}
}

// link is the way to the API: it can be cut, as metamanager answers then, and another client may be
// quicker to write the node.
type link struct {
	lab  *lab
	next http.RoundTripper
}

func (k *link) RoundTrip(r *http.Request) (*http.Response, error) {
	if k.lab.cut.Load() {
		status := apierrors.NewServiceUnavailable("there is no link").Status()
		body, err := json.Marshal(status)
		if err != nil {
			return nil, err
		}
		return &http.Response{
			StatusCode: http.StatusServiceUnavailable, Status: "503 Service Unavailable", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(string(body))), Request: r,
		}, nil
	}
	if k.lab.broken.Load() || k.lab.store.dead.Load() {
		return nil, io.ErrUnexpectedEOF
	}
	update := r.Method == http.MethodPut && strings.HasPrefix(r.URL.Path, "/api/v1/nodes/")
	if update {
		k.lab.updates.Add(1)
	}
	if update && k.lab.conflicts.Add(-1) >= 0 {
		patch := `{"metadata":{"annotations":{"other-client":"` + time.Now().String() + `"}}}`
		if _, err := k.lab.admin.CoreV1().Nodes().Patch(r.Context(), k.lab.name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			return nil, err
		}
	}
	return k.next.RoundTrip(r)
}

// logs records log lines.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logs) in(ctx context.Context) context.Context {
	return klog.NewContext(ctx, textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(l))))
}

// Write implements io.Writer.
func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// steps returns the logged steps of the drain, without repeats.
func (l *logs) steps() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []string
	for line := range strings.Lines(l.text.String()) {
		if _, rest, ok := strings.Cut(line, `nodedrain-step="`); ok {
			step, _, _ := strings.Cut(rest, `"`)
			all = append(all, step)
		}
	}
	return slices.Compact(all)
}

// reasons are those of the events so far, in order.
func (l *lab) reasons() []string {
	var all []string
	for {
		select {
		case e := <-l.events.Events:
			all = append(all, strings.Fields(e)[1])
		default:
			return all
		}
	}
}

// completed is how many drains the metric has counted.
func (l *lab) completed() uint64 {
	l.t.Helper()
	r := prometheus.NewRegistry()
	l.must(nil, r.Register(l.agent))
	families, err := r.Gather()
	l.must(families, err)
	if len(families) != 1 || families[0].GetName() != "skerry_drain_duration_seconds" {
		l.t.Fatalf("the metrics are %v", families)
	}
	return families[0].GetMetric()[0].GetHistogram().GetSampleCount()
}

// memory is a store that remembers every phase that was kept.
type memory struct {
	mu      sync.Mutex
	state   []byte
	phases  []v1alpha1.DrainPhase
	changed chan struct{}

	// dies has the phases in which the process dies as soon as they are saved; each does it once.
	// They are sent to died.
	dies map[v1alpha1.DrainPhase]bool
	died chan v1alpha1.DrainPhase
	dead atomic.Bool
}

func (m *memory) Load() (map[string][]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state == nil {
		return nil, nil
	}
	return map[string][]byte{"state": m.state}, nil
}

func (m *memory) Save(_ context.Context, changes map[string][]byte) error {
	var s drain.State
	state := changes["state"]
	if err := json.Unmarshal(state, &s); err != nil {
		return err
	}
	if m.dead.Load() {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state = slices.Clone(state)
	if m.dies[s.Drain.Phase] {
		delete(m.dies, s.Drain.Phase)
		m.dead.Store(true)
		m.died <- s.Drain.Phase
	}
	if n := len(m.phases); n == 0 || m.phases[n-1] != s.Drain.Phase {
		m.phases = append(m.phases, s.Drain.Phase)
	}
	close(m.changed)
	m.changed = make(chan struct{})
	return nil
}

func (m *memory) wait() chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

func (m *memory) seen() []v1alpha1.DrainPhase {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.phases)
}

func (l *lab) recorder() record.EventRecorder {
	if l.sent != nil {
		return l.sent
	}
	return l.events
}

func (l *lab) theHooks() drain.Hooks {
	if l.real != nil {
		return l.real
	}
	return l.hooks
}

// hooks record the hooks that were run.
type hooks struct {
	mu   sync.Mutex
	ran  []string
	fail bool
	dead *atomic.Bool // may be nil; while it is true, the process runs no hooks
}

func (h *hooks) Check(operation string) error {
	if operation == string(v1alpha1.OperationShutdown) {
		return errors.New("no hook is configured")
	}
	return nil
}

func (h *hooks) Kill(context.Context, string) (string, error) { return "", nil }

func (h *hooks) Run(ctx context.Context, _, operation string, _ ...string) (string, int, error) {
	if h.dead != nil && h.dead.Load() {
		<-ctx.Done()
		return "", 0, ctx.Err()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ran = append(h.ran, operation)
	if h.fail {
		return "why", 3, errors.New("exit status 3")
	}
	return "done", 0, nil
}

func (h *hooks) runs() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.ran)
}
