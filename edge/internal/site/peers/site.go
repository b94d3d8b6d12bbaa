// Package peers keeps the members of this device's site, as the cloud sent them last: over reboots
// too, since devices meet when no cloud can be asked.
//
// It owns the topic Site on the device and its copy in the store. It refuses a Site above its
// bounds, and keeps the one before. A Holder serves the sessions of edgehub, one at a time; Current
// and Changed may be called by any goroutine. A Site is never changed.
package peers

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
)

// Bounds of a Site; the cloud keeps them too.
const (
	MaxMembers   = 64
	maxAddresses = 16
	maxRanges    = 4
	maxRevoked   = 4096
	maxKeys      = 16
)

// Site has the members of the site.
type Site struct {
	Name       string
	Members    []Member // by name, this device too
	TooMany    bool
	PodNetwork string
	// PodSubnets: the pool gives ranges for pods. Where the configuration leaves it open, devices
	// then make the pod network and serve Services and names.
	PodSubnets bool
	revoked    map[string]bool
}

// Member is a device of the site.
type Member struct {
	Node      string
	PodCIDRs  []netip.Prefix
	Addresses []netip.Addr
	validFrom time.Time // zero: it has no revoked certificates
	keys      []string
}

// Ranges are where addresses of a device's pods may be: its ranges, and its own addresses, which
// pods in the host's network have.
func (m *Member) Ranges() []netip.Prefix {
	all := slices.Clone(m.PodCIDRs)
	for _, a := range m.Addresses {
		all = append(all, netip.PrefixFrom(a.WithZone(""), a.BitLen()))
	}
	return all
}

// Member finds a device; nil for one that is not in the site.
func (s *Site) Member(node string) *Member {
	if s == nil {
		return nil
	}
	i := slices.IndexFunc(s.Members, func(m Member) bool { return m.Node == node })
	if i < 0 {
		return nil
	}
	return &s.Members[i]
}

// Admits is nil for a verified certificate of a device of the site that is not revoked.
func (s *Site) Admits(cert *x509.Certificate) (*Member, error) {
	node, err := pki.NodeOf(cert)
	if err != nil {
		return nil, err
	}
	m := s.Member(string(node))
	if m == nil {
		return nil, fmt.Errorf("%s is not in this site", node)
	}
	if s.revoked[pki.Fingerprint(cert)] {
		return nil, fmt.Errorf("this certificate of %s is revoked", node)
	}
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	if cert.NotBefore.Before(m.validFrom) && !slices.Contains(m.keys, hex.EncodeToString(sum[:])) {
		return nil, fmt.Errorf("certificates of %s from before %s are revoked", node, m.validFrom.UTC().Format(time.RFC3339))
	}
	return m, nil
}

// Read makes a Site of a payload. node is this device's name.
func Read(p *topicpb.Site, node string) (*Site, error) {
	if len(p.GetMembers()) > MaxMembers || len(p.GetRevoked()) > maxRevoked {
		return nil, fmt.Errorf("a site of %d devices and %d revoked certificates is above the bounds", len(p.GetMembers()), len(p.GetRevoked()))
	}
	s := &Site{Name: p.GetName(), TooMany: p.GetTooMany(), PodNetwork: p.GetPodNetwork(), PodSubnets: p.GetPodSubnets(), revoked: map[string]bool{}}
	for _, print := range p.GetRevoked() {
		s.revoked[print] = true
	}
	for _, m := range p.GetMembers() {
		if err := pki.ValidNodeName(types.NodeName(m.GetNode())); err != nil {
			return nil, err
		}
		if len(m.GetAddresses()) > maxAddresses || len(m.GetPodCidrs()) > maxRanges || len(m.GetKeys()) > maxKeys {
			return nil, fmt.Errorf("device %s is above the bounds", m.GetNode())
		}
		one := Member{Node: m.GetNode(), keys: m.GetKeys()}
		if from := m.GetValidFrom(); from != 0 {
			one.validFrom = time.Unix(from, 0)
		}
		for _, text := range m.GetPodCidrs() {
			r, err := netip.ParsePrefix(text)
			if err != nil {
				return nil, fmt.Errorf("device %s: %w", one.Node, err)
			}
			one.PodCIDRs = append(one.PodCIDRs, r.Masked())
		}
		for _, text := range m.GetAddresses() {
			if a, err := netip.ParseAddr(text); err == nil { // other text can't be dialled
				one.Addresses = append(one.Addresses, a.Unmap())
			}
		}
		s.Members = append(s.Members, one)
	}
	if s.Member(node) == nil {
		return nil, errors.New("this device is not a member of the site that the cloud assigned to it")
	}
	return s, nil
}

// Memory keeps small values over restarts.
type Memory interface {
	Load() (map[string][]byte, error)
	Save(ctx context.Context, changes map[string][]byte) error
}

const (
	key = "site"
	// keepAgain is when a Site is kept again that the store did not take.
	keepAgain = 30 * time.Second
)

// Holder keeps the Site. It is a edgehub.Part.
type Holder struct {
	node   string
	memory Memory

	mu      sync.Mutex
	site    *Site  // nil before the cloud has sent it
	kept    *Site  // as the store has it: the same, but where it did not take the newest
	unkept  []byte // the record of the newest, where the store did not take it
	digest  []byte
	waiters []chan struct{}
}

// New makes a Holder of the device of that name. Load fills it.
func New(node string, memory Memory) *Holder { return &Holder{node: node, memory: memory} }

// Load reads the saved state. The cloud sends unreadable state again.
func (h *Holder) Load() error {
	kept, err := h.memory.Load()
	if err != nil || kept[key] == nil {
		return err
	}
	p := &topicpb.Site{}
	if err := proto.Unmarshal(kept[key], p); err != nil {
		return fmt.Errorf("reading the site that was kept: %w", err)
	}
	s, err := Read(p, h.node)
	if err != nil {
		return fmt.Errorf("reading the site that was kept: %w", err)
	}
	h.set(s, p.GetDigest(), nil)
	return nil
}

// Current is the Site; nil before the cloud has sent it for the first time.
func (h *Holder) Current() *Site {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.site
}

// Kept is the Site as the store has it, with which the next edgecore begins. On a full disk that is
// an earlier one than Current.
func (h *Holder) Kept() *Site {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.kept
}

// Changed receives after each change of Current or Kept. It has a buffer of one; every caller gets
// a channel of its own, which is never closed.
func (h *Holder) Changed() <-chan struct{} {
	c := make(chan struct{}, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiters = append(h.waiters, c)
	return c
}

// set takes over a Site; unkept is its record where the store did not take it.
func (h *Holder) set(s *Site, digest, unkept []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.site, h.digest, h.unkept = s, bytes.Clone(digest), unkept
	if unkept == nil {
		h.kept = s
	}
	h.tell()
}

// tell wakes the waiters for a change. The lock is held.
func (h *Holder) tell() {
	for _, c := range h.waiters {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// keep keeps the newest Site, if the store did not take it.
func (h *Holder) keep(ctx context.Context) {
	h.mu.Lock()
	raw := h.unkept
	h.mu.Unlock()
	if raw == nil || h.memory.Save(ctx, map[string][]byte{key: raw}) != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kept, h.unkept = h.site, nil // one session at a time: no change has arrived since
	h.tell()
}

// Attach implements edgehub.Part: it asks once, and keeps the answers.
func (h *Holder) Attach(_ linkstate.Link, send func(context.Context, message.Message) error) (
	handle func(context.Context, message.Message) error, run func(context.Context)) {
	latest := make(chan *topicpb.Site, 1) // the newest; one that was not taken yet is replaced
	handle = func(_ context.Context, m message.Message) error {
		p, err := topic.Site.Content(m)
		if err != nil {
			return err
		}
		select {
		case <-latest:
		default:
		}
		latest <- p // by the session's read loop alone: there is room
		return nil
	}
	return handle, func(ctx context.Context) {
		h.mu.Lock()
		has := h.digest
		h.mu.Unlock()
		if err := send(ctx, topic.SiteRequest.New(message.Resource{Name: h.node}, &topicpb.SiteRequest{Digest: has})); err != nil {
			return // the session ends, and the next one asks
		}
		for {
			var again <-chan time.Time
			if h.Kept() != h.Current() {
				again = time.After(keepAgain)
			}
			select {
			case <-ctx.Done():
				return
			case <-again:
				h.keep(ctx)
			case p := <-latest:
				if err := h.take(ctx, p); err != nil && ctx.Err() == nil {
					klog.FromContext(ctx).Error(err, "Rejected the cloud's description of the site")
				}
			}
		}
	}
}

// take keeps a Site, and uses it from then on.
func (h *Holder) take(ctx context.Context, p *topicpb.Site) error {
	s, err := Read(p, h.node)
	if err != nil {
		return err
	}
	raw, err := proto.Marshal(p)
	if err != nil {
		return fmt.Errorf("keeping the site: %w", err)
	}
	var unkept []byte
	if err := h.memory.Save(ctx, map[string][]byte{key: raw}); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to store the site for the next boot, retrying") // a full disk: it is used nevertheless
		unkept = raw
	}
	klog.FromContext(ctx).Info("Site changed", "site", s.Name, "devices", len(s.Members))
	h.set(s, p.GetDigest(), unkept)
	return nil
}
