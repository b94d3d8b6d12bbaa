package vip

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/keepalived"
)

// dropPause is the interval of checks whether a released address is gone.
const dropPause = 500 * time.Millisecond

// report sends changes to the cloud and the node's events. It asks to be called again while a
// released address is present.
func (r *run) report(ctx context.Context, f Facts, roles []Role, programmed error) (again time.Duration, err error) {
	states := r.cfg.Elector.States()
	now := metav1.Now().Rfc3339Copy()
	entries := map[string]reported{}
	problems := r.cfg.Elector.Problems()
	for _, role := range roles {
		state := states[role.election()]
		programmed := programmed
		if why := problems[role.election()]; why != nil && programmed == nil && role.Fault == "" {
			programmed = why
		}
		if role.Fault == "" && role.Ready && programmed == nil && state == keepalived.Unknown {
			continue // keepalived has not spoken yet
		}
		if role.Waiting {
			continue // it is being asked whether another host has the address
		}
		if since, ok := r.readySince[role.election()]; ok && state == keepalived.Fault && time.Since(since) < settle {
			continue
		}
		e := entry(f, role, state, programmed)
		entries[role.VIP.Name] = reported{uid: role.VIP.UID, entry: e}
	}
	// An address is given to another Service once all nodes have reported that they dropped it.
	leaving, leavingErr := r.cfg.Elector.Leaving()
	for _, v := range f.VIPs {
		address, _ := netip.ParseAddr(v.Spec.Address)
		if v.DeletionTimestamp != nil && programmed == nil && leavingErr == nil && !slices.Contains(leaving, address) {
			entries[v.Name] = reported{uid: v.UID, entry: v1alpha1.VirtualIPNodeStatus{Name: f.Node, State: v1alpha1.VIPReleased, Programmed: true}}
		}
	}
	byName := map[string]*v1alpha1.VirtualIP{}
	for _, v := range f.VIPs {
		byName[v.Name] = v
	}
	errs := []error{leavingErr}
	r.mu.Lock()
	old := r.entries
	r.mu.Unlock()
	for name, n := range entries {
		v := byName[name]
		n.service, n.address, n.pool, n.generation = v.Spec.Service, v.Spec.Address, v.Spec.Pool, v.Generation
		was, known := old[name]
		known = known && was.uid == n.uid
		n.entry.Since = &now
		if known && was.entry.State == n.entry.State {
			n.entry.Since = was.entry.Since
		}
		if known && equal(was.entry, n.entry) {
			n.entry = was.entry
		}
		if known && was.generation != n.generation {
			r.kit.Reports.Drop(ref(name)) // Set then reports it again
		}
		if err := r.kit.Reports.Set(ref(name), n.uid, n.entry); err != nil {
			errs = append(errs, err)
		}
		if !known || was.entry.State != n.entry.State {
			r.event(ctx, v, n.entry)
		}
		entries[name] = n
	}
	for name, was := range old {
		if _, ok := entries[name]; !ok && byName[name] != nil && was.uid == byName[name].UID {
			entries[name] = was // not known right now
		} else if !ok {
			r.kit.Reports.Drop(ref(name))
		}
	}
	r.mu.Lock()
	r.entries = entries
	r.mu.Unlock()
	if len(leaving) > 0 {
		again = dropPause
	}
	return again, errors.Join(errs...)
}

func ref(name string) object.Ref {
	return object.Ref{Resource: v1alpha1.Resource(v1alpha1.VirtualIPs), Name: name}
}

func equal(a, b v1alpha1.VirtualIPNodeStatus) bool {
	a.Since, b.Since = nil, nil
	return a == b
}

// entry returns the node's status of an address.
func entry(f Facts, r Role, state keepalived.State, programmed error) v1alpha1.VirtualIPNodeStatus {
	e := v1alpha1.VirtualIPNodeStatus{
		Name: f.Node, Priority: int32(r.Instance.Priority), ReadyEndpoints: int32(r.Endpoints), Programmed: r.Fault == "" && programmed == nil, Message: r.Fault,
		Interface: r.Instance.Interface, HardwareAddress: r.HardwareAddress, ForeignRouter: r.ForeignRouter,
	}
	if r.ForeignRouter != "" {
		e.ForeignVRID = r.VIP.Spec.VRID
	}
	if r.Own.IsValid() {
		e.Address = r.Own.String()
	}
	switch {
	case r.Fault != "":
		e.State = v1alpha1.VIPFault
	case r.Duplicate != "":
		e.State, e.DuplicateOf = v1alpha1.VIPFault, r.Duplicate
		e.Message = "the host with hardware address " + r.Duplicate + " on " + r.Instance.Interface + " has the address, and is no node of the pool"
	case r.Unasked != "":
		e.State, e.Message = v1alpha1.VIPFault, r.Unasked
	case state == keepalived.Master:
		e.State = v1alpha1.VIPHolder
	case !r.Ready:
		e.State = v1alpha1.VIPNotReady
		e.Message = "no pod of the Service is ready on this node"
		if f.Maintenance || f.Draining && r.Endpoints > 0 {
			e.Message = "the node is under maintenance"
		}
	case state == keepalived.Backup:
		e.State = v1alpha1.VIPBackup
	default:
		e.State = v1alpha1.VIPFault
		e.Message = "keepalived can't take part: interface " + r.Instance.Interface + " has no carrier, or keepalived does not run"
	}
	if e.DuplicateOf == "" && r.Stranger != "" {
		e.DuplicateOf = r.Stranger
		if e.Message == "" {
			e.Message = "a router with hardware address " + r.Stranger + " on " + r.Instance.Interface + " advertises the address by VRRP, and is no node of the pool"
		}
	}
	if programmed != nil {
		e.Message = programmed.Error()
	}
	return e
}

func (r *run) event(ctx context.Context, v *v1alpha1.VirtualIP, e v1alpha1.VirtualIPNodeStatus) {
	klog.FromContext(ctx).Info("Virtual IP state of this node changed", "address", v.Spec.Address, "service", v.Spec.Service.Namespace+"/"+v.Spec.Service.Name,
		"state", e.State, "endpoints", e.ReadyEndpoints, "message", e.Message)
	r.mu.Lock()
	r.transitions[string(e.State)]++
	r.mu.Unlock()
	kind := corev1.EventTypeNormal
	if e.State == v1alpha1.VIPFault {
		kind = corev1.EventTypeWarning
	}
	words := []string{fmt.Sprintf("virtual IP %s of Service %s/%s", v.Spec.Address, v.Spec.Service.Namespace, v.Spec.Service.Name)}
	if e.Message != "" {
		words = append(words, e.Message)
	}
	reason := "VirtualIP" + string(e.State)
	if e.DuplicateOf != "" {
		reason = "VirtualIPDuplicate"
	}
	r.kit.Event(kind, reason, "%s", strings.Join(words, ": "))
}
