package metamanager

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager/lease"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/outbox"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/podgate"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/podrestart"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/putoff"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/view"
	"github.com/skerry-io/skerry/edge/internal/core/store"
)

// Status is the part of `edgecore status` for metamanager.
type Status struct {
	Linked       bool                  `json:"linked"`
	KubeletAlive bool                  `json:"kubeletAlive"`
	Version      uint64                `json:"version"`
	Outbox       OutboxStatus          `json:"outbox"`
	Resources    []view.ResourceStatus `json:"resources"`
	Interests    []view.InterestStatus `json:"interests"`
	// Withheld are the pods that the kubelet is not shown, and why.
	Withheld []podgate.Withheld `json:"withheld,omitempty"`
	// Restarts are those of them that the kubelet has ended without a link and that run again here.
	Restarts []podrestart.Waiting `json:"podRestarts,omitempty"`
	Answers  int                  `json:"keptTokens"`
	Store    store.Stats          `json:"store"`
	// DamagedStore is where a damaged store was set aside when this process started.
	DamagedStore string `json:"damagedStore,omitempty"`
	// Lost names the parts that could not be read; objects of the cloud are delivered again.
	Lost []string `json:"lost,omitempty"`
	// Malformed counts objects that could not be read, Failed changes that could not be stored, for
	// example on a full disk.
	Malformed uint64 `json:"malformed"`
	Failed    uint64 `json:"failed"`
}

// Backlog is how many writes wait for the cloud, and how long the oldest has.
func (m *Manager) Backlog(now time.Time) (int, time.Duration) { return m.outbox.Backlog(now) }

// OutboxStatus reports the entries pending for the cloud, and the cloud's answers since the process
// started.
type OutboxStatus struct {
	outbox.Status
	Accepted     uint64     `json:"accepted"`
	Refused      uint64     `json:"refused"`
	LastAccepted *time.Time `json:"lastAccepted,omitempty"`
	// Quota is the quota of cloudcore's that this node used up last.
	Quota *putoff.Status `json:"quota,omitempty"`
}

// Status returns metamanager's status.
func (m *Manager) Status() Status {
	s := Status{
		KubeletAlive: m.KubeletAlive(), Store: m.config.Store.Stats(), DamagedStore: m.config.Store.SetAside(), Lost: m.config.Store.Lost(),
		Malformed: m.counters.malformed.Load(), Failed: m.counters.failed.Load(),
		Linked: m.view.Linked(), Version: m.view.Version(),
		Outbox: OutboxStatus{
			Status: m.outbox.Status(), Accepted: m.counters.accepted.Load(), Refused: m.counters.refused.Load(), Quota: m.putOff.Status(),
		},
	}
	if ms := m.counters.lastAccepted.Load(); ms > 0 {
		at := time.UnixMilli(ms)
		s.Outbox.LastAccepted = &at
	}
	s.Resources, s.Interests = m.view.Status()
	s.Withheld = m.view.Withheld()
	m.mu.RLock()
	s.Restarts = m.restarts
	m.mu.RUnlock()
	s.Answers = m.tokens.Len()
	return s
}

// Withheld lists the pods that the kubelet is not shown.
func (m *Manager) Withheld() []podgate.Withheld { return m.view.Withheld() }

// Resources lists the resources for which requests can be answered here and now.
func (m *Manager) Resources() []schema.GroupVersionResource {
	all := append(m.view.Resources(), lease.Resource)
	slices.SortFunc(all, func(a, b schema.GroupVersionResource) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Resource, b.Resource))
	})
	return slices.Compact(all)
}
