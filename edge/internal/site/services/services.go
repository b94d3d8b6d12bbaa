// Package services implements ClusterIPs and NodePorts in the kernel of this device, from the
// device's cache: with the cloud, without it, and before the kubelet starts.
//
// It owns when Kubernetes' proxy runs in this process, and its input: all Services and corrected
// EndpointSlices of the edge API up to a bound, and the site as the device's zone. It refuses to
// work together with a kube-proxy pod of the device: then it stays off and reports that. The rules
// stay in the kernel while edgecore is down.
//
// How it works: it is an agent (edge/internal/core/agent) whose Sync decides whether the proxy
// may run. Kubernetes' proxy has no way to stop, so one that has to make room for a kube-proxy pod
// ends edgecore, which is started again and stays off then; containers keep running.
package services

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/agents/probation"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/kubeproxy"
)

// Name is the module's address on the bus.
const Name message.Name = "services"

const (
	// readyAfter is how long the kubelet waits for the first rules.
	readyAfter = 10 * time.Second
	resync     = time.Minute
	// ownKey is set while rules in the kernel are ours.
	ownKey = "rules"
)

// Driver is the kernel's side: a *kubeproxy.Driver.
type Driver interface {
	Open(ctx context.Context) (p kubeproxy.Proxy, mode string, err error)
	Clear(ctx context.Context) error
	// ResetTCP has TCP refused by a reset; done is false while that can't be so yet. It is called
	// again now and then, in the nftables mode alone.
	ResetTCP(ctx context.Context) (done bool, err error)
}

// Config configures the module.
type Config struct {
	NodeName string
	// Enable off: the rules of an earlier run are removed from the kernel, and that is all.
	Enable bool
	API    *rest.Config
	View   View
	Driver Driver
	Memory agent.Memory
	// Site is the zone that the device is in for topology hints; "" where its Node's label counts.
	Site func() string
	// Rules judges addresses of Services that are outside of the cluster; remote is the current
	// address of the link. nil: all externalIPs are ignored, and all addresses of load balancers
	// accepted.
	Rules func(remote netip.Addr) Rules
	// Probation takes back an address outside of the cluster that takes the link away; nil: there
	// is no cloud to lose.
	Probation *probation.Probation
	// Bounds that are zero are the standard ones.
	Bounds Bounds
	Events func(ctx context.Context) (agent.Recorder, error)
}

// New makes the module. It must not be started again: see the package comment.
func New(c Config) *agent.Module {
	if c.Bounds == (Bounds{}) {
		c.Bounds = Bounds{maxServices, maxEndpoints}
	}
	kit := agent.Config{Name: Name, NodeName: c.NodeName, API: c.API, ReadyAfter: readyAfter, Resync: resync, Events: c.Events}
	kit.Start = func(_ context.Context, r *agent.Run) (agent.Sync, error) {
		if !c.Enable {
			return func(ctx context.Context) (time.Duration, error) { return 0, c.clear(ctx) }, nil
		}
		pods, err := agent.Watch(r, corev1.SchemeGroupVersion.WithResource("pods"), &corev1.Pod{}, agent.Selection{Fields: "spec.nodeName=" + c.NodeName})
		if err != nil {
			return nil, err
		}
		nodes, err := agent.Watch(r, corev1.SchemeGroupVersion.WithResource("nodes"), &corev1.Node{}, agent.Selection{Fields: "metadata.name=" + c.NodeName})
		if err != nil {
			return nil, err
		}
		s := &switcher{Config: c, run: r, over: make(chan error, 1), claims: c.Probation.Of("address of the Service", r.Wake), since: map[string]time.Time{}}
		r.Go(func(ctx context.Context) error {
			select {
			case err := <-s.over:
				return err
			case <-ctx.Done():
				return nil
			}
		})
		return func(ctx context.Context) (time.Duration, error) {
			n, _ := nodes.Get(c.NodeName)
			err := s.sync(ctx, pods.List(), n)
			return sooner(s.applied(time.Now()), s.reset(ctx, time.Now())), err
		}, nil
	}
	return agent.New(kit)
}

// Owns reports whether rules in the kernel are an edgecore's, by its saved state: a kube-proxy's
// have the same names.
func Owns(m agent.Memory) (bool, error) {
	kept, err := m.Load()
	return len(kept[ownKey]) > 0, err
}

// clear removes rules of an earlier run.
func (c *Config) clear(ctx context.Context) error {
	if ours, err := Owns(c.Memory); err != nil || !ours {
		return err
	}
	if err := c.Driver.Clear(ctx); err != nil {
		return err
	}
	return c.Memory.Save(ctx, map[string][]byte{ownKey: nil})
}

// switcher decides whether the proxy runs.
type switcher struct {
	Config
	run  *agent.Run
	over chan error // one slot: ends edgecore

	proxy    kubeproxy.Proxy // nil: off
	mode     string          // of the proxy
	resets   time.Time       // until when TCP is taken to be refused by a reset
	unknown  bool            // the store has not taken yet that rules may be ours
	feed     *feed
	topology map[string]string
	judged   []string // addresses of Services that don't count
	claims   *probation.Claims
	since    map[string]time.Time // when a claim was handed to the proxy
	aside    string               // the kube-proxy pod that it stays off for
	out      int
}

// errRoom ends edgecore.
var errRoom = errors.New("a kube-proxy pod runs on this device now: restarting edgecore without its own rules for Services")

func (s *switcher) sync(ctx context.Context, pods []*corev1.Pod, node *corev1.Node) error {
	if other := KubeProxy(pods); other != "" {
		return s.standAside(ctx, other)
	}
	if s.aside != "" {
		s.aside = ""
		s.run.Note("")
		klog.FromContext(ctx).Info("kube-proxy pod is gone from this device")
	}
	if s.proxy == nil {
		if err := s.begin(ctx, node); err != nil {
			return err
		}
	} else if s.unknown {
		_ = s.own(ctx) // a full disk; again the next time
	}
	s.setTopology(node)
	if l := s.run.Link(); l.Up {
		s.claims.Linked(l.Link.Epoch)
	}
	why := s.feed.judgeAgain(s.View)
	news := !slices.Equal(why, s.judged)
	s.judged = why
	if news && len(why) > 0 {
		s.run.Event(corev1.EventTypeWarning, "ServiceAddressRefused", "ignored addresses of Services on this device: %s", listed(why))
		klog.FromContext(ctx).Info("Refused addresses of Services", "refused", listed(why))
	}
	if out := s.feed.services.out() + s.feed.slices.out(); out != s.out || news {
		s.out = out
		s.run.Note("")
		if len(why) > 0 {
			s.run.Note("ignored addresses of Services on this device: " + listed(why))
		}
		if out > 0 {
			s.run.Note(fmt.Sprintf("%d Services and EndpointSlices are above what a device serves (%d Services, %d endpoints): the newest stay out",
				out, s.Bounds.Services, s.Bounds.Endpoints))
			s.run.Event(corev1.EventTypeWarning, "TooManyServices", "%d Services and EndpointSlices are above what a device serves; the newest stay out", out)
		}
	}
	return nil
}

// rules are the present ones.
// The proxy makes its chains anew each hour, and for another topology. A look at them starts
// programs.
const (
	resetAgain = 5 * time.Second
	resetHolds = 10 * time.Minute
)

// reset has TCP refused by a reset. It returns when to look again.
func (s *switcher) reset(ctx context.Context, now time.Time) (again time.Duration) {
	switch {
	case s.proxy == nil || s.mode != kubeproxy.NFTables:
		return 0
	case now.Before(s.resets):
		return s.resets.Sub(now)
	}
	done, err := s.Driver.ResetTCP(ctx)
	switch {
	case err != nil: // ICMP refuses too
		klog.FromContext(ctx).Error(err, "Failed to set up TCP resets for refused connections, retrying later")
	case !done:
		return resetAgain
	}
	s.resets = now.Add(resetHolds)
	return resetHolds
}

// sooner returns the shorter of two waits; 0 means no wait.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// programming is how long the proxy may take to program the kernel: only then the cloud's answer is
// evidence about a claim.
const programming = 5 * time.Second

// applied passes to the probation the addresses outside of the cluster that Services claim, and
// those that the kernel has by now. It returns the time until the next call, 0 for no deadline.
func (s *switcher) applied(now time.Time) (again time.Duration) {
	if s.proxy == nil {
		return 0
	}
	all, given := s.feed.claims(s.View)
	maps.DeleteFunc(s.since, func(claim string, _ time.Time) bool { return !given[claim] })
	var standing []string
	for claim := range given {
		since, known := s.since[claim]
		if !known {
			since, s.since[claim] = now, now
		}
		if left := programming - now.Sub(since); left > 0 {
			if again == 0 || left < again {
				again = left
			}
			continue
		}
		standing = append(standing, claim)
	}
	s.claims.Applied(all, standing)
	return again
}

func (s *switcher) rules() Rules {
	if s.Rules == nil {
		return Rules{Withheld: s.claims.Withheld}
	}
	var remote netip.Addr
	if l := s.run.Link(); l.Up {
		if at, err := netip.ParseAddrPort(l.Link.Remote); err == nil {
			remote = at.Addr().Unmap()
		}
	}
	rules := s.Rules(remote)
	rules.Withheld = s.claims.Withheld
	return rules
}

// maxListed is how many refused addresses a text names.
const maxListed = 8

func listed(why []string) string {
	if more := len(why) - maxListed; more > 0 {
		why = append(slices.Clone(why[:maxListed]), fmt.Sprintf("%d more", more))
	}
	return strings.Join(why, "; ")
}

// begin starts the proxy and returns when its first rules are in the kernel.
func (s *switcher) begin(ctx context.Context, node *corev1.Node) error {
	if !cache.WaitForCacheSync(ctx.Done(), s.View.HasSynced) {
		return ctx.Err()
	}
	// First: after a crash behind it, the next run knows that there may be rules. A full disk must
	// not keep Services away, and an opened proxy can't be closed: a later failure would open it
	// again, each time.
	switch err := s.own(ctx); {
	case errors.Is(err, store.ErrFull):
		klog.FromContext(ctx).Error(err, "Failed to persist ownership of Service rules, retrying")
	case err != nil:
		return err
	}
	p, mode, err := s.Driver.Open(ctx)
	if err != nil {
		return fmt.Errorf("serving Services: %w", err)
	}
	s.feed = newFeed(p, s.Bounds, s.rules)
	s.proxy, s.mode = p, mode
	s.setTopology(node)
	if err := s.feed.attach(ctx, s.View, p, s.run.Wake); err != nil {
		return err
	}
	go p.SyncLoop() // has no end in Kubernetes' code; the module runs once in a process
	klog.FromContext(ctx).Info("Serving Services on this device", "mode", mode)
	return nil
}

// own keeps that rules may be ours, if the store does not have it.
func (s *switcher) own(ctx context.Context) error {
	ours, err := Owns(s.Memory)
	if err == nil && !ours {
		err = s.Memory.Save(ctx, map[string][]byte{ownKey: []byte("true")})
	}
	s.unknown = err != nil
	return err
}

// setTopology sets the proxy's zone, as used by hints.
func (s *switcher) setTopology(node *corev1.Node) {
	labels := map[string]string{corev1.LabelHostname: s.NodeName}
	if node != nil {
		for _, l := range []string{corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyRegion} {
			if v := node.Labels[l]; v != "" {
				labels[l] = v
			}
		}
	}
	if site := s.Site(); site != "" {
		labels[corev1.LabelTopologyZone] = site
	}
	if maps.Equal(labels, s.topology) {
		return
	}
	s.topology, s.resets = labels, time.Now().Add(resetAgain) // it has the chains made anew
	s.proxy.OnTopologyChange(labels)
}

// standAside leaves Services to a kube-proxy pod.
func (s *switcher) standAside(ctx context.Context, pod string) error {
	if s.proxy != nil {
		if err := s.clear(ctx); err != nil {
			return err
		}
		select {
		case s.over <- errRoom:
		default:
		}
		return nil
	}
	if s.aside == pod {
		return nil
	}
	s.aside = pod
	text := fmt.Sprintf("off: the pod %s serves Services on this device", pod)
	s.run.Note(text)
	s.run.Event(corev1.EventTypeNormal, "ServicesOff", "edgecore's own proxy is %s", text)
	klog.FromContext(ctx).Info("Leaving Services to a kube-proxy pod", "pod", pod)
	// Rules of an earlier run are the pod's now: kube-proxy uses the same names, and removes those
	// of its other modes.
	return s.Memory.Save(ctx, map[string][]byte{ownKey: nil})
}

// KubeProxy finds the pod among those of a device that is a kube-proxy; "" without one.
func KubeProxy(pods []*corev1.Pod) string {
	var found []string
	for _, p := range pods {
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed || !p.Spec.HostNetwork {
			continue
		}
		is := p.Labels["k8s-app"] == "kube-proxy" || slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool {
			return c.Name == "kube-proxy" || len(c.Command) > 0 && path.Base(c.Command[0]) == "kube-proxy"
		})
		if is {
			found = append(found, p.Namespace+"/"+p.Name)
		}
	}
	if len(found) == 0 {
		return ""
	}
	return slices.Min(found)
}
