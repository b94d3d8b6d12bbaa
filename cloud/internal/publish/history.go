package publish

import (
	"sync"
	"time"

	"github.com/skerry-io/skerry/cloud/internal/kube"
)

const (
	// linger is how long a collection that nobody wants any more is still followed.
	linger = 5 * time.Minute
	// pastChanges and pastBytes bound a feed's history; the oldest changes go first. An edge that was away for longer is asked for its inventory.
	pastChanges = 2048
	pastBytes   = 4 << 20
)

// past is one change of a collection: what it was, and became. nil: it was not there.
type past struct {
	key      kube.Key
	old, new *kube.Object
}

// size is about what a change keeps in memory: what it became, others keep too.
func (p past) size() int {
	n := 128
	if p.old != nil {
		n += len(p.old.Raw)
	}
	return n
}

// history is the newest changes of a collection. An edge that comes back says by one digest what it holds; going back through the changes shows whether that is what it
// should have held some time ago, and then what has changed since is all that it needs. It is no promise: where nothing fits, the edge is asked.
type history struct {
	mu      sync.Mutex
	changes []past // the oldest first
	bytes   int
}

func (h *history) add(p past) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changes = append(h.changes, p)
	h.bytes += p.size()
	n := 0
	for len(h.changes)-n > pastChanges || h.bytes > pastBytes {
		h.bytes -= h.changes[n].size()
		h.changes[n] = past{}
		n++
	}
	h.changes = h.changes[n:]
}

// since finds which keys have changed since a set of objects, of which now is what it is today, had the digest then. wants says which objects belong to the set.
func (h *history) since(now, then digest, wants func(*kube.Object) bool) (keys []kube.Key, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := map[kube.Key]bool{}
	for i := len(h.changes) - 1; i >= 0; i-- {
		c := h.changes[i]
		touched := false
		if c.new != nil && wants(c.new) {
			touched = true
			now.count--
			now.sum.Xor(c.new.Sum)
		}
		if c.old != nil && wants(c.old) {
			touched = true
			now.count++
			now.sum.Xor(c.old.Sum)
		}
		if !touched {
			continue
		}
		if !seen[c.key] {
			seen[c.key] = true
			keys = append(keys, c.key)
		}
		if now == then {
			return keys, true
		}
	}
	return nil, false
}
