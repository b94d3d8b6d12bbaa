package cloudhub

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/link"
)

// EndOldest ends at most n sessions so that their nodes dial again, and returns how many: those
// that have been open for the longest, and at least for young. Busy ones are the last to be ended.
// A session whose link is paused until its node has paid its charges is never ended: the debt is of
// this replica alone.
func (h *Hub) EndOldest(n int, young time.Duration, busy func(types.NodeName) bool, reason string) int {
	type candidate struct {
		*session
		since time.Time
		busy  bool
	}
	var all []candidate
	now := time.Now()
	for _, s := range h.table.attached() {
		if since := s.conn.Info().Since; now.Sub(since) >= young && !s.pace.resting.Load() {
			all = append(all, candidate{s, since, busy(s.node)})
		}
	}
	slices.SortFunc(all, func(a, b candidate) int {
		if a.busy != b.busy {
			if a.busy {
				return 1
			}
			return -1
		}
		return a.since.Compare(b.since)
	})
	sessions := make([]*session, 0, n)
	for _, c := range all[:min(n, len(all))] {
		sessions = append(sessions, c.session)
	}
	h.closeAll(sessions, 0, func(*session) (link.CloseCode, string, bool) { return link.CloseShutdown, reason, true })
	return len(sessions)
}
