package join

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/skerry-io/skerry/common/pki"
)

const (
	// edgesRole holds the names of the nodes that cloudcore may act as (KEP-5284). It is bound to
	// cloudcore's account by manifests/cloudcore. A name takes some 30 bytes of the 1.5 MiB that
	// etcd gives an object.
	edgesRole = "skerry:cloudcore-edges"

	// edgeRights binds the same nodes, as users, to the rights of devices beyond a kubelet's: the
	// group system:nodes has the nodes of the cloud too. A subject takes some 90 bytes: 15,000
	// devices fill an object.
	edgeRights = "skerry:edge-nodes"

	impersonateNode = "impersonate:arbitrary-node"
	impersonateAPI  = "authentication.k8s.io"
)

// addEdge gives a node a device's rights, and lets cloudcore act as it, from some milliseconds
// later on. It may be repeated.
func addEdge(ctx context.Context, client kubernetes.Interface, node types.NodeName) error {
	add := func(names []string) []string {
		if at, found := slices.BinarySearch(names, string(node)); !found {
			return slices.Insert(names, at, string(node))
		}
		return names
	}
	// Rights first: cloudcore reviews a node's rights as soon as it may act as the node, and
	// remembers a refusal.
	return errors.Join(changeRights(ctx, client, add), changeEdges(ctx, client, add))
}

// removeEdge removes them again, and reports whether there were any. In a cluster without the role,
// or the binding, there are none.
func removeEdge(ctx context.Context, client kubernetes.Interface, node types.NodeName) (found bool, err error) {
	remove := func(names []string) []string {
		return slices.DeleteFunc(names, func(name string) bool {
			found = found || name == string(node)
			return name == string(node)
		})
	}
	var errs []error
	for _, err := range []error{changeEdges(ctx, client, remove), changeRights(ctx, client, remove)} {
		if !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return found, errors.Join(errs...)
}

// changeRights changes the names of the nodes that have devices' rights. A user that is no node
// stays: an administrator may have added one.
func changeRights(ctx context.Context, client kubernetes.Interface, change func([]string) []string) error {
	bindings := client.RbacV1().ClusterRoleBindings()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		binding, err := bindings.Get(ctx, edgeRights, metav1.GetOptions{})
		if err != nil {
			return err
		}
		var have []string
		var others []rbacv1.Subject
		for _, s := range binding.Subjects {
			if name, ok := strings.CutPrefix(s.Name, pki.NodeUserPrefix); ok && s.Kind == rbacv1.UserKind {
				have = append(have, name)
			} else {
				others = append(others, s)
			}
		}
		slices.Sort(have)
		have = slices.Compact(have)
		want := change(slices.Clone(have))
		if slices.Equal(have, want) {
			return nil
		}
		binding.Subjects = others
		for _, name := range want {
			binding.Subjects = append(binding.Subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: pki.NodeUserPrefix + name})
		}
		_, err = bindings.Update(ctx, binding, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("writing who has the rights of devices, ClusterRoleBinding %s: %w", edgeRights, err)
	}
	return nil
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
