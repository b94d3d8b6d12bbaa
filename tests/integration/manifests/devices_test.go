package manifests_test

import (
	"context"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/tests/cluster"
)

// TestHostile_12_RightsOfDevicesAlone: a device has the rights of devices beyond a kubelet's, with
// its own certificate, and no other node has. Rights that the manifests add later are checked as
// well: none of them may be bound to all nodes.
func TestHostile_12_RightsOfDevicesAlone(t *testing.T) {
	plane := cluster.Shared(t)
	plane.Apply(t, "manifests/crds")
	plane.Apply(t, "manifests/cloudcore")
	ns := plane.Namespace(t)
	plane.AddNode(t, "device-1")
	plane.AddOrdinaryNode(t, "worker-of-the-cloud")
	list := metav1.ListOptions{}
	rights := func(who string, cfg *rest.Config, allowed bool) []attempt {
		client, objects := kubernetes.NewForConfigOrDie(cfg), dynamic.NewForConfigOrDie(cfg)
		all := []attempt{
			{who + ": the PodDisruptionBudgets", func(ctx context.Context) error {
				return ignore(client.PolicyV1().PodDisruptionBudgets("").List(ctx, list))
			}, allowed},
			{who + ": a DaemonSet", func(ctx context.Context) error {
				_, err := client.AppsV1().DaemonSets(ns).Get(ctx, "none", metav1.GetOptions{})
				if apierrors.IsNotFound(err) {
					return nil
				}
				return err
			}, allowed},
			{who + ": all Nodes", func(ctx context.Context) error { return ignore(client.CoreV1().Nodes().List(ctx, list)) }, allowed},
			{who + ": ranges of Services", func(ctx context.Context) error {
				return ignore(client.NetworkingV1().ServiceCIDRs().List(ctx, list))
			}, allowed},
			{who + ": Ingresses", func(ctx context.Context) error {
				return ignore(client.NetworkingV1().Ingresses("").List(ctx, list))
			}, allowed},
			{who + ": EndpointSlices", func(ctx context.Context) error {
				return ignore(client.DiscoveryV1().EndpointSlices("").List(ctx, list))
			}, allowed},
			{who + ": the keys of tokens", func(ctx context.Context) error {
				return client.CoreV1().RESTClient().Get().AbsPath("/openid/v1/jwks").Do(ctx).Error()
			}, allowed},
		}
		for _, resource := range []string{"nodeoperations", "staticroutes", "virtualips", "servicecollections", "edgeapps", "clusterinfos"} {
			all = append(all, attempt{who + ": " + resource, func(ctx context.Context) error {
				return ignore(objects.Resource(schema.GroupVersionResource{Group: "skerry.io", Version: "v1alpha1", Resource: resource}).List(ctx, list))
			}, allowed})
		}
		return all
	}
	judge(t, append(rights("a device", plane.Node(t, "device-1"), true), rights("another node", plane.Node(t, "worker-of-the-cloud"), false)...))

	bindings, err := plane.Client().RbacV1().ClusterRoleBindings().List(t.Context(), list)
	if err != nil {
		t.Fatal(err)
	}
	looked := 0
	for _, b := range bindings.Items {
		if len(b.Name) > 7 && b.Name[:7] == "skerry:" {
			looked++
			for _, s := range b.Subjects {
				if s.Kind == rbacv1.GroupKind && (s.Name == "system:nodes" || s.Name == "system:authenticated") {
					t.Errorf("%s gives rights to the group %s", b.Name, s.Name)
				}
			}
		}
	}
	if looked < 5 {
		t.Errorf("there are %d bindings of Skerry", looked)
	}
}
