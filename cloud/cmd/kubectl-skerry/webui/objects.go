package webui

import (
	"cmp"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/cloud/internal/core/fleet"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// maxText bounds a text of an object, in bytes.
const maxText = 300

// VIPOf sums up a virtual IP.
func VIPOf(v *v1alpha1.VirtualIP) VIP {
	s := VIP{
		Name: v.Name, Address: fleet.Printable(v.Spec.Address, maxText), Pool: fleet.Printable(v.Spec.Pool, maxText), Service: v.Spec.Service.Namespace + "/" + v.Spec.Service.Name,
		Holder: fleet.Printable(v.Status.Holder, maxText), Ready: v.Status.ReadyNodes,
	}
	for _, bad := range []string{v1alpha1.VIPConditionHolders, v1alpha1.VIPConditionDuplicate, v1alpha1.VIPConditionVRID, v1alpha1.VIPConditionOutOfRange} {
		if meta.IsStatusConditionTrue(v.Status.Conditions, bad) {
			s.Problem = problem(v.Status.Conditions, bad)
			return s
		}
	}
	for _, good := range []string{v1alpha1.VIPConditionAnnounced, v1alpha1.VIPConditionProgrammed, v1alpha1.VIPConditionAllocated} {
		if meta.IsStatusConditionFalse(v.Status.Conditions, good) {
			s.Problem = problem(v.Status.Conditions, good)
			return s
		}
	}
	if s.Holder == "" {
		s.Problem = "no device holds it"
	}
	return s
}

// RouteOf sums up a route.
func RouteOf(r *v1alpha1.StaticRoute) Route {
	s := Route{
		Name: r.Name, Subnet: fleet.Printable(r.Spec.Subnet, maxText), Gateway: fleet.Printable(cmp.Or(r.Status.Gateway, r.Spec.Gateway), maxText),
		Desired: r.Status.Desired, Applied: r.Status.Applied, Failed: r.Status.Failed,
	}
	for _, n := range r.Status.Nodes {
		if n.Reason != v1alpha1.RouteApplied && n.Reason != v1alpha1.RouteDryRun {
			s.Problem = fleet.Printable(fmt.Sprintf("%s: %s %s", n.Name, n.Reason, n.Message), maxText)
			return s
		}
	}
	if n := len(r.Status.Waiting); n > 0 {
		s.Problem = fleet.Printable(fmt.Sprintf("%d devices have not reported, %s among them", n, r.Status.Waiting[0]), maxText)
	}
	return s
}

func problem(conditions []metav1.Condition, kind string) string {
	c := meta.FindStatusCondition(conditions, kind)
	return fleet.Printable(fmt.Sprintf("%s: %s", kind, cmp.Or(c.Message, c.Reason, string(c.Status))), maxText)
}
