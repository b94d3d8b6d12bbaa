package kube_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/tests/cluster"
)

// reviews counts the SubjectAccessReviews of a client.
type reviews struct {
	http.RoundTripper
	n *atomic.Int64
}

func (r reviews) RoundTrip(q *http.Request) (*http.Response, error) {
	if strings.HasSuffix(q.URL.Path, "/subjectaccessreviews") {
		r.n.Add(1)
	}
	return r.RoundTripper.RoundTrip(q)
}

// system is cloudcore's Access at a real kube-apiserver, with the rights of its manifests, next to
// reviews of an administrator.
type system struct {
	plane  *cluster.ControlPlane
	access *kube.Access // that is shared
	direct *kube.Access
	asked  *atomic.Int64

	cloudcore kubernetes.Interface
}

func newSystem(t *testing.T) *system {
	t.Helper()
	r := &system{plane: cluster.Run(t), asked: new(atomic.Int64)}
	r.plane.Apply(t, "manifests/crds")
	r.plane.Apply(t, "manifests/cloudcore")
	client := func(config *rest.Config) *kube.Client {
		c, err := kube.NewClient(config, kube.Constrained)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	config := r.plane.ServiceAccount(t, "skerry-system", "cloudcore")
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return reviews{rt, r.asked} })
	r.cloudcore = client(config).Kubernetes()
	r.access = r.fresh(t)
	r.direct = kube.NewAccess(client(r.plane.Admin()).Kubernetes())
	return r
}

// fresh is cloudcore's Access with an empty cache.
func (r *system) fresh(t *testing.T) *kube.Access {
	t.Helper()
	access := kube.NewAccess(r.cloudcore)
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return access.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
	return access
}

// questions are every resource that kube-apiserver serves x the watches of a device x the node they
// are about.
func (r *system) questions(t *testing.T, node, other string) (all []kube.Attributes) {
	t.Helper()
	client, err := discovery.NewDiscoveryClientForConfig(r.plane.Admin())
	if err != nil {
		t.Fatal(err)
	}
	lists, err := client.ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	one := func(field, value string) fields.Selector { return fields.OneTermEqualSelector(field, value) }
	label, err := labels.Parse("a=b")
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range list.APIResources {
			at := kube.Attributes{Resource: gv.WithResource(kind.Name)}
			for _, verb := range []string{"get", "list"} { // the rules of a watch are those of a list
				if !slices.Contains(kind.Verbs, verb) {
					continue
				}
				at.Verb = verb
				for _, narrow := range []kube.Attributes{
					{}, {Name: node, Fields: one("metadata.name", node)}, {Name: other, Fields: one("metadata.name", other)}, {Name: "no-such"},
					{Fields: one("spec.nodeName", node)}, {Fields: one("spec.nodeName", other)}, {Fields: fields.OneTermNotEqualSelector("spec.nodeName", other), Labels: label},
				} {
					q := at
					q.Name, q.Fields, q.Labels = narrow.Name, narrow.Fields, narrow.Labels
					all = append(all, q)
					if kind.Namespaced && q.Name == "" && q.Labels == nil {
						q.Namespace = "default"
						all = append(all, q)
					}
				}
			}
		}
	}
	return all
}

// agree asks everything of a node in both ways.
func (r *system) agree(t *testing.T, node, other string) {
	t.Helper()
	questions := r.questions(t, node, other)
	allowed, before := 0, r.asked.Load()
	for _, q := range questions {
		shared, err := r.access.Allowed(t.Context(), types.NodeName(node), q)
		if err != nil {
			t.Fatal(err)
		}
		direct, err := r.direct.Review(t.Context(), types.NodeName(node), q)
		if err != nil {
			t.Fatal(err)
		}
		if shared.Allowed != direct.Allowed {
			t.Errorf("node %s, %s %s, namespace %q, name %q, fields %v, labels %v: %t by what is shared, %t by kube-apiserver (%s)", node, q.Verb, q.Resource, q.Namespace, q.Name, q.Fields, q.Labels,
				shared.Allowed, direct.Allowed, direct.Reason)
		}
		if direct.Allowed {
			allowed++
		}
	}
	asked := r.asked.Load() - before
	t.Logf("node %s: %d questions, %d allowed, %d reviews", node, len(questions), allowed, asked)
	if allowed == 0 || allowed == len(questions) {
		t.Errorf("node %s: %d of %d questions are allowed: that shows nothing", node, allowed, len(questions))
	}
}

// TestHostile_14_SharedReviewsGiveNobodyMore: cached answers about other nodes give no node more
// than kube-apiserver itself does: two devices, one of which has rights of its own, a node that is
// no device, and a former device, asked about every resource, in every order.
func TestHostile_14_SharedReviewsGiveNobodyMore(t *testing.T) {
	r := newSystem(t)
	ctx := t.Context()
	r.plane.AddNode(t, "edge-a")
	r.plane.AddNode(t, "edge-b")
	r.plane.AddOrdinaryNode(t, "ordinary")
	admin := r.plane.Client()
	_, err := admin.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "more"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps", "endpoints"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{"apps"}, Resources: []string{"statefulsets"}, ResourceNames: []string{"edge-a", "edge-b"}, Verbs: []string{"get", "list", "watch"}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "more"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "more"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "system:node:edge-a"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	virtualIPs := kube.Attributes{Verb: "list", Resource: schema.GroupVersionResource{Group: "skerry.io", Version: "v1alpha1", Resource: "virtualips"}}
	may := func(node types.NodeName, at kube.Attributes) func(context.Context) error {
		return func(ctx context.Context) error {
			if d, err := r.access.Allowed(ctx, node, at); err != nil || !d.Allowed {
				return fmt.Errorf("%+v, %w", d, err)
			}
			return nil
		}
	}
	cluster.Eventually(t, "the rights of edge-a", may("edge-a", kube.Attributes{Verb: "list", Resource: kube.ConfigMaps}))
	cluster.Eventually(t, "the rights of devices", may("edge-b", virtualIPs))
	for _, pair := range [][2]string{{"edge-a", "edge-b"}, {"edge-b", "edge-a"}, {"ordinary", "edge-a"}} {
		r.agree(t, pair[0], pair[1])
	}

	t.Run("what all devices may is asked once", func(t *testing.T) {
		access := r.fresh(t) // with room, and with answers of this minute alone
		of := func(node string, at kube.Attributes) kube.Attributes {
			if at.Resource == kube.Pods {
				at.Fields = fields.OneTermEqualSelector("spec.nodeName", node)
			} else {
				at.Labels = labels.Set{"asked": node}.AsSelector()
			}
			return at
		}
		cluster.Eventually(t, "the rights of devices to be known", func(ctx context.Context) error {
			if _, err := access.Allowed(ctx, "edge-a", of("edge-a", virtualIPs)); err != nil {
				return err
			}
			before := r.asked.Load()
			d, err := access.Allowed(ctx, "edge-b", of(rand.Text(), virtualIPs))
			if n := r.asked.Load() - before; err != nil || !d.Allowed || n != 0 {
				return fmt.Errorf("%+v, %d reviews, %w", d, n, err)
			}
			return nil
		})
		for _, at := range []kube.Attributes{
			{Verb: "list", Resource: schema.GroupVersionResource{Version: "v1", Resource: "services"}}, {Verb: "watch", Resource: kube.Pods},
		} {
			if d, err := access.Allowed(ctx, "edge-a", of("edge-a", at)); err != nil || !d.Allowed {
				t.Errorf("%+v, %v", d, err)
			}
			before := r.asked.Load()
			if d, err := access.Allowed(ctx, "edge-c", of("edge-c", at)); err != nil || !d.Allowed {
				t.Errorf("%+v, %v", d, err)
			}
			if n := r.asked.Load() - before; n != 0 {
				t.Errorf("%d reviews for %s %s of edge-c", n, at.Verb, at.Resource.Resource)
			}
		}
	})
	t.Run("a device that is none any more", func(t *testing.T) {
		binding, err := admin.RbacV1().ClusterRoleBindings().Get(ctx, "skerry:edge-nodes", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		binding.Subjects = slices.DeleteFunc(binding.Subjects, func(s rbacv1.Subject) bool { return s.Name == "system:node:edge-b" })
		if _, err := admin.RbacV1().ClusterRoleBindings().Update(ctx, binding, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		at := virtualIPs
		at.Labels = labels.Set{"asked": "later"}.AsSelector() // no permission of edge-b's own is remembered
		cluster.Eventually(t, "edge-b to have lost its rights", func(ctx context.Context) error {
			if d, err := r.access.Allowed(ctx, "edge-b", at); err != nil || d.Allowed {
				return fmt.Errorf("%+v, %w", d, err)
			}
			return nil
		})
		if err := may("edge-a", at)(ctx); err != nil {
			t.Errorf("edge-a has lost them too: %v", err)
		}
	})
}
