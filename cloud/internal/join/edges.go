package join

import (
	"context"
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
)

const (
	// edgesRole holds the names of the nodes that cloudcore may act as (KEP-5284). It is bound to cloudcore's
	// account by manifests/cloudcore. A name takes some 30 bytes of the 1.5 MiB that etcd gives an object.
	edgesRole = "skerry:cloudcore-edges"

	impersonateNode = "impersonate:arbitrary-node"
	impersonateAPI  = "authentication.k8s.io"
)

// addEdge lets cloudcore act as a node, from some milliseconds later on. It may be repeated.
func addEdge(ctx context.Context, client kubernetes.Interface, node types.NodeName) error {
	return changeEdges(ctx, client, func(names []string) []string {
		if at, found := slices.BinarySearch(names, string(node)); !found {
			return slices.Insert(names, at, string(node))
		}
		return names
	})
}

// removeEdge takes that back. A cluster without the role has nothing to take back.
func removeEdge(ctx context.Context, client kubernetes.Interface, node types.NodeName) error {
	err := changeEdges(ctx, client, func(names []string) []string {
		return slices.DeleteFunc(names, func(name string) bool { return name == string(node) })
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func changeEdges(ctx context.Context, client kubernetes.Interface, change func([]string) []string) error {
	roles := client.RbacV1().ClusterRoles()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		role, err := roles.Get(ctx, edgesRole, metav1.GetOptions{})
		if err != nil {
			return err
		}
		var have []string
		for _, rule := range role.Rules {
			have = append(have, rule.ResourceNames...)
		}
		slices.Sort(have)
		have = slices.Compact(have)
		want := change(slices.Clone(have))
		if slices.Equal(have, want) {
			return nil
		}
		role.Rules = nil
		if len(want) > 0 { // a rule without names would mean all nodes
			role.Rules = []rbacv1.PolicyRule{{
				APIGroups: []string{impersonateAPI}, Resources: []string{"nodes"}, Verbs: []string{impersonateNode}, ResourceNames: want,
			}}
		}
		_, err = roles.Update(ctx, role, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("writing the list of edge nodes, ClusterRole %s: %w", edgesRole, err)
	}
	return nil
}
