// Package edges makes nodes devices that have not joined, as its approver does for a device that
// joins.
//
// It is stateless: the list is a ClusterRole that the manifests of cloudcore make. Its functions
// may be called from any goroutine.
package edges

import (
	"context"
	"fmt"
	"slices"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/skerry-io/skerry/common/pki"
)

// Allow adds nodes to those that cloudcore may act as, and that have the rights of devices. The
// manifests of cloudcore must have been applied.
func Allow(ctx context.Context, client kubernetes.Interface, names ...string) error {
	if err := Rights(ctx, client, names...); err != nil {
		return err
	}
	roles := client.RbacV1().ClusterRoles()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		role, err := roles.Get(ctx, "skerry:cloudcore-edges", metav1.GetOptions{})
		if err != nil {
			return err
		}
		all := slices.Clone(names)
		for _, rule := range role.Rules {
			all = append(all, rule.ResourceNames...)
		}
		slices.Sort(all)
		role.Rules = []rbacv1.PolicyRule{{
			APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"nodes"},
			Verbs: []string{"impersonate:arbitrary-node"}, ResourceNames: slices.Compact(all),
		}}
		_, err = roles.Update(ctx, role, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("letting cloudcore act as %d nodes: %w", len(names), err)
	}
	return nil
}

// Rights gives nodes the rights of devices beyond a kubelet's, and waits for the cluster to have
// aggregated that role.
func Rights(ctx context.Context, client kubernetes.Interface, names ...string) error {
	bindings := client.RbacV1().ClusterRoleBindings()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		binding, err := bindings.Get(ctx, "skerry:edge-nodes", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, name := range names {
			subject := rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: pki.NodeUserPrefix + name}
			if !slices.Contains(binding.Subjects, subject) {
				binding.Subjects = append(binding.Subjects, subject)
			}
		}
		_, err = bindings.Update(ctx, binding, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("giving %d nodes the rights of devices: %w", len(names), err)
	}
	for {
		role, err := client.RbacV1().ClusterRoles().Get(ctx, "skerry:edge-node", metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("reading the rights of devices: %w", err)
		}
		if len(role.Rules) > 0 {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("waiting for the rights of devices: %w", context.Cause(ctx))
		}
	}
}
