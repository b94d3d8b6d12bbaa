// Package edges lets cloudcore act as nodes that have not joined: what its approver does for a device that joins.
//
// It owns nothing: the list is a ClusterRole that the manifests of cloudcore make. It refuses nothing. Allow may be
// called from any goroutine.
package edges

import (
	"context"
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
)

// Allow adds nodes to those that cloudcore may act as. The manifests of cloudcore
// must have been applied.
func Allow(ctx context.Context, client kubernetes.Interface, names ...string) error {
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
