package relay

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/cloud/internal/core/fence"
	"github.com/skerry-io/skerry/cloud/internal/core/fleet"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

const (
	leaseSeconds = 40              // the kubelet's nodeLeaseDurationSeconds
	ownerTimeout = 2 * time.Second // for the Node: the renewal does not depend on it
)

// lease is a node's Lease, kept by its session, and with it the right to write for the node.
//
// The edge answers its kubelet's renewals itself and reports in each heartbeat whether the kubelet
// is alive; while it is, the Lease at kube-apiserver is renewed from here. A dead kubelet, a dead
// link and a dead cloudcore all end in a Lease that is not renewed.
//
// The Lease also orders the sessions of one node, on whichever replica of cloudcore they are: it
// holds the epoch of the session, which grows with each connect. A session first writes its epoch,
// and before that no other object; each renewal is conditional on the Lease as this session left
// it. A session that finds a higher epoch there stops. Until then its writes can't overwrite those
// of the newer session: see package fence.
type lease struct {
	relay    *Relay
	link     cloudhub.Session
	as       kube.Identity
	acquired chan struct{}  // closed when the epoch is ours
	steps    sync.WaitGroup // Add only with mu held and stopped not set

	// Set by run, then only read.
	ctx    context.Context
	failed func(error)
	then   func() // called once, when the epoch is ours

	mu       sync.Mutex
	alive    bool
	heardAt  time.Time
	said     said
	timer    *time.Timer // of the next step
	stepping bool        // work runs
	again    bool        // there is a reason for it to look once more
	lost     bool        // a write found that the Lease is not ours, though no newer session has it
	stopped  bool

	// Owned by work, and by who starts it.
	have      []byte // the Lease as this session left it, encoded to save memory; nil: unknown, or absent
	renewedAt time.Time
	held      bool // acquired, and not lost since
	opened    bool // then was called
	misses    int  // in a row
}

// said is the rest of the last heartbeat; all zero for an idle device.
type said struct {
	backlog uint32
	oldest  uint32 // time of the oldest write, in Unix seconds by cloudcore's clock
	renewed uint32 // expiry of a certificate renewed since the handshake, in Unix seconds; 0 without one
}

func newLease(r *Relay, link cloudhub.Session) *lease {
	return &lease{relay: r, link: link, as: kube.Identity{Node: link.Node()}, acquired: make(chan struct{})}
}

// staleAfter is how long a heartbeat counts: without another, the kubelet is not known to be alive.
// Two may be late or lost by half an interval; below the usual interval of 10 s a shorter time has
// no benefit.
func (l *lease) staleAfter() time.Duration {
	return max(5*l.link.Keepalive()/2, 25*time.Second)
}

// lose has the Lease acquired again: it was removed, or an older copy of etcd was restored.
func (l *lease) lose() {
	l.mu.Lock()
	l.lost = true
	l.mu.Unlock()
	l.kick()
}

// wasLost reports whether lose was called since it was last asked.
func (l *lease) wasLost() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	lost := l.lost
	l.lost = false
	return lost
}

// heard takes in a heartbeat.
func (l *lease) heard(h *topicpb.Heartbeat) {
	now, alive := time.Now(), h.GetKubeletAlive()
	l.mu.Lock()
	first := alive && !l.fresh(now)
	l.alive, l.heardAt = alive, now
	l.said = said{backlog: h.GetBacklog(), renewed: uint32(min(max(0, h.GetCertificateUnix()), math.MaxUint32))}
	if l.said.backlog > 0 {
		l.said.oldest = uint32(max(0, now.Unix()-int64(h.GetBacklogSeconds())))
	}
	l.mu.Unlock()
	if first { // after silence, or of a kubelet that lives again
		l.kick()
	}
}

// due reports whether the Lease is to be renewed now, and when to look again.
func (l *lease) due(now time.Time) (bool, time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.fresh(now) {
		return false, l.relay.renewEvery
	}
	if wait := l.renewal().Sub(now); wait > 0 {
		return false, wait
	}
	return true, 0
}

// lives reports whether the kubelet is known to live.
func (l *lease) lives(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fresh(now)
}

// fresh is lives with mu held.
func (l *lease) fresh(now time.Time) bool { return l.alive && now.Sub(l.heardAt) < l.staleAfter() }

// renewal is when the Lease is to be renewed next: three quarters of an interval after a heartbeat,
// and so a quarter before the next one. mu is held.
//
// Where this host dies, the device counts its silence from the last heartbeat that was
// acknowledged, and dials another replica three intervals later. The age of the Lease at that
// heartbeat counts. Renewed a quarter of an interval before every second heartbeat, it is at most
// one interval and a quarter old at any of them. With heartbeats each 10 s that is 12.5 s, and with
// the silence and some 3 s to dial 45.5 s: below the 50 s of kube-controller-manager's
// --node-monitor-grace-period. A renewal at the heartbeat itself would be under way when that one
// has just been acknowledged: a host that dies then leaves a Lease of 20 s. The quarter allows for
// the duration of a write and a late heartbeat.
//
// The result is within an interval below renewEvery and a quarter of one, so that late, reordered
// or lost heartbeats shift it and don't delay it. Where two intervals don't fit into renewEvery an
// earlier renewal has no benefit: so long a silence is noticed too late in any case.
func (l *lease) renewal() time.Time {
	at, every := l.renewedAt.Add(l.relay.renewEvery), l.link.Keepalive()
	if 2*every > l.relay.renewEvery {
		return at
	}
	latest := at.Add(every / 4)
	early := latest.Sub(l.heardAt.Add(3*every/4)) % every
	if early < 0 {
		early += every
	}
	return latest.Add(-early)
}

// run keeps the Lease until ctx ends or stop is called. failed receives the reason why the session
// must end; then is called once the Lease is ours, and must not wait. Between two requests there is
// a timer and no goroutine: the stack of one that has made an HTTP request is the most that an idle
// node would cost here.
func (l *lease) run(ctx context.Context, failed func(error), then func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ctx, l.failed, l.then = ctx, failed, then
	l.timer = time.AfterFunc(0, l.kick)
}

// stop returns when no request is on its way any more.
func (l *lease) stop() {
	l.mu.Lock()
	l.stopped = true
	l.timer.Stop()
	l.mu.Unlock()
	l.steps.Wait()
}

// kick starts the steps that are due, unless they are under way.
func (l *lease) kick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.timer == nil || l.stopped: // a heartbeat before run, or at the end
	case l.stepping:
		l.again = true
	default:
		l.stepping = true
		l.relay.leases.do(l.link.Node(), l.renewedAt, func() {
			if l.enter() {
				defer l.steps.Done()
				l.work()
			}
		})
	}
}

// enter reports whether the Lease is still kept, and keeps stop waiting for steps.Done if it is.
func (l *lease) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return false
	}
	l.steps.Add(1)
	return true
}

// work makes steps until there is a time to wait for.
func (l *lease) work() {
	for {
		wait := l.step()
		l.mu.Lock()
		if again := l.again; !again && wait > 0 || l.stopped || l.ctx.Err() != nil {
			l.stepping = false
			if !l.stopped && l.ctx.Err() == nil {
				l.timer.Reset(wait)
			}
			l.mu.Unlock()
			return
		}
		l.again = false
		l.mu.Unlock()
	}
}

// step does the work that is due and returns the time until the next step; 0: at once.
func (l *lease) step() time.Duration {
	if l.wasLost() {
		l.held, l.have = false, nil
	}
	if l.held {
		if due, wait := l.due(time.Now()); !due {
			return wait
		}
	}
	operation, do := "acquire", l.acquire
	if l.held {
		operation, do = "renew", l.renew
	}
	err := do(l.ctx)
	switch stop := final(err); {
	case err == nil && l.held:
		l.misses = 0
	case err == nil:
		l.misses, l.held = 0, true
		if !l.opened {
			l.opened = true
			close(l.acquired)
			l.then()
		}
	case stop != nil:
		l.failed(stop) // ctx ends with it, soon
		return l.relay.renewEvery
	default:
		l.misses++
		l.relay.metrics.renewalFailures.Add(1)
		klog.FromContext(l.ctx).V(2).Info("Failed to write the node's Lease, retrying", "operation", operation, "err", err)
		return min(backoff(l.misses), 3*time.Second)
	}
	return 0
}

// final returns the error that ends the session: a newer session has the Lease, or the epoch is too
// high for later ones.
func final(err error) error {
	if s, ok := errors.AsType[*fence.Superseded](err); ok {
		return &link.CloseError{Code: link.CloseReplaced, Reason: s.Error()}
	}
	if clone, ok := errors.AsType[*fence.Clone](err); ok {
		return &link.CloseError{Code: link.CloseForbidden, Reason: clone.Error()}
	}
	if far, ok := errors.AsType[*fence.TooFar](err); ok {
		return &link.CloseError{Code: link.CloseForbidden, Reason: far.Error()}
	}
	return nil
}

// acquire puts the session's epoch into the Lease, and renews it where a heartbeat has already
// reported a live kubelet: where thousands of devices come back at once, that saves a third of
// kube-apiserver's work for their Leases.
func (l *lease) acquire(ctx context.Context) error {
	if err := l.find(ctx); err != nil {
		return err
	}
	at := time.Now()
	var annotations map[string]string
	if l.have != nil {
		have, err := leaseIn(l.have)
		if err != nil {
			return err
		}
		annotations = have.Annotations
	}
	if err := fence.Plausible(annotations, l.link.Epoch(), at); err != nil {
		return err
	}
	if err := fence.SameMachine(time.Now(), fence.MachineIn(annotations), machineOf(l.link)); err != nil {
		return err
	}
	return l.put(ctx, at, l.lives(at))
}

// find reads the Lease, possibly from a cache. An old copy does no harm: the write that follows is
// refused with a conflict, and the next attempt reads the newest.
func (l *lease) find(ctx context.Context) error {
	if l.misses > 0 {
		return l.read(ctx, newest)
	}
	have := l.relay.leases.read(ctx, l.link.Node())
	if have == nil || !l.lives(time.Now()) { // the heartbeat comes while the Lease is read
		return l.read(ctx, cached)
	}
	return l.take(have)
}

// renew writes the Lease with the time of now. The renewal is conditional on the Lease being as
// this session left it; one that isn't is read again.
func (l *lease) renew(ctx context.Context) error {
	if l.have == nil {
		if err := l.read(ctx, newest); err != nil {
			return err
		}
	}
	return l.put(ctx, time.Now(), true)
}

// put writes the Lease as this session wants it, renewed at that time or not.
func (l *lease) put(ctx context.Context, at time.Time, renewed bool) error {
	n, err := l.next()
	if err != nil {
		return err
	}
	if renewed {
		// A renewal by a clock that is behind the one of the renewal before, another replica's or
		// this one before it was set, stays a microsecond later than that: kube-controller-manager
		// ignores an earlier one (see next).
		if n.Spec.RenewTime.Time.Before(at) {
			n.Spec.RenewTime = &metav1.MicroTime{Time: at}
		}
		if len(n.OwnerReferences) == 0 {
			l.setOwner(ctx, n)
		}
	}
	if err := l.write(ctx, n); err != nil {
		return err
	}
	if renewed {
		l.renewedAt = at
		l.relay.metrics.renewals.Add(1)
	}
	return nil
}

// next is the Lease as this session wants it.
func (l *lease) next() (*coordinationv1.Lease, error) {
	n := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: string(l.link.Node()), Namespace: corev1.NamespaceNodeLease}}
	if l.have != nil {
		var err error
		if n, err = leaseIn(l.have); err != nil {
			return nil, err
		}
	}
	if n.Annotations == nil {
		n.Annotations = map[string]string{}
	}
	n.Annotations[fence.EpochAnnotation] = strconv.FormatUint(l.link.Epoch(), 10)
	n.Annotations[fence.InstanceAnnotation] = l.relay.instance
	n.Annotations[fleet.SessionAnnotation] = l.session().Annotation()
	if m := machineOf(l.link); m.ID != "" {
		n.Annotations[fence.MachineAnnotation] = m.Annotation()
	}
	if delete(n.Annotations, fence.TunnelAnnotation); l.relay.announce != nil {
		n.Annotations[fence.TunnelAnnotation] = l.relay.announce(l.link.Node())
	}
	holder, seconds := string(l.link.Node()), int32(leaseSeconds)
	n.Spec.HolderIdentity, n.Spec.LeaseDurationSeconds = &holder, &seconds
	if t := n.Spec.RenewTime; t != nil {
		// A write without a renewal still advances renewTime. With the
		// NodeControllerLeaseCircuitBreaker of Kubernetes 1.37 kube-controller-manager marks no
		// node NotReady whose Lease has another resourceVersion than the last one with a later
		// renewal: without this a device whose link goes before its kubelet lives would be Ready
		// for ever. It counts as a sign of life, once for each session.
		n.Spec.RenewTime = &metav1.MicroTime{Time: t.Add(time.Microsecond)}
	} else {
		// Never nil: kube-controller-manager's node lifecycle compares each renewal with the last
		// Lease that it kept, and no time is after nil, so it would never see a renewal again. A
		// Lease that was never renewed begins as one that has just expired.
		n.Spec.RenewTime = &metav1.MicroTime{Time: time.Now().Add(-leaseSeconds * time.Second)}
	}
	return n, nil
}

// SameMachine returns an error if a new session of a node comes from another machine than the open
// one.
func SameMachine(open, fresh cloudhub.Session) error {
	return fence.SameMachine(time.Now(), machineOf(open), machineOf(fresh))
}

// machineOf is the machine that a session comes from.
func machineOf(s cloudhub.Session) fence.Machine {
	peer := s.Info().Peer
	if peer == nil {
		return fence.Machine{}
	}
	return fence.MachineOf(s.Machine(), peer)
}

// session returns the state of the link.
func (l *lease) session() fleet.Session {
	l.mu.Lock()
	said := l.said
	l.mu.Unlock()
	info := l.link.Info()
	s := fleet.Session{Transport: string(info.Transport), Version: l.link.Version(), Backlog: int(said.backlog), Oldest: seconds(said.oldest)}
	if !info.Since.IsZero() {
		s.Since = seconds(uint32(info.Since.Unix()))
	}
	if s.CertificateEnd = seconds(said.renewed); s.CertificateEnd == nil && info.Peer != nil {
		s.CertificateEnd = &metav1.Time{Time: info.Peer.NotAfter.UTC()}
	}
	s.Traffic = trafficOf(l.link)
	return s
}

// trafficOf returns the counts of a session's link; nil where it does not count.
func trafficOf(session any) *fleet.Traffic {
	counted, ok := session.(interface {
		Traffic() (link.Stats, link.Wire)
	})
	if !ok {
		return nil
	}
	stats, wire := counted.Traffic()
	t := &fleet.Traffic{Wire: fleet.Bytes{Down: wire.Sent, Up: wire.Received}}
	for class := range topic.Classes {
		t.Classes = append(t.Classes, fleet.Class{
			DownMessages: stats.Sent[class].Messages, DownBytes: stats.Sent[class].Bytes, UpMessages: stats.Received[class].Messages, UpBytes: stats.Received[class].Bytes,
		})
	}
	return t
}

// report returns the input of Nodes.
func (l *lease) report() report {
	r := report{Session: l.session()}
	l.mu.Lock()
	defer l.mu.Unlock()
	r.heard, r.alive = l.heardAt, l.alive
	return r
}

// seconds is a time, nil of 0.
func seconds(unix uint32) *metav1.Time {
	if unix == 0 {
		return nil
	}
	return &metav1.Time{Time: time.Unix(int64(unix), 0).UTC()}
}

// read finds the Lease as it is, and whose it is.
func (l *lease) read(ctx context.Context, from string) error {
	p, err := pathTo(leaseResource(), corev1.NamespaceNodeLease, string(l.link.Node()), "")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	resp, err := l.relay.client.Do(ctx, l.as, kube.Request{Method: http.MethodGet, Path: p, Query: from, Accept: leaseTypes})
	if err != nil {
		return err
	}
	if resp.Code == http.StatusNotFound {
		l.have = nil
		return nil
	}
	if err := resp.Err(); err != nil {
		return err
	}
	return l.takeFrom(resp.Body)
}

func (l *lease) takeFrom(body []byte) error {
	have, err := leaseIn(body)
	if err != nil {
		return err
	}
	return l.take(have)
}

// take keeps the Lease as it is at kube-apiserver, unless a newer session has it.
func (l *lease) take(have *coordinationv1.Lease) error {
	if err := fence.Compare(have.Annotations, l.link.Epoch()); err != nil && !errors.Is(err, fence.ErrNotHeld) {
		return err
	}
	have.ManagedFields = nil
	var err error
	l.have, err = kube.ToProtobuf(leaseKind("Lease"), have)
	return err
}

func (l *lease) write(ctx context.Context, n *coordinationv1.Lease) error {
	body, err := kube.ToProtobuf(leaseKind("Lease"), n)
	if err != nil {
		return err
	}
	method, name := http.MethodPut, n.Name
	if n.ResourceVersion == "" {
		method, name = http.MethodPost, ""
	}
	p, err := pathTo(leaseResource(), corev1.NamespaceNodeLease, name, "")
	if err != nil {
		return err
	}
	attempt, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	resp, err := l.relay.client.Do(attempt, l.as, kube.Request{Method: method, Path: p, ContentType: kube.Protobuf, Accept: leaseTypes, Body: body})
	if err != nil {
		return err
	}
	if err := resp.Err(); err != nil {
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
			l.have = nil // another writer has changed or removed it: reading it again shows which
			if err := l.read(ctx, newest); err != nil {
				return err
			}
		}
		return err
	}
	l.relay.leases.wrote(l.link.Node())
	return l.takeFrom(resp.Body)
}

// setOwner lets the Lease go with its Node, as a kubelet does. A node that isn't there yet is
// looked for again at the next renewal.
func (l *lease) setOwner(ctx context.Context, n *coordinationv1.Lease) {
	p, err := pathTo(schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, "", string(l.link.Node()), "")
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, ownerTimeout)
	defer cancel()
	resp, err := l.relay.client.Do(ctx, l.as, kube.Request{Method: http.MethodGet, Path: p, Accept: metadataOnly})
	if err != nil || resp.Err() != nil {
		return
	}
	node, ok := metadataIn(resp.Body)
	if !ok || node.UID == "" {
		return
	}
	n.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
}
