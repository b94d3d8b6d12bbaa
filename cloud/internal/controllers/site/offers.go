package site

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/cloud/internal/controllers/controller"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	// retry is the delay before a failed run is repeated, and relook how often ranges of Services
	// are read again.
	retry  = 5 * time.Second
	relook = time.Minute
	// offersTimeout bounds all offers of one call: a write for each device of a new pool.
	offersTimeout = 10 * time.Minute
	// maxNamed is how many claims a condition names.
	maxNamed = 8
)

// Offers offers ranges to devices that have none for their pods, and reports unusable subnets in
// the status of pools.
func Offers() controller.Config {
	return controller.Config{Name: "podcidrs", Settle: settle, RetryMin: retry, RetryMax: retry, Timeout: offersTimeout, Start: startOffers}
}

// offers is one leadership.
type offers struct {
	client   kubernetes.Interface
	devices  *kube.Mirror[Device]
	pools    *kube.Mirror[v1alpha1.NodePool]
	nodeKind *controller.Kind[corev1.Node]
	poolKind *controller.Kind[v1alpha1.NodePool]
}

func startOffers(_ context.Context, r *controller.Run) (controller.Work, error) {
	nodes, pools := corev1.SchemeGroupVersion.WithResource("nodes"), v1alpha1.Resource(v1alpha1.NodePools)
	o := &offers{
		client:   r.Kubernetes(),
		devices:  controller.Mirror(r, nodes, readDevice, sameDevice, r.Wake),
		pools:    controller.Mirror(r, pools, readPool, samePool, r.Wake),
		nodeKind: controller.Of[corev1.Node](r, nodes),
		poolKind: controller.Of[v1alpha1.NodePool](r, pools),
	}
	return controller.Level(func(ctx context.Context) (time.Duration, error) { return relook, o.look(ctx) }), nil
}

func (o *offers) look(ctx context.Context) error {
	devices, err := o.devices.List()
	if err != nil {
		return err
	}
	pools, err := o.pools.List()
	if err != nil {
		return err
	}
	wanted := false
	for _, p := range pools {
		wanted = wanted || len(p.Spec.PodSubnets) > 0 || len(p.Status.Conditions) > 0
	}
	if !wanted {
		return nil
	}
	taken, err := o.taken(ctx)
	if err != nil {
		return err
	}
	x := NewIndex(devices, pools)
	a := Allocate(x, devices, pools, taken)
	var errs []error
	for _, offer := range a.Offers {
		errs = append(errs, o.offer(ctx, offer))
	}
	for _, p := range pools {
		errs = append(errs, o.tell(ctx, p, a, len(membersOf(x, p.Name)), x.refused[p.Name]))
	}
	return errors.Join(errs...)
}

// taken are the ranges of Services.
func (o *offers) taken(ctx context.Context) (all []Taken, err error) {
	list, err := o.client.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("listing the ranges of Services: %w", err)
	}
	for _, c := range list.Items {
		for _, text := range c.Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil {
				all = append(all, Taken{p.Masked(), "a range of Services"})
			}
		}
	}
	return all, nil
}

// offer writes the annotation as the node: cloudcore has no right of its own on Nodes.
func (o *offers) offer(ctx context.Context, offer Offer) error {
	patch := map[string]any{"metadata": map[string]any{"annotations": map[string]any{v1alpha1.PodCIDROfferAnnotation: offer.String()}}}
	node := o.nodeKind.As(kube.Identity{Node: types.NodeName(offer.Node)})
	if err := node.Patch(ctx, kube.Key{Name: offer.Node}, "", patch); err != nil {
		return fmt.Errorf("offering %s: %w", offer, err)
	}
	klog.FromContext(ctx).Info("Offered a range for pods", "node", offer.Node, "range", offer.String())
	return nil
}

// tell keeps the pool's conditions.
func (o *offers) tell(ctx context.Context, p *v1alpha1.NodePool, a Allocation, devices int, refused []string) error {
	conditions := append([]metav1.Condition(nil), p.Status.Conditions...)
	set := func(kind string, is bool, reason, message string) bool {
		c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: "OK", ObservedGeneration: p.Generation}
		if is {
			c.Status, c.Reason, c.Message = metav1.ConditionTrue, reason, message
		} else if meta.FindStatusCondition(conditions, kind) == nil {
			return false
		}
		return meta.SetStatusCondition(&conditions, c)
	}
	words := a.Invalid[p.Name]
	if n := a.Full[p.Name]; n > 0 {
		words = append(words, fmt.Sprintf("podSubnets are used up: %d devices have no range for their pods", n))
	}
	changed := set(v1alpha1.PoolPodSubnetsBad, len(words) > 0, "NotUsable", strings.Join(words, "; "))
	changed = set(v1alpha1.PoolTooManyDevices, devices > MaxDevices, "TooManyDevices",
		fmt.Sprintf("%d devices, a site has %d at most: they don't speak to each other", devices, MaxDevices)) || changed
	if more := len(refused) - maxNamed; more > 0 {
		refused = append(slices.Clone(refused[:maxNamed]), fmt.Sprintf("%d more", more))
	}
	changed = set(v1alpha1.PoolPodCIDRsRefused, len(refused) > 0, "NotOffered", strings.Join(refused, "; ")) || changed
	if !changed {
		return nil
	}
	// The whole list, on condition that it is still the one that was read: others keep
	// conditions there too.
	return o.poolKind.Patch(ctx, kube.Key{Name: p.Name}, "status", map[string]any{
		"metadata": map[string]any{"resourceVersion": p.ResourceVersion}, "status": map[string]any{"conditions": conditions},
	})
}
