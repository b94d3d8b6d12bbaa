package publish_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/tests/cluster/faultproxy"
	"github.com/skerry-io/skerry/tests/cluster/poll"
)

// allowSecrets lets a node have the Secrets of a namespace, whatever its pods need, by RBAC; revoke
// removes that right.
func (r *system) allowSecrets(t *testing.T, ns, node string) (revoke func()) {
	t.Helper()
	bindings := r.admin.RbacV1().RoleBindings(ns)
	_, err := bindings.Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: node},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "secret-reader"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "system:node:" + node}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := bindings.Delete(t.Context(), node, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// Scenario 9 of the order campaign, with the real authorizers: two nodes that hold Secrets come to
// another replica, whose cache has no permissions, when kube-apiserver refuses these Secrets. For
// one node the refusal ends after 20 s: its Secrets stay. For the other it does not: its Secrets
// are deleted. Each has one Secret that is watched as itself, so that the watch is refused, and one
// whose watch was opened as a third node, so that a review refuses it.
func TestOrder_09_RefusalsMustLast(t *testing.T) {
	t.Parallel() // it mostly waits
	r := newSystem(t)
	ns := r.plane.Namespace(t)
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "secret-reader"}, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get", "list", "watch"},
	}}}
	if _, err := r.admin.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	of := func(id uint64, name string) *topicpb.Interest {
		return &topicpb.Interest{Id: id, Resource: resource(kube.Secrets), Namespace: ns, FieldSelector: "metadata.name=" + name}
	}
	interests := map[string][]*topicpb.Interest{
		"edge1": {of(1, "alone-edge1"), of(2, "shared")}, "edge2": {of(1, "alone-edge2"), of(2, "shared")}, "edge3": {of(1, "alone-edge3"), of(2, "shared")},
	}
	revoke, edges := map[string]func(){}, map[string]*edge{}
	r.secret(t, ns, "shared", "v1")
	for _, node := range []string{"edge3", "edge1", "edge2"} {
		r.plane.AddNode(t, node)
		r.secret(t, ns, "alone-"+node, "v1")
		revoke[node] = r.allowSecrets(t, ns, node)
		e := r.edge(t, node)
		e.connect(r.publisher, interests[node]...)
		poll.True(t, node+" holds its Secrets", func() bool {
			return e.isSynced(1, 2) && e.holds("secrets", "shared") && e.holds("secrets", "alone-"+node)
		})
		edges[node] = e
	}
	short, long, third := edges["edge1"], edges["edge2"], edges["edge3"]
	for _, e := range edges {
		e.disconnect()
	}
	revoke["edge1"]()
	revoke["edge2"]()
	b := r.replica(t)
	third.connect(b.publisher, interests["edge3"]...)
	poll.True(t, "edge3 is at the other replica", func() bool { return third.isSynced(1, 2) })
	for _, e := range []*edge{short, long} {
		e.connect(b.publisher, interests[string(e.Name)]...)
	}
	time.Sleep(20 * time.Second) // of the scenario's words
	for _, e := range []*edge{short, long} {
		if e.isSynced(1) || e.isSynced(2) || !e.holds("secrets", "shared") || !e.holds("secrets", "alone-"+string(e.Name)) {
			t.Errorf("%s after 20 s: %v", e.Name, e.takeLog())
		}
	}
	r.allowSecrets(t, ns, "edge1")
	poll.True(t, "what was allowed again is synced", func() bool { return short.isSynced(1, 2) })
	poll.True(t, "what is refused for long goes", func() bool {
		return long.refusal(1) == "Forbidden" && long.refusal(2) == "Forbidden" && len(long.names(kube.Secrets)) == 0
	})
	if log := short.takeLog(); slices.ContainsFunc(log, func(line string) bool { return strings.HasPrefix(line, "-secrets/") }) {
		t.Errorf("edge1 lost a Secret by a refusal of 20 s: %v", log)
	}
	if len(short.refusals()) > 0 || !third.holds("secrets", "shared") {
		t.Errorf("edge1 was refused %v; edge3 holds %v", short.refusals(), third.names(kube.Secrets))
	}
	r.secret(t, ns, "shared", "v2")
	for _, e := range []*edge{short, third} {
		poll.True(t, fmt.Sprintf("a change comes to %s", e.Name), func() bool {
			s, err := r.admin.CoreV1().Secrets(ns).Get(t.Context(), "shared", metav1.GetOptions{})
			return err == nil && e.version(kube.Secrets, ns, "shared") == s.ResourceVersion
		})
	}
	for _, e := range edges {
		e.disconnect()
	}
}

// Scenario 11 of the order campaign, on the way down: seventy reads of the dependencies of one
// node's pods are never answered. The other node's pod is sent with its dependencies, and the first
// one's are sent once reads are answered again.
func TestOrder_11_HungReadsHoldUpNoOtherNode(t *testing.T) {
	t.Parallel() // it mostly waits
	a := newSystem(t)
	b, proxy := a.behind(t)
	ns := a.plane.Namespace(t)
	hung, other := a.edge(t, "edge1"), a.edge(t, "edge2")
	for _, e := range []*edge{hung, other} {
		a.plane.AddNode(t, string(e.Name))
	}
	a.configMap(t, ns, "config", "v1")
	a.secret(t, ns, "secret", "v1")
	proxy.Set(func(q *http.Request) faultproxy.Fault {
		return faultproxy.Fault{Hang: strings.Contains(q.URL.RequestURI(), "absent") && q.URL.Query().Get("watch") == ""}
	})
	const pods = 70 // more than 64, which cloudcore reads at once
	for i := range pods {
		a.pod(t, ns, fmt.Sprint("hung-", i), "edge1", fmt.Sprint("absent-", i), "secret")
	}
	hung.connect(b.publisher, podsOf(1, "edge1"), dependencies(2))
	other.connect(b.publisher, podsOf(1, "edge2"), dependencies(2))
	poll.True(t, "edge2 is synced", func() bool { return other.isSynced(1, 2) })
	a.pod(t, ns, "pod", "edge2", "config", "secret")
	poll.True(t, "edge2's pod comes", func() bool {
		return other.holds("pods", "pod") && other.holds("configmaps", "config") && other.holds("secrets", "secret")
	})
	if n := len(hung.names(kube.Pods)); n == pods || hung.isSynced(1) {
		t.Errorf("edge1 has %d pods: their reads were answered, and the test shows nothing", n)
	}
	proxy.Set(nil)
	poll.True(t, "edge1's pods come", func() bool { return hung.isSynced(1, 2) && len(hung.names(kube.Pods)) == pods })
	hung.disconnect()
	other.disconnect()
}
