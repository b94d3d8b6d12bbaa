// Package podnet makes the network of this device's pods where no other CNI plugin does: the CNI
// configuration, routes to the pods of the site's other devices, and the masquerading of packets
// that leave the site.
//
// It owns the file 10-skerry.conflist, routes of protocol 159, the tables of package masquerade,
// the interface of package wireguard, and the Node's condition SkerryPodNetwork. It does not act if
// there is another CNI configuration, or the NodePool has None. Make (plan.go) is pure; the agent
// runs in one goroutine. It writes the Node as the device itself, by the edge API: its range, once
// it was offered one, and its addresses. A device without a range of the cluster takes one itself,
// which is only in the file. Until a device has read its Site, routes and tunnel stay as left by
// the previous edgecore.
package podnet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/atomicfile"
	"github.com/skerry-io/skerry/common/claim"
	"github.com/skerry-io/skerry/edge/internal/agents/probation"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/masquerade"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/lan"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netroute"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/wireguard"
	"github.com/skerry-io/skerry/edge/internal/site/contact"
	"github.com/skerry-io/skerry/edge/internal/site/peers"
)

// Name is the module's.
const Name message.Name = "podnet"

// Protocol marks our routes in the kernel (rtm_protocol): not those of StaticRoutes, which
// have another.
const Protocol = 159

// File is the name of the CNI configuration.
const File = "10-skerry.conflist"

const (
	resync = 15 * time.Second // others write CNI files, and a link that was down has lost its routes
)

// Config configures the agent.
type Config struct {
	NodeName string
	API      *rest.Config
	Site     *peers.Holder // nil: this device has no peers
	Subnets  []netip.Prefix
	// At is where a device is connected now.
	At func(node string) netip.Addr
	// Said returns the addresses that a device currently reports of itself, and SetLAN sends this
	// one's addresses to the others; both nil without a Site.
	Said       func(node string) []netip.Addr
	SetLAN     func([]netip.Prefix)
	LAN        interface{ Networks() ([]lan.Network, error) }
	Routes     func() (*netroute.Driver, error)
	Masquerade *masquerade.Driver
	// WireGuard makes the interface for devices that are on no network of this one; TunnelPort is
	// its port. Tunnel is another device's, by its word, and SetTunnel sends the others
	// this one's: both nil without a Site.
	WireGuard  Tunnels
	TunnelPort int
	Tunnel     func(node string) contact.Tunnel
	SetTunnel  func(contact.Tunnel)
	CNIDir     string
	Events     func(ctx context.Context) (agent.Recorder, error)
	// Guards are the networks that no other device's range may touch; remote is the current address
	// of the link, the zero value without one. May be nil.
	Guards func(remote netip.Addr) claim.Guards
	// Probation withdraws routes that cut off the link; nil: there is no cloud to lose.
	Probation *probation.Probation
	// Changed receives when a device may be elsewhere.
	Changed <-chan struct{}
}

// Tunnels makes the kernel encrypt: a *wireguard.Driver.
type Tunnels interface {
	Apply(wireguard.Config) (wireguard.Key, error)
	Remove() error
}

// New makes the agent.
func New(c Config) *agent.Module {
	kit := agent.Config{Name: Name, NodeName: c.NodeName, API: c.API, Events: c.Events, Resync: resync}
	kit.Start = func(_ context.Context, r *agent.Run) (agent.Sync, error) {
		nodes, err := agent.Watch(r, corev1.SchemeGroupVersion.WithResource("nodes"), &corev1.Node{}, agent.Selection{Fields: "metadata.name=" + c.NodeName})
		if err != nil {
			return nil, err
		}
		client, err := kubernetes.NewForConfig(c.API)
		if err != nil {
			return nil, fmt.Errorf("making the client for the Node: %w", err)
		}
		routes, err := c.Routes()
		if err != nil {
			return nil, err
		}
		r.Cleanup(routes.Close)
		var changed <-chan struct{}
		if c.Site != nil {
			changed = c.Site.Changed()
		}
		r.Go(func(ctx context.Context) error {
			for {
				select {
				case <-ctx.Done():
					return nil
				case <-changed:
				case <-c.Changed:
				}
				r.Wake()
			}
		})
		s := &syncer{Config: c, run: r, client: client, routes: routes, claims: c.Probation.Of("route to the pods of", r.Wake)}
		return func(ctx context.Context) (time.Duration, error) {
			node, known := nodes.Get(c.NodeName)
			if !known {
				return 0, nil // it registers soon
			}
			return s.sync(ctx, node)
		}, nil
	}
	return agent.New(kit)
}

// syncer is one run.
type syncer struct {
	Config
	run    *agent.Run
	client kubernetes.Interface
	routes *netroute.Driver
	claims *probation.Claims
	said   bool // that NetworkPolicies are not enforced
	rules  masquerade.Rules
	ruled  time.Time // when the kernel was last made to masquerade by rules
	since  time.Time // when the Node was seen first
	// noTunnels: the kernel has no WireGuard, by its error in this run.
	noTunnels bool
}

// grace is how long the cluster has to give a new Node its range. kube-controller-manager does so
// at once, cloudcore's leader when it has seen the Node and its NodePool. The device sees neither
// the cluster's intention nor podSubnets, but the members of its site: then pods in a range of its
// own could not be reached by the others, and it waits longer.
func grace(known bool, s *peers.Site) time.Duration {
	switch {
	case !known:
		return 5 * time.Second
	case s == nil:
		return time.Hour // the cloud has not sent it yet
	case s.Name == "":
		return 30 * time.Second
	}
	return time.Minute
}

// state is the input of a plan, and when it will be another without a change.
func (s *syncer) state(ctx context.Context, node *corev1.Node) (State, time.Duration, error) {
	st := State{
		Node: node, Self: s.NodeName, At: s.At, Said: s.Said, Subnets: s.Subnets, Current: rangeIn(s.path()),
		Tunnels: s.Tunnel != nil && !s.noTunnels, Tunnel: s.Tunnel, TunnelPort: s.TunnelPort,
	}
	if s.Site != nil {
		st.Site = s.Site.Current()
	} else {
		st.Site = &peers.Site{} // of this device alone
	}
	if s.Guards != nil {
		st.Guards = s.Guards(remoteOf(s.run.Link()))
	}
	st.Withheld = s.claims.Withheld
	if l := s.run.Link(); l.Up {
		s.claims.Linked(l.Link.Epoch)
	}
	if s.since.IsZero() {
		s.since = time.Now()
	}
	left := grace(s.Site != nil, st.Site) - time.Since(s.since)
	st.Waited = left <= 0
	var err error
	if st.Foreign, err = s.foreign(); err != nil {
		return st, 0, err
	}
	if st.Networks, err = s.LAN.Networks(); err != nil {
		return st, 0, err
	}
	err = s.routes.Routes(ctx, func() { st.Taken, st.Pods, st.Made = nil, nil, nil }, func(f netroute.Found) {
		switch {
		case s.routes.Ours(f):
			st.Made = append(st.Made, f.Route)
		case ownPod(f.Route):
			st.Pods = append(st.Pods, f.Key.Prefix.Addr())
		default:
			st.Taken = append(st.Taken, f.Key.Prefix)
		}
	})
	return st, max(left, 0), err
}

func remoteOf(l linkstate.State) netip.Addr {
	at, err := netip.ParseAddrPort(l.Link.Remote)
	if !l.Up || err != nil {
		return netip.Addr{}
	}
	return at.Addr().Unmap()
}

// ownPod reports whether a route is to one pod of this device, as ptp makes it: also of one that
// has outlived our file.
func ownPod(r netroute.Route) bool {
	return r.Key.Prefix.IsSingleIP() && slices.ContainsFunc(r.Hops, func(h netroute.Hop) bool { return strings.HasPrefix(h.Interface, "veth") })
}

func (s *syncer) path() string { return filepath.Join(s.CNIDir, File) }

func (s *syncer) sync(ctx context.Context, node *corev1.Node) (time.Duration, error) {
	st, again, err := s.state(ctx, node)
	if err != nil {
		return 0, err
	}
	p := Make(st)
	tunnel := s.applyTunnel(p)
	if errors.Is(tunnel, wireguard.ErrUnsupported) {
		s.noTunnels, st.Tunnels = true, false // not asked again before edgecore starts again: each question has the kernel look for a module
		p, tunnel = Make(st), nil
	}
	if s.SetLAN != nil {
		var lan []netip.Prefix
		if !p.HandsOff { // else another plugin has its own ways, which are unknown here
			lan = onLAN(st.Networks, rangesOf(node))
		}
		s.SetLAN(lan)
	}
	if p.Reason == ReasonConflict {
		s.run.Note(p.Message) // edgecore status names it, with a link and without
	} else {
		s.run.Note("")
	}
	var reporting error
	if s.Site != nil || !p.HandsOff { // a device without a site and with a CNI plugin of its own has no report
		reporting = s.tell(ctx, node, p)
	}
	return again, errors.Join(reporting, tunnel, s.apply(ctx, p))
}

// applyTunnel makes the interface of WireGuard, and sends its key to the other devices; or removes
// it. Before the routes, which use it.
func (s *syncer) applyTunnel(p Plan) error {
	switch {
	case p.Tunnel == nil && !p.HandsOff && (p.Conflist == nil || p.Routes == nil): // the input is not known yet
		return nil
	case p.Tunnel == nil:
		if s.SetTunnel != nil {
			s.SetTunnel(contact.Tunnel{})
		}
		return s.WireGuard.Remove()
	}
	key, err := s.WireGuard.Apply(*p.Tunnel)
	if err == nil {
		s.SetTunnel(contact.Tunnel{Key: key, Port: uint16(p.Tunnel.Port)})
	}
	return err
}

func (s *syncer) apply(ctx context.Context, p Plan) error {
	var errs []error
	path := s.path()
	if p.HandsOff {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("removing our CNI configuration: %w", err))
		}
		return errors.Join(append(errs, s.setRoutes(ctx, p.Routes), s.masquerade(ctx, masquerade.Rules{}))...)
	}
	if p.Conflist == nil {
		return errors.Join(errs...)
	}
	// The way first: a pod that starts is to find it.
	if p.Routes != nil {
		errs = append(errs, s.setRoutes(ctx, p.Routes))
		s.claims.Applied(p.Claims, p.Standing)
	}
	errs = append(errs, s.masquerade(ctx, p.Rules))
	if have, err := os.ReadFile(path); err != nil || !bytes.Equal(have, p.Conflist) {
		if err := os.MkdirAll(s.CNIDir, 0o755); err != nil {
			errs = append(errs, fmt.Errorf("making the directory of CNI configurations: %w", err))
		}
		if err := atomicfile.Write(path, p.Conflist, 0o644); err != nil {
			errs = append(errs, fmt.Errorf("writing the CNI configuration: %w", err))
		}
	}
	if !s.said {
		s.said = true
		s.run.Event(corev1.EventTypeNormal, "NetworkPolicyNotEnforced", "the pod network of this device does not enforce NetworkPolicies")
	}
	return errors.Join(errs...)
}

// foreign are the CNI configurations of others, by name.
func (s *syncer) foreign() (all []string, err error) {
	entries, err := os.ReadDir(s.CNIDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("looking for CNI configurations: %w", err)
	}
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		if e.Name() != File && !strings.HasPrefix(e.Name(), ".") && slices.Contains([]string{".conf", ".conflist", ".json"}, ext) {
			all = append(all, e.Name())
		}
	}
	return all, nil
}

// masquerade reconciles the kernel for changed rules and at each resync, not at each heartbeat of
// the Node: it starts a program.
func (s *syncer) masquerade(ctx context.Context, rules masquerade.Rules) error {
	if reflect.DeepEqual(rules, s.rules) && time.Since(s.ruled) < resync/2 {
		return nil
	}
	if err := s.Masquerade.Apply(ctx, rules); err != nil {
		s.ruled = time.Time{}
		return fmt.Errorf("masquerading pod traffic that leaves the site: %w", err)
	}
	s.rules, s.ruled = rules, time.Now()
	return nil
}

// setRoutes makes our routes equal want. A foreign route for the same range is not touched, and is
// an error.
func (s *syncer) setRoutes(ctx context.Context, want map[netroute.Key]netroute.Route) error {
	var have map[netroute.Key]netroute.Found
	err := s.routes.Routes(ctx, func() { have = map[netroute.Key]netroute.Found{} }, func(f netroute.Found) {
		if s.routes.Ours(f) {
			have[f.Key] = f
		}
	})
	if err != nil {
		return err
	}
	var errs []error
	for key, r := range want {
		if f, ok := have[key]; ok {
			if !f.Satisfies(r) {
				errs = append(errs, s.routes.Replace(ctx, r))
			}
			continue
		}
		errs = append(errs, s.routes.Add(ctx, r))
	}
	for key, f := range have {
		if _, wanted := want[key]; !wanted {
			errs = append(errs, s.routes.Delete(ctx, f.Route))
		}
	}
	return errors.Join(errs...)
}

// tell writes this device's condition to the Node, if it differs.
func (s *syncer) tell(ctx context.Context, node *corev1.Node, p Plan) error {
	var errs []error
	patch := func(kind types.PatchType, what map[string]any, sub ...string) {
		body, err := json.Marshal(what)
		if err == nil {
			_, err = s.client.CoreV1().Nodes().Patch(ctx, s.NodeName, kind, body, metav1.PatchOptions{}, sub...)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("writing to the Node: %w", err))
		}
	}
	if s.Site != nil && p.Addresses != "" && node.Annotations[v1alpha1.LANAddressesAnnotation] != p.Addresses {
		patch(types.MergePatchType, map[string]any{"metadata": map[string]any{"annotations": map[string]any{v1alpha1.LANAddressesAnnotation: p.Addresses}}})
	}
	if len(p.PodCIDRs) > 0 {
		patch(types.MergePatchType, map[string]any{"spec": map[string]any{"podCIDR": p.PodCIDRs[0], "podCIDRs": p.PodCIDRs}})
	}
	status := corev1.ConditionFalse
	if p.Reason == ReasonReady || p.HandsOff {
		status = corev1.ConditionTrue
	}
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == ConditionType })
	if i >= 0 && node.Status.Conditions[i].Status == status && node.Status.Conditions[i].Reason == p.Reason && node.Status.Conditions[i].Message == p.Message {
		return errors.Join(errs...)
	}
	now := metav1.Now()
	since := now
	if i >= 0 && node.Status.Conditions[i].Status == status {
		since = node.Status.Conditions[i].LastTransitionTime
	}
	patch(types.StrategicMergePatchType, map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: ConditionType, Status: status, Reason: p.Reason, Message: p.Message, LastHeartbeatTime: now, LastTransitionTime: since,
	}}}}, "status")
	if i < 0 || node.Status.Conditions[i].Reason != p.Reason {
		kind := corev1.EventTypeNormal
		if status != corev1.ConditionTrue {
			kind = corev1.EventTypeWarning
		}
		s.run.Event(kind, p.Reason, "%s", p.Message)
	}
	return errors.Join(errs...)
}
