package site

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	// retry is how soon what failed is tried again, and relook how often ranges of Services
	// are read again.
	retry  = 5 * time.Second
	relook = time.Minute
	// maxNamed is how many claims a condition names.
	maxNamed = 8
)

// Client makes requests at kube-apiserver; Kubernetes is cloudcore's own typed client.
type Client interface {
	Do(ctx context.Context, as kube.Identity, r kube.Request) (*kube.Response, error)
	Kubernetes() kubernetes.Interface
}

// Offers offers ranges to devices that have none for their pods, and says in the status of pools
// what can't be used.
type Offers struct {
	client  Client
	devices *kube.Mirror[Device]
	pools   *kube.Mirror[v1alpha1.NodePool]
}

// NewOffers makes an Offers.
func NewOffers(client Client) *Offers {
	return &Offers{client: client, devices: kube.NewMirror(readDevice, sameDevice), pools: kube.NewMirror(readPool, samePool)}
}

// Run offers until ctx ends.
func (o *Offers) Run(ctx context.Context, nodes, pools *kube.Store) error {
	changed := make(chan struct{}, 1)
	wake := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	defer o.devices.Follow(nodes, wake)()
	defer o.pools.Follow(pools, wake)()
	for _, store := range []*kube.Store{nodes, pools} {
		select {
		case <-store.Synced():
		case <-ctx.Done():
			return nil
		}
	}
	wake()
	for {
		wait := relook
		if err := o.look(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Failed to offer some pod CIDRs, retrying", "in", retry)
			wait = retry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-time.After(wait):
		}
		select { // changes come in waves, and our own writes come back
		case <-ctx.Done():
			return nil
		case <-time.After(settle):
		}
	}
}

func (o *Offers) look(ctx context.Context) error {
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
func (o *Offers) taken(ctx context.Context) (all []Taken, err error) {
	list, err := o.client.Kubernetes().NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
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
func (o *Offers) offer(ctx context.Context, offer Offer) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{v1alpha1.PodCIDROfferAnnotation: offer.String()}}})
	if err != nil {
		return fmt.Errorf("writing an offer: %w", err)
	}
	resp, err := o.client.Do(ctx, kube.Identity{Node: types.NodeName(offer.Node)}, kube.Request{
		Method: http.MethodPatch, Path: "/api/v1/nodes/" + url.PathEscape(offer.Node), ContentType: "application/merge-patch+json", Body: body,
	})
	if err == nil {
		err = resp.Err()
	}
	if err != nil {
		return fmt.Errorf("offering %s to node %s: %w", offer, offer.Node, err)
	}
	klog.FromContext(ctx).Info("Range for pods offered", "node", offer.Node, "range", offer.String())
	return nil
}

// tell keeps the pool's conditions.
func (o *Offers) tell(ctx context.Context, p *v1alpha1.NodePool, a Allocation, devices int, refused []string) error {
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
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": p.ResourceVersion}, "status": map[string]any{"conditions": conditions},
	})
	if err != nil {
		return fmt.Errorf("writing the conditions of NodePool %s: %w", p.Name, err)
	}
	resp, err := o.client.Do(ctx, kube.Identity{}, kube.Request{
		Method: http.MethodPatch, Path: "/apis/" + v1alpha1.Group + "/" + v1alpha1.Version + "/" + v1alpha1.NodePools + "/" + url.PathEscape(p.Name) + "/status",
		ContentType: "application/merge-patch+json", Body: body,
	})
	if err == nil {
		err = resp.Err()
	}
	if err != nil {
		return fmt.Errorf("writing the conditions of NodePool %s: %w", p.Name, err)
	}
	return nil
}
