package drain_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/tests/cluster"
)

// operations is the collection of NodeOperations, as an administrator has it.
func (l *lab) operations() dynamic.ResourceInterface {
	l.t.Helper()
	plane := cluster.Shared(l.t)
	client, err := dynamic.NewForConfig(plane.Admin())
	l.must(client, err)
	return client.Resource(v1alpha1.Resource(v1alpha1.NodeOperations))
}

// Report implements drain.Reporter as cloudcore does: the report becomes the status.
func (l *lab) Report(ctx context.Context, ref object.Ref, uid types.UID, body []byte) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid}, "status": json.RawMessage(body)})
	if err != nil {
		return err
	}
	_, err = l.operations().Patch(ctx, ref.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		return nil // reported in vain
	}
	return err
}

// serve starts the agent as a module, with the stored state.
func (l *lab) serve() {
	l.t.Helper()
	plane := cluster.Shared(l.t)
	l.applyKinds()
	api := plane.Admin()
	api.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + l.name, Groups: []string{"system:nodes"}}
	held := rest.CopyConfig(api)
	api.Wrap(func(next http.RoundTripper) http.RoundTripper { return &link{l, next} })
	worker, err := drain.NewWorker(drain.WorkerConfig{NodeName: l.name, API: api})
	l.must(worker, err)
	l.events = record.NewFakeRecorder(1000)
	l.hub = &hub{up: make(chan bool, 1)}
	l.hub.up <- !l.cut.Load()
	l.agent = drain.New(drain.Config{NodeName: l.name, Boot: l.boot, Node: worker, Hooks: l.theHooks(), Store: l.store, Rules: l.rules})
	module := drain.NewModule(l.agent, drain.ModuleConfig{
		Edge: held, Cloud: api, Reporter: l,
		Events: func(context.Context) (agent.Recorder, error) { return fakeRecorder{l.events}, nil },
	})
	l.module = module
	runner, err := beehive.NewRunner(beehive.Config{}, []beehive.Entry{
		{Module: l.hub}, {Module: module, Groups: []message.Group{linkstate.Agents}},
	})
	l.must(runner, err)
	ctx, cancel := context.WithCancel(l.t.Context())
	done := make(chan error, 1)
	go func() { done <- runner.Run(ctx) }()
	l.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			l.t.Errorf("the module: %v", err)
		}
	})
	l.t.Cleanup(l.stop)
	l.eventually("the module is ready", func() bool { return runner.Health()[1].State == beehive.Ready })
}

// fakeRecorder is client-go's with an end.
type fakeRecorder struct{ *record.FakeRecorder }

func (fakeRecorder) Close(context.Context) error { return nil }

// hub fakes edgehub: it reports the state of the link.
type hub struct{ up chan bool }

func (*hub) Name() message.Name    { return "edgehub" }
func (*hub) Topics() []message.Key { return nil }

func (h *hub) Run(ctx context.Context, port *beehive.Port) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case up := <-h.up:
			if err := port.SendToGroup(ctx, linkstate.Agents, linkstate.Current.New(message.Resource{}, linkstate.State{Up: up})); err != nil {
				return err
			}
			port.Ready()
		}
	}
}

var kinds sync.Once

func (l *lab) applyKinds() {
	l.t.Helper()
	plane := cluster.Shared(l.t)
	kinds.Do(func() {
		plane.Apply(l.t, "manifests/crds")
		l.eventually("the admission policies know the kind", func() bool {
			o := &v1alpha1.NodeOperation{
				TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "NodeOperation"}, ObjectMeta: metav1.ObjectMeta{Name: "probe"},
				Spec: v1alpha1.NodeOperationSpec{NodeName: "probe", Operation: v1alpha1.OperationDrain},
			}
			made, err := l.operations().Create(l.t.Context(), l.untyped(o), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err == nil && made.GetAnnotations()[v1alpha1.RequestedByAnnotation] != ""
		})
	})
}

// want makes a NodeOperation.
func (l *lab) want(name string, operation v1alpha1.OperationType, status ...v1alpha1.NodeOperationStatus) types.UID {
	l.t.Helper()
	o := &v1alpha1.NodeOperation{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "NodeOperation"},
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NodeOperationSpec{NodeName: l.name, Operation: operation},
	}
	made, err := l.operations().Create(l.t.Context(), l.untyped(o), metav1.CreateOptions{})
	l.must(made, err)
	l.t.Cleanup(func() {
		if err := l.operations().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			l.t.Error(err)
		}
	})
	for _, s := range status {
		raw, err := json.Marshal(s)
		l.must(raw, err)
		l.must(nil, l.Report(l.t.Context(), object.Ref{Name: name}, made.GetUID(), raw))
	}
	return made.GetUID()
}

func (l *lab) untyped(o *v1alpha1.NodeOperation) *unstructured.Unstructured {
	l.t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	l.must(content, err)
	delete(content, "status")
	return &unstructured.Unstructured{Object: content}
}

// inCloud is the NodeOperation as the cloud has it; nil without one.
func (l *lab) inCloud(name string) *v1alpha1.NodeOperation {
	l.t.Helper()
	u, err := l.operations().Get(l.t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	l.must(u, err)
	o := &v1alpha1.NodeOperation{}
	l.must(nil, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, o))
	return o
}

// awaitReported waits until condition Done has a reason in the cloud.
func (l *lab) awaitReported(name, reason string) *v1alpha1.NodeOperation {
	l.t.Helper()
	var o *v1alpha1.NodeOperation
	l.eventually(name+" is reported as "+reason, func() bool {
		o = l.inCloud(name)
		return o != nil && slices.ContainsFunc(o.Status.Conditions, func(c metav1.Condition) bool { return c.Type == v1alpha1.OperationDone && c.Reason == reason })
	})
	return o
}

// The cluster is restored to a time before the operation's end was reported: the device reports it
// again, and does not repeat the operation.
func TestClaims_17_EndedOperationIsReportedAgain(t *testing.T) {
	l := newLab(t)
	l.serve()
	name := l.name + "-op"
	l.want(name, v1alpha1.OperationReboot)
	l.awaitReported(name, "Running")
	l.stop()
	l.boot = "boot-2"
	l.serve()
	l.awaitReported(name, "Booted")
	l.eventually("it is noted as reported", func() bool {
		all := l.agent.Status().Operations
		return len(all) == 1 && all[0].Reported
	})
	lost := []byte(`[{"op":"remove","path":"/status"}]`)
	l.must(l.operations().Patch(t.Context(), name, types.JSONPatchType, lost, metav1.PatchOptions{}, "status"))
	l.module.Repeat()
	l.awaitReported(name, "Booted")
	if ran := l.hooks.runs(); !slices.Equal(ran, []string{"Reboot"}) {
		t.Errorf("hooks that ran: %v", ran)
	}
}

func TestModuleFromTheCloud(t *testing.T) {
	l := newLab(t)
	l.serve()
	name := l.name + "-op"
	first := l.want(name, v1alpha1.OperationDrain)
	o := l.awaitReported(name, "Drained")
	if o.Status.Phase != v1alpha1.DrainComplete || o.Status.CompletedAt == nil || o.Status.RequestedBy != "kubernetes-admin" {
		t.Errorf("its status: %+v", o.Status)
	}
	l.must(nil, l.operations().Delete(t.Context(), name, metav1.DeleteOptions{}))
	l.awaitCordon(false, false)

	// One of the same name is another one.
	if second := l.want(name, v1alpha1.OperationReboot); second == first {
		t.Fatal("it has the uid of the first")
	}
	l.awaitReported(name, "Running")
	if ran := l.hooks.runs(); !slices.Equal(ran, []string{"Reboot"}) {
		t.Errorf("hooks that ran: %v", ran)
	}
	l.stop()
	l.serve() // no operation is repeated
	l.awaitReported(name, "Running")
	l.stop()
	l.boot = "boot-2"
	l.serve()
	if s := l.awaitReported(name, "Booted").Status; s.BootIDBefore != "boot-1" || s.BootIDAfter != "boot-2" {
		t.Errorf("its status: %+v", s)
	}
	l.want(name+"-refused", v1alpha1.OperationShutdown)
	l.awaitReported(name+"-refused", "Refused")
	if ran := l.hooks.runs(); !slices.Equal(ran, []string{"Reboot"}) {
		t.Errorf("hooks that ran: %v", ran)
	}
}

func TestExamples(t *testing.T) {
	plane := cluster.Shared(t)
	l := newLab(t)
	l.applyKinds()
	plane.Apply(t, "manifests/examples/drain")
	for _, name := range []string{"edge-17-reboot", "edge-17-os-17", "edge-17-maintenance"} {
		if l.inCloud(name) == nil {
			t.Errorf("%s is not there", name)
		}
	}
}

func TestModuleFromTheDevice(t *testing.T) {
	l := newLab(t)
	l.cut.Store(true)
	l.serve()
	name := l.name + "-spot"
	l.must(nil, l.agent.Request(t.Context(), drain.Operation{
		Name: name, Request: "r", RequestedBy: v1alpha1.RequestedOnDevice, Spec: v1alpha1.NodeOperationSpec{Operation: v1alpha1.OperationDrain},
	}))
	l.await("it waits", func(s drain.State) bool { return strings.Contains(s.Drain.Message, "can't be reached") })
	if l.inCloud(name) != nil {
		t.Error("the cloud knows of it")
	}
	l.setLink(true)
	o := l.awaitReported(name, "Drained")
	if o.Spec.NodeName != l.name || o.Annotations[v1alpha1.RequestedByAnnotation] != "device" || o.Status.RequestedBy != "device" {
		t.Errorf("%+v", o)
	}
	l.must(nil, l.agent.Cancel(t.Context(), name))
	l.awaitCordon(false, false)
	l.must(nil, l.operations().Delete(t.Context(), name, metav1.DeleteOptions{}))
	l.await("it is noticed", func(s drain.State) bool { o := operation(s, name); return o == nil || o.Gone })
}

// Two operations of one name: the device's own was first. The other one reports that, and has its
// turn.
func TestModuleNameTaken(t *testing.T) {
	l := newLab(t)
	l.cut.Store(true)
	l.serve()
	name := l.name + "-op"
	l.must(nil, l.agent.Request(t.Context(), drain.Operation{
		Name: name, Request: "r", RequestedBy: v1alpha1.RequestedOnDevice, Spec: v1alpha1.NodeOperationSpec{Operation: v1alpha1.OperationDrain},
	}))
	l.want(name, v1alpha1.OperationReboot)
	l.setLink(true)
	o := l.awaitReported(name, "Waiting")
	if m := o.Status.Conditions[0].Message; !strings.Contains(m, "of this name already") {
		t.Errorf("it says %q", m)
	}
	l.awaitStage(name, drain.Done)
	l.must(nil, l.agent.Cancel(t.Context(), name))
	l.awaitReported(name, "Running")
	if ran := l.hooks.runs(); !slices.Equal(ran, []string{"Reboot"}) {
		t.Errorf("hooks that ran: %v", ran)
	}
}

// A module without input is idle, also after many events: its calls of the agent do not wake it
// again.
func TestModuleRests(t *testing.T) {
	l := newLab(t)
	l.serve()
	name := l.name + "-op"
	l.want(name, v1alpha1.OperationDrain)
	l.awaitReported(name, "Drained")
	l.must(nil, l.operations().Delete(t.Context(), name, metav1.DeleteOptions{}))
	l.awaitCordon(false, false)
	before := l.module.State().Syncs
	time.Sleep(time.Second)
	if n := l.module.State().Syncs - before; n > 20 {
		t.Errorf("it looked %d times in a second in which nothing happened", n)
	}
}

// A device whose store was lost repeats no operation, and leaves no unowned cordon.
func TestModuleWithoutItsStore(t *testing.T) {
	now := metav1.Now().Rfc3339Copy()
	ours := []byte(fmt.Sprintf(`{"metadata":{"annotations":{%q:"edgecore"}},"spec":{"unschedulable":true}}`, v1alpha1.CordonAnnotation))
	tests := map[string]struct {
		operation v1alpha1.OperationType
		status    v1alpha1.NodeOperationStatus
		reason    string // reported to the cloud; "" for no change
		cordoned  bool   // afterwards
	}{
		"an ended reboot":        {v1alpha1.OperationReboot, v1alpha1.NodeOperationStatus{BootIDBefore: "boot-0", BootIDAfter: "boot-1", CompletedAt: &now}, "", false},
		"a reboot that happened": {v1alpha1.OperationReboot, v1alpha1.NodeOperationStatus{BootIDBefore: "boot-0"}, "Booted", false},
		"a reboot half way":      {v1alpha1.OperationReboot, v1alpha1.NodeOperationStatus{BootIDBefore: "boot-1"}, "StateLost", false},
		"a drain that holds":     {v1alpha1.OperationDrain, v1alpha1.NodeOperationStatus{Phase: v1alpha1.DrainComplete, BootIDBefore: "boot-1", CompletedAt: &now}, "", true},
		"a drain of another boot": {
			v1alpha1.OperationDrain, v1alpha1.NodeOperationStatus{Phase: v1alpha1.DrainComplete, BootIDBefore: "boot-0", CompletedAt: &now}, "", false,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.applyKinds()
			name := l.name + "-op"
			l.must(l.admin.CoreV1().Nodes().Patch(t.Context(), l.name, types.MergePatchType, ours, metav1.PatchOptions{FieldManager: "edgecore-drain"}))
			l.want(name, tc.operation, tc.status)
			l.serve()
			l.await("it is known", func(s drain.State) bool { return operation(s, name) != nil })
			if tc.reason != "" {
				l.awaitReported(name, tc.reason)
			}
			if tc.cordoned {
				if o := operation(l.agent.Status(), name); o.Stage != drain.Done {
					t.Errorf("it is %s", o.Stage)
				}
				if cordoned, ours := l.cordon(); !cordoned || !ours {
					t.Errorf("cordoned: %t, by us: %t", cordoned, ours)
				}
				l.must(nil, l.operations().Delete(t.Context(), name, metav1.DeleteOptions{}))
			}
			l.awaitCordon(false, false)
			if ran := l.hooks.runs(); len(ran) > 0 {
				t.Errorf("hooks ran: %v", ran)
			}
		})
	}
}
