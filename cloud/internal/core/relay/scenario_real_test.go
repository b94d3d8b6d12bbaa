package relay_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/core/relay"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/edges"
	"github.com/skerry-io/skerry/tests/cluster/faultproxy"
)

// Scenario 16 of the order campaign, at a real kube-apiserver behind a way that takes its time and
// fails now and then: the events about each pod are created in the order in which they happened,
// though eight are written at a time.
func TestOrder_16_EventsOfOnePodKeepTheirOrder(t *testing.T) {
	r := newReplicas(t)
	const pods, events = 12, 30
	var all []*corev1.Pod
	for i := range pods {
		all = append(all, r.pod(fmt.Sprintf("pod%02d", i)))
	}
	r.proxy.Set(func(q *http.Request) (f faultproxy.Fault) {
		if q.Method == http.MethodPost && strings.HasSuffix(q.URL.Path, "/events") {
			f.Delay = rand.N(40 * time.Millisecond)
			if rand.N(20) == 0 {
				f.Code = http.StatusInternalServerError
			}
		}
		return f
	})
	e := r.connect(0)
	var id uint64
	var happened []string
	for n := range events {
		for _, p := range all {
			id++
			name := fmt.Sprintf("%s.%03d", p.Name, n)
			happened = append(happened, name)
			e.send(r.event(id, topicpb.Verb_CREATE, name, p, 1))
		}
	}
	for i := range id {
		e.accepted(t, i+1)
	}

	list, err := r.admin.CoreV1().Events(r.ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(list.Items, func(a, b corev1.Event) int {
		return int(revision(t, a.ResourceVersion)) - int(revision(t, b.ResourceVersion))
	})
	var created []string
	for _, e := range list.Items {
		if strings.HasPrefix(e.Name, "pod") {
			created = append(created, e.Name)
		}
	}
	if len(created) != len(happened) {
		t.Fatalf("%d events were created, want %d", len(created), len(happened))
	}
	for _, p := range all {
		others := func(name string) bool { return !strings.HasPrefix(name, p.Name+".") }
		want, got := slices.DeleteFunc(slices.Clone(happened), others), slices.DeleteFunc(slices.Clone(created), others)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("the events about %s (-happened +created)\n%s", p.Name, d)
		}
	}
	if slices.Equal(created, happened) {
		t.Error("those of different pods came in order as well: never two were written at once, and the test shows nothing")
	}
}

func revision(t *testing.T, version string) uint64 {
	t.Helper()
	v, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Scenario 11 of the order campaign: a hundred nodes' reads are never answered. Another node of
// the same replica has its Lease renewed and its writes made, and the others' Leases come once
// they are answered.
func TestOrder_11_HungReadsHoldUpNoOtherNode(t *testing.T) {
	t.Parallel() // it mostly waits
	r := newReplicas(t)
	if err := edges.Allow(t.Context(), r.admin, "hung0", "hung99"); err != nil {
		t.Fatal(err)
	}
	r.relay[0].relay.HideAddresses()
	r.proxy.Set(func(q *http.Request) faultproxy.Fault {
		return faultproxy.Fault{Hang: q.Method == http.MethodGet && strings.Contains(q.URL.Path, "/hung")}
	})
	heartbeat := topic.Heartbeat.New(message.Resource{}, &topicpb.Heartbeat{KubeletAlive: true})
	var hung []*edge
	for i := range 100 {
		e := r.relay[0].open(types.NodeName(fmt.Sprint("hung", i)), 1)
		e.send(heartbeat)
		hung = append(hung, e)
	}
	p := r.pod("pod")
	e := r.connect(0)
	renewed := func(node string) func(context.Context) error {
		var last time.Time
		return func(ctx context.Context) error {
			e.send(heartbeat)
			l, err := r.admin.CoordinationV1().Leases("kube-node-lease").Get(ctx, node, metav1.GetOptions{})
			switch {
			case err != nil:
				return err
			case last.IsZero():
				last = l.Spec.RenewTime.Time
				return fmt.Errorf("renewed at %v", last)
			case !l.Spec.RenewTime.After(last):
				return fmt.Errorf("not renewed since %v", last)
			}
			last = l.Spec.RenewTime.Time
			return nil
		}
	}
	again := renewed("edge1")
	for n := range 2 {
		cluster.Eventually(t, fmt.Sprintf("renewal %d", n+1), again)
		e.send(r.status(uint64(2*n+1), p, n, ""))
		e.send(r.event(uint64(2*n+2), topicpb.Verb_CREATE, fmt.Sprint("pod.", n), p, 1))
		e.accepted(t, uint64(2*n+1))
		e.accepted(t, uint64(2*n+2))
	}
	r.proxy.Set(nil)
	for _, i := range []int{0, 99} {
		cluster.Eventually(t, fmt.Sprintf("the Lease of hung%d", i), func(ctx context.Context) error {
			_, err := r.admin.CoordinationV1().Leases("kube-node-lease").Get(ctx, fmt.Sprint("hung", i), metav1.GetOptions{})
			return err
		})
	}
	for _, h := range hung {
		h.cancel()
		<-h.ended
	}
}

// Scenario 8 of the order campaign: kube-apiserver is killed and away for longer than a 403 takes
// to become final. When it is back its authorization comes late, in both ways that a write meets:
// cloudcore may not act as nodes (RBAC), and then nodes' writes are forbidden (an admission policy,
// since the Node authorizer allows nodes to write events from its start). No write is refused.
func TestOrder_08_ALateAuthorizerRefusesNothing(t *testing.T) {
	t.Parallel() // it mostly waits
	audit := filepath.Join(t.TempDir(), "audit.log")
	plane := cluster.Own(t, "--audit="+audit)
	plane.Apply(t, "manifests/cloudcore")
	plane.AddNode(t, "edge1")
	client, err := kube.NewClient(plane.ServiceAccount(t, "skerry-system", "cloudcore"), kube.Constrained)
	if err != nil {
		t.Fatal(err)
	}
	informers := kube.NewInformers(client)
	known := relay.NewPods(informers)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return informers.Run(ctx) })
	g.Go(func() error { return known.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
	r := &replicas{t: t, admin: plane.Client(), ns: plane.Namespace(t), relay: [2]*system{{t: t, relay: relay.New(client, known, "cloudcore-1")}}}
	p := r.pod("pod")
	e := r.connect(0)
	e.send(r.event(1, topicpb.Verb_CREATE, "pod.1", p, 1))
	e.accepted(t, 1)

	acts := r.withoutBinding(t)
	policy := r.forbidNodes(t)
	if err := plane.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	e.send(r.event(2, topicpb.Verb_CREATE, "pod.2", p, 1))
	e.send(r.event(3, topicpb.Verb_PATCH, "pod.1", p, 7))
	e.send(r.status(4, p, 4, ""))
	time.Sleep(32 * time.Second) // a refusal is believed after 30 s
	if err := plane.Start(ctx); err != nil {
		t.Fatal(err)
	}
	forbidden := func(as string) func(context.Context) error {
		return func(context.Context) error {
			found := cluster.ReadAudit(t, audit, func(q cluster.Request) bool {
				return q.Write() && q.ResponseStatus.Code == http.StatusForbidden && q.ImpersonatedUser.Username == as && q.ObjectRef.Namespace == r.ns
			})
			if len(found) < 3 {
				return fmt.Errorf("%d writes were forbidden", len(found))
			}
			return nil
		}
	}
	cluster.Eventually(t, "cloudcore may not act as a node", forbidden(""))
	acts()
	cluster.Eventually(t, "the node may not write", forbidden("system:node:edge1"))
	policy()
	for id := range uint64(3) {
		e.accepted(t, id+2)
	}
	r.happened(t, "pod.2", 1)
	r.happened(t, "pod.1", 7)
	r.checkMessage(t, p, "4")
}

// withoutBinding removes cloudcore's right to act as nodes; restore gives it back.
func (r *replicas) withoutBinding(t *testing.T) (restore func()) {
	t.Helper()
	bindings := r.admin.RbacV1().ClusterRoleBindings()
	list, err := bindings.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var taken []rbacv1.ClusterRoleBinding
	for _, b := range list.Items {
		if b.RoleRef.Name != "skerry:cloudcore-edges" {
			continue
		}
		if err := bindings.Delete(t.Context(), b.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		b.ResourceVersion, b.UID = "", ""
		taken = append(taken, b)
	}
	if len(taken) == 0 {
		t.Fatal("no binding lets cloudcore act as nodes")
	}
	return func() {
		for _, b := range taken {
			if _, err := bindings.Create(t.Context(), &b, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// forbidNodes has kube-apiserver answer 403 to nodes' writes about pods, until restore is called.
func (r *replicas) forbidNodes(t *testing.T) (restore func()) {
	t.Helper()
	policies, bindings := r.admin.AdmissionregistrationV1().ValidatingAdmissionPolicies(), r.admin.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	forbidden := metav1.StatusReasonForbidden
	rule := admissionv1.NamedRuleWithOperations{RuleWithOperations: admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
		Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"events", "pods/status"}},
	}}
	meta := metav1.ObjectMeta{Name: "late-authorizer"}
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{rule}},
		Validations:      []admissionv1.Validation{{Expression: `!request.userInfo.username.startsWith("system:node:")`, Reason: &forbidden}},
	}}
	if _, err := policies.Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: meta.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}}
	if _, err := bindings.Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := bindings.Delete(t.Context(), meta.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := policies.Delete(t.Context(), meta.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}
