package meta

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/edge/internal/meta/lease"
	"github.com/skerry-io/skerry/edge/internal/meta/putoff"
	"github.com/skerry-io/skerry/edge/internal/object"
	"github.com/skerry-io/skerry/edge/internal/store"
	"github.com/skerry-io/skerry/edge/internal/store/storepb"
)

// Status is what `edgecore status` tells of metamanager.
type Status struct {
	Linked       bool             `json:"linked"`
	KubeletAlive bool             `json:"kubeletAlive"`
	Version      uint64           `json:"version"`
	Outbox       OutboxStatus     `json:"outbox"`
	Resources    []ResourceStatus `json:"resources"`
	Interests    []InterestStatus `json:"interests"`
	Answers      int              `json:"keptTokens"`
	Store        store.Stats      `json:"store"`
	// DamagedStore is where a damaged store was set aside when this process started.
	DamagedStore string `json:"damagedStore,omitempty"`
	// Lost names what of it could not be read; what came from the cloud comes again.
	Lost []string `json:"lost,omitempty"`
	// Malformed counts objects that could not be read, Failed changes that could not be kept, such as for want of room.
	Malformed uint64 `json:"malformed"`
	Failed    uint64 `json:"failed"`
}

// OutboxStatus is what waits for the cloud.
type OutboxStatus struct {
	Waiting      map[string]int `json:"waiting"` // by class
	EventBytes   int            `json:"eventBytes"`
	InFlight     int            `json:"inFlight"`
	Oldest       *time.Time     `json:"oldest,omitempty"` // by the clock of its time
	Dropped      uint64         `json:"dropped"`          // events that made room and that the cloud has not been told of yet
	Accepted     uint64         `json:"accepted"`
	Refused      uint64         `json:"refused"`
	LastAccepted *time.Time     `json:"lastAccepted,omitempty"`
	// Quota is the quota of cloudcore's that this node used up last.
	Quota *putoff.Status `json:"quota,omitempty"`
}

// ResourceStatus is what is held of one resource.
type ResourceStatus struct {
	Resource string `json:"resource"`
	Objects  int    `json:"objects"`
	Bytes    int    `json:"bytes"`
	Watchers int    `json:"watchers"`
}

// InterestStatus is one set that this device wants.
type InterestStatus struct {
	ID        uint64 `json:"id"`
	Set       string `json:"set"`
	Synced    bool   `json:"synced"`
	Watchers  int    `json:"watchers"`
	Refused   string `json:"refused,omitempty"`
	Namespace string `json:"namespace,omitempty"`
}

// Status tells how metamanager is.
func (m *Manager) Status() Status {
	s := Status{
		KubeletAlive: m.KubeletAlive(), Store: m.config.Store.Stats(), DamagedStore: m.config.Store.SetAside(), Lost: m.config.Store.Lost(),
		Malformed: m.counters.malformed.Load(), Failed: m.counters.failed.Load(),
	}
	if ms := m.counters.lastAccepted.Load(); ms > 0 {
		at := time.UnixMilli(ms)
		s.Outbox.LastAccepted = &at
	}
	s.Outbox.Quota = m.putOff.Status()
	s.Outbox.Accepted, s.Outbox.Refused = m.counters.accepted.Load(), m.counters.refused.Load()
	m.mu.RLock()
	defer m.mu.RUnlock()
	s.Linked, s.Version, s.Answers = m.linked, m.version, len(m.answers)
	m.outboxStatus(&s.Outbox)
	for _, t := range m.tables {
		r := ResourceStatus{Resource: t.resource.GroupResource().String(), Objects: len(t.objects), Watchers: len(t.allWatchers())}
		for _, h := range t.objects {
			r.Bytes += len(h.shown.Raw)
		}
		s.Resources = append(s.Resources, r)
	}
	slices.SortFunc(s.Resources, func(a, b ResourceStatus) int { return cmp.Compare(a.Resource, b.Resource) })
	for id, i := range m.interests {
		set := "what pods refer to"
		if !i.deps {
			set = i.resource.GroupResource().String()
			for _, part := range []string{i.labels, i.fields} {
				if part != "" {
					set += " " + part
				}
			}
		}
		is := InterestStatus{ID: id, Set: set, Namespace: i.namespace, Synced: i.synced, Watchers: i.watchers}
		if i.refused != nil {
			is.Refused = i.refused.Message
		}
		s.Interests = append(s.Interests, is)
	}
	slices.SortFunc(s.Interests, func(a, b InterestStatus) int { return cmp.Compare(a.ID, b.ID) })
	return s
}

// outboxStatus is called with the lock held: the core changes the outbox under it.
func (m *Manager) outboxStatus(s *OutboxStatus) {
	o := m.outbox
	s.Waiting, s.EventBytes, s.InFlight, s.Dropped = map[string]int{}, o.events.bytes, len(o.inflight), o.dropped
	oldest := int64(0)
	waiting := map[storepb.Class]int{} // not by name: there may be thousands, and the core waits meanwhile
	for _, q := range o.queues {
		for _, e := range q.entries {
			if e.accepted {
				continue
			}
			waiting[e.class]++
			if oldest == 0 || e.at < oldest {
				oldest = e.at
			}
		}
	}
	for class, n := range waiting {
		s.Waiting[class.String()] = n
	}
	if oldest > 0 {
		at := time.UnixMilli(oldest)
		s.Oldest = &at
	}
}

// Resources lists the resources of which something can be answered here and now.
func (m *Manager) Resources() []schema.GroupVersionResource {
	m.mu.RLock()
	defer m.mu.RUnlock()
	seen := map[schema.GroupVersionResource]bool{eventsResource: true, lease.Resource: true}
	for _, i := range m.interests {
		switch {
		case !i.synced:
		case i.deps:
			for _, r := range object.Travelling() {
				seen[r] = true
			}
		default:
			seen[i.resource] = true
		}
	}
	all := make([]schema.GroupVersionResource, 0, len(seen))
	for r := range seen {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b schema.GroupVersionResource) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Resource, b.Resource))
	})
	return all
}
