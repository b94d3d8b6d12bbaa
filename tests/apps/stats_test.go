package apps_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const statsNamespace = "skerry-system"

func (s *system) infos() dynamic.ResourceInterface {
	return s.dynamic.Resource(v1alpha1.Resource(v1alpha1.ClusterInfos))
}

// publish makes the ClusterInfo, until the test ends.
func (s *system) publish(spec string) {
	s.T.Helper()
	s.T.Cleanup(func() {
		if err := s.infos().Delete(context.Background(), v1alpha1.ClusterInfoName, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			s.T.Error(err)
		}
		s.WaitForIn(context.Background(), "the Lease to be given back", func(ctx context.Context) error {
			if l, err := s.lease(ctx); err != nil || holderOf(l) != "" {
				return fmt.Errorf("it is held by %q, %v", holderOf(l), err)
			}
			return nil
		})
	})
	s.WaitFor("the ClusterInfo to be made", func(ctx context.Context) error {
		_, err := s.infos().Create(ctx, s.object("apiVersion: skerry.io/v1alpha1\nkind: ClusterInfo\nmetadata: {name: cluster}\nspec: "+spec+"\n"), metav1.CreateOptions{})
		return err
	})
}

func (s *system) specify(spec string) {
	s.T.Helper()
	_, err := s.infos().Patch(s.T.Context(), v1alpha1.ClusterInfoName, types.MergePatchType, []byte(`{"spec":`+spec+`}`), metav1.PatchOptions{})
	s.Check(err)
}

func (s *system) lease(ctx context.Context) (*coordinationv1.Lease, error) {
	return s.Client.CoordinationV1().Leases(statsNamespace).Get(ctx, v1alpha1.StatsLeaderLease, metav1.GetOptions{})
}

func holderOf(l *coordinationv1.Lease) string {
	if l == nil || l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// waitInfo waits until the ClusterInfo satisfies is.
func (s *system) waitInfo(what string, is func(*v1alpha1.ClusterInfo) bool) *v1alpha1.ClusterInfo {
	s.T.Helper()
	info := &v1alpha1.ClusterInfo{}
	s.WaitFor("the ClusterInfo "+what, func(ctx context.Context) error {
		u, err := s.infos().Get(ctx, v1alpha1.ClusterInfoName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		info = &v1alpha1.ClusterInfo{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, info); err != nil {
			return err
		}
		if !is(info) {
			return fmt.Errorf("it is %+v", info.Status)
		}
		return nil
	})
	return info
}

func currentOf(info *v1alpha1.ClusterInfo) metav1.Condition {
	if c := meta.FindStatusCondition(info.Status.Conditions, v1alpha1.ClusterInfoCurrent); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// published waits for a reporter, other than some.
func (s *system) published(other ...string) *v1alpha1.ClusterInfo {
	s.T.Helper()
	return s.waitInfo("to be published", func(i *v1alpha1.ClusterInfo) bool {
		return i.Status.Reporter != "" && !slices.Contains(other, i.Status.Reporter) && currentOf(i).Status == metav1.ConditionTrue && len(i.Status.Nodes) > 0
	})
}

// election follows the leaders by their own status, and every version of the Lease and of the
// ClusterInfo.
type election struct {
	mu     sync.Mutex
	leases []*coordinationv1.Lease
	pages  []string // the reporters of the versions
	both   []string // where two devices lead at once
	failed error
}

// leads asks a device whether it is leader. One that does not answer is not.
func (s *system) leads(ctx context.Context, node string) (leading bool, renewed time.Time) {
	d, err := s.deviceStatus(ctx, node)
	if err != nil {
		return false, renewed
	}
	return d.ClusterStats.Leading, d.ClusterStats.Renewed
}

func (s *system) elect() *election {
	s.T.Helper()
	e := &election{}
	ctx, stop := context.WithCancel(context.Background())
	leases, err := s.Client.CoordinationV1().Leases(statsNamespace).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + v1alpha1.StatsLeaderLease, ResourceVersion: "0"})
	s.Check(err)
	pages, err := s.infos().Watch(ctx, metav1.ListOptions{ResourceVersion: "0"})
	s.Check(err)
	var all sync.WaitGroup
	all.Go(func() {
		for event := range leases.ResultChan() {
			if l, ok := event.Object.(*coordinationv1.Lease); ok {
				e.mu.Lock()
				e.leases = append(e.leases, l)
				e.mu.Unlock()
			}
		}
		e.ended(ctx)
	})
	all.Go(func() {
		for event := range pages.ResultChan() {
			if u, ok := event.Object.(*unstructured.Unstructured); ok {
				reporter, _, err := unstructured.NestedString(u.Object, "status", "reporter")
				e.mu.Lock()
				e.pages = append(e.pages, reporter)
				e.failed = errors.Join(e.failed, err)
				e.mu.Unlock()
			}
		}
		e.ended(ctx)
	})
	all.Go(func() {
		for ctx.Err() == nil {
			var leading []string
			for _, n := range options().Nodes() {
				if is, _ := s.leads(ctx, n.Name); is {
					leading = append(leading, n.Name)
				}
			}
			if len(leading) > 1 {
				e.mu.Lock()
				e.both = append(e.both, strings.Join(leading, "+"))
				e.mu.Unlock()
			}
			select {
			case <-ctx.Done():
			case <-time.After(500 * time.Millisecond):
			}
		}
	})
	s.T.Cleanup(func() { stop(); all.Wait() })
	return e
}

func (e *election) ended(ctx context.Context) {
	if ctx.Err() == nil {
		e.mu.Lock()
		e.failed = errors.Join(e.failed, errors.New("a watch ended before the test"))
		e.mu.Unlock()
	}
}

// check reports violations: two leaders, a holder before the last one's time was over or given
// back, a reporter that never held the Lease.
func (e *election) check(t *testing.T) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failed != nil || len(e.both) > 0 {
		t.Errorf("%v; led at once: %v", e.failed, e.both)
	}
	held := map[string]bool{"": true}
	var last *coordinationv1.Lease
	for _, l := range e.leases {
		held[holderOf(l)] = true
		if last != nil && holderOf(last) != "" && holderOf(l) != "" && holderOf(l) != holderOf(last) {
			until := last.Spec.RenewTime.Add(time.Duration(*last.Spec.LeaseDurationSeconds) * time.Second)
			if l.Spec.AcquireTime.Time.Before(until) {
				t.Errorf("%s has the Lease from %s on, which is %s's until %s", holderOf(l), l.Spec.AcquireTime, holderOf(last), until)
			}
		}
		last = l
	}
	for _, reporter := range e.pages {
		if !held[reporter] {
			t.Errorf("%s reported, and never held the Lease", reporter)
		}
	}
}

// TestCluster_01: of three candidates one holds the Lease of the reporter of the cluster's
// statistics. It is killed: another one takes its place once its time is over. Never do two lead,
// by their own status, and only the holder of the Lease publishes.
func TestCluster_01_OneReporterAtATime(t *testing.T) {
	s := newSystem(t)
	s.publish("{interval: 5s}")
	e := s.elect()
	first := s.published().Status.Reporter
	l, err := s.lease(t.Context())
	s.Check(err)
	if holderOf(l) != first {
		t.Errorf("%s holds the Lease, %s reports", holderOf(l), first)
	}
	for _, n := range options().Nodes() {
		s.WaitFor(n.Name+" to know whether it leads", func(ctx context.Context) error {
			if is, _ := s.leads(ctx, n.Name); is != (n.Name == first) {
				return fmt.Errorf("leads: %v", is)
			}
			return nil
		})
	}
	s.Kill(first, "edgecore")
	second := s.published(first).Status.Reporter
	s.Start(first, "edgecore")
	s.WaitFor("the killed one to be a candidate again, and not leader", func(ctx context.Context) error {
		d, err := s.deviceStatus(ctx, first)
		if err == nil && (!d.ClusterStats.Candidate || d.ClusterStats.Leader != second) {
			err = fmt.Errorf("it says %+v", d.ClusterStats)
		}
		return err
	})
	e.check(t)
}

// TestCluster_02: the leader loses its configuration: it gives the Lease back, and another one
// takes it without waiting for its end. All lose it: the Lease has no holder, and the published
// statistics are withdrawn.
func TestCluster_02_LeaderWithoutConfigurationGivesTheLeaseBack(t *testing.T) {
	s := newSystem(t)
	for _, n := range options().Nodes() {
		s.patchNode(n.Name, `{"metadata":{"labels":{"test.skerry.io/reports":"yes"}}}`)
	}
	t.Cleanup(func() {
		if out, err := s.Run(context.Background(), "kubectl", "label", "nodes", "--all", "test.skerry.io/reports-"); err != nil {
			t.Error(out, err)
		}
	})
	s.publish("{interval: 5s, nodeSelector: {test.skerry.io/reports: \"yes\"}}")
	e := s.elect()
	first := s.published().Status.Reporter
	s.patchNode(first, `{"metadata":{"labels":{"test.skerry.io/reports":null}}}`)
	second := s.published(first).Status.Reporter
	released := func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		for i, l := range e.leases {
			if i > 0 && holderOf(e.leases[i-1]) == first && holderOf(l) == "" {
				return true
			}
		}
		return false
	}
	s.WaitFor("the Lease to have been given back", func(context.Context) error { // the watch may be behind
		if !released() {
			return fmt.Errorf("%s has not given it back to %s", first, second)
		}
		return nil
	})
	s.specify(`{"nodeSelector":{"test.skerry.io/reports":"no"}}`)
	info := s.waitInfo("to be withdrawn", func(i *v1alpha1.ClusterInfo) bool { return i.Status.Reporter == "" })
	if c := currentOf(info); c.Status != metav1.ConditionFalse || len(info.Status.Nodes) > 0 || info.Status.Storage != nil {
		t.Errorf("withdrawn is %+v", info.Status)
	}
	s.WaitFor("the Lease to be without a holder", func(ctx context.Context) error {
		l, err := s.lease(ctx)
		if err == nil && holderOf(l) != "" {
			err = fmt.Errorf("%s has it", holderOf(l))
		}
		return err
	})
	for _, n := range options().Nodes() {
		if is, _ := s.leads(t.Context(), n.Name); is {
			t.Errorf("%s leads without a configuration", n.Name)
		}
	}
	e.check(t)
}

// TestCluster_03: the leader is cut off, and no other device is a candidate. It stops leading
// before its time in the cloud is over; the cloud keeps the published statistics, with their time,
// and publishes no newer ones. The leader returns, and reports again.
func TestCluster_03_LeaderOfflineStopsPublishing(t *testing.T) {
	s := newSystem(t)
	s.publish("{interval: 2s, nodeSelector: {kubernetes.io/hostname: edge2}}")
	e := s.elect()
	s.published()
	s.Cut("edge2")
	var last time.Time
	s.WaitFor("the leader to be silent", func(ctx context.Context) error {
		at := time.Now()
		is, renewed := s.leads(ctx, "edge2")
		last = renewed
		if is && at.After(renewed.Add(12*time.Second)) {
			t.Errorf("it leads at %s, and was renewed at %s for 12 s", at, renewed)
		}
		if is {
			return errNot
		}
		return nil
	})
	info := s.waitInfo("to be of an earlier time", func(i *v1alpha1.ClusterInfo) bool { return currentOf(i).Status == metav1.ConditionFalse })
	c, of := currentOf(info), info.Status.CollectTime
	if c.Reason != "LeaderSilent" || !strings.Contains(c.Message, "edge2") || of == nil || !strings.Contains(c.Message, of.UTC().Format(time.RFC3339)) ||
		info.Status.Reporter != "" || len(info.Status.Nodes) == 0 {
		t.Errorf("the cloud shows %+v", info.Status)
	}
	if l, err := s.lease(t.Context()); err != nil || l.Spec.RenewTime.Time.Before(last.Add(-time.Second)) {
		t.Errorf("the device renewed at %s, the cloud says %+v, %v", last, l.Spec, err)
	}
	s.lasts("nothing newer is published", 5*time.Second, func() error {
		u, err := s.infos().Get(t.Context(), v1alpha1.ClusterInfoName, metav1.GetOptions{})
		if err == nil && u.GetResourceVersion() != info.ResourceVersion {
			err = fmt.Errorf("there is %v", u.Object["status"])
		}
		return err
	})
	s.Heal("edge2")
	again := s.published().Status.CollectTime
	if !of.Before(again) {
		t.Errorf("collected at %s and, after the return, at %s", of, again)
	}
	e.check(t)
}

const kubevirtCRD = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: virtualmachineinstances.kubevirt.io}
spec:
  group: kubevirt.io
  scope: Namespaced
  names: {plural: virtualmachineinstances, singular: virtualmachineinstance, kind: VirtualMachineInstance, shortNames: [vmi]}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
    additionalPrinterColumns:
    - {name: Phase, type: string, jsonPath: .status.phase}
    - {name: NodeName, type: string, jsonPath: .status.nodeName}
`

// TestCluster_16: the ClusterInfo agrees with kubectl's output for nodes, applications' pods,
// virtual machines and the pods of each namespace; storage is Unsupported without Longhorn, and
// then in the state of Longhorn's volumes. KubeVirt's and Longhorn's kinds are installed, and their
// statuses are simulated.
func TestCluster_16_ClusterInfoAgreesWithKubectl(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.create(ns, appYAML("counted", "edge1"))
	s.waitOn(ns, "counted", "edge1")
	s.Kubectl("cordon", "edge3")
	t.Cleanup(func() {
		if out, err := s.Run(context.Background(), "kubectl", "uncordon", "edge3"); err != nil {
			t.Error(out, err)
		}
	})
	s.publish("{interval: 2s}")
	if got := s.published().Status.Storage; got == nil || got.Health != v1alpha1.StorageUnsupported {
		t.Errorf("storage without Longhorn is %+v", got)
	}
	s.longhorn(ns)
	s.Apply(ns, kubevirtCRD)
	t.Cleanup(func() {
		if out, err := s.Run(context.Background(), "kubectl", "delete", "crd", "virtualmachineinstances.kubevirt.io", "--wait=false"); err != nil {
			t.Error(out, err)
		}
	})
	s.WaitFor("a virtual machine", func(ctx context.Context) error {
		_, err := s.Run(ctx, "kubectl", "get", "vmi", "-n", ns)
		return err
	})
	s.Apply(ns, `apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: windows}
status: {phase: Running, nodeName: edge2, conditions: [{type: Ready, status: "True"}]}
---
apiVersion: longhorn.io/v1beta2
kind: Volume
metadata: {name: one}
status: {state: attached, robustness: healthy, currentNodeID: edge1}
---
apiVersion: longhorn.io/v1beta2
kind: Volume
metadata: {name: two}
status: {state: attached, robustness: degraded, currentNodeID: edge2}
`)
	s.WaitFor("the ClusterInfo to agree with kubectl", func(ctx context.Context) error { return s.agrees(ctx, ns) })
	s.Kubectl("patch", "volumes.longhorn.io", "-n", ns, "two", "--type=merge", "-p", `{"status":{"robustness":"faulted"}}`)
	s.waitInfo("to say that storage is faulted", func(i *v1alpha1.ClusterInfo) bool { return i.Status.Storage.Health == v1alpha1.StorageFaulted })
	s.Kubectl("get", "clusterinfos")
}

// agrees compares the ClusterInfo with kubectl's tables.
func (s *system) agrees(ctx context.Context, ns string) error {
	u, err := s.infos().Get(ctx, v1alpha1.ClusterInfoName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	info := &v1alpha1.ClusterInfo{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, info); err != nil {
		return err
	}
	var have, want []string
	for _, n := range info.Status.Nodes {
		status, roles, ip := n.Status, strings.Join(n.Roles, ","), ""
		if !n.Schedulable {
			status += ",SchedulingDisabled"
		}
		if roles == "" {
			roles = "<none>"
		}
		for _, a := range n.Addresses {
			if a.Type == "InternalIP" && ip == "" {
				ip = a.Address
			}
		}
		have = append(have, fmt.Sprintf("node %s %s %s %s %s %s", n.Name, status, roles, n.KubeletVersion, ip, n.ContainerRuntimeVersion))
		if n.LastTransition == nil || n.KernelVersion == "" || n.OSImage == "" {
			return fmt.Errorf("node %+v lacks something", n)
		}
	}
	for _, p := range info.Status.Pods {
		if p.Namespace == ns {
			have = append(have, fmt.Sprintf("pod %s %s %d %s", p.Name, p.State, p.Restarts, p.Node))
		}
	}
	for _, v := range info.Status.VMs {
		have = append(have, fmt.Sprintf("vm %s %s %s", v.Name, v.State, v.Node))
	}
	for _, n := range info.Status.Namespaces {
		have = append(have, fmt.Sprintf("namespace %s %d", n.Name, n.Pods))
	}
	if st := info.Status.Storage; st == nil || st.Health != v1alpha1.StorageDegraded || len(st.Volumes) != 2 {
		return fmt.Errorf("storage is %+v", st)
	}
	table := func(args ...string) (rows [][]string, err error) {
		out, err := s.Run(ctx, append([]string{"kubectl"}, append(args, "--no-headers")...)...)
		for line := range strings.Lines(out) {
			rows = append(rows, strings.Fields(line))
		}
		return rows, err
	}
	nodes, err := table("get", "nodes", "-o", "wide")
	if err != nil {
		return err
	}
	for _, r := range nodes { // NAME STATUS ROLES AGE VERSION INTERNAL-IP ... CONTAINER-RUNTIME
		want = append(want, fmt.Sprintf("node %s %s %s %s %s %s", r[0], r[1], r[2], r[4], r[5], r[len(r)-1]))
	}
	pods, err := table("get", "pods", "-A", "-o", "wide")
	if err != nil {
		return err
	}
	count := map[string]int{}
	for _, r := range pods { // NAMESPACE NAME READY STATUS RESTARTS AGE IP NODE
		count[r[0]]++
		if r[0] == ns {
			want = append(want, fmt.Sprintf("pod %s %s %s %s", r[1], r[3], r[4], r[7]))
		}
	}
	for name, n := range count {
		want = append(want, fmt.Sprintf("namespace %s %d", name, n))
	}
	vms, err := table("get", "vmi", "-A")
	if err != nil {
		return err
	}
	for _, r := range vms { // NAMESPACE NAME PHASE NODENAME
		want = append(want, fmt.Sprintf("vm %s %s %s", r[1], r[2], r[3]))
	}
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		return fmt.Errorf("the ClusterInfo says\n%s\nkubectl says\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
	return nil
}
