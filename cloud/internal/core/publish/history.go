package publish

import (
	"sync"
	"time"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
)

const (
	// linger is how long an unused collection is still followed.
	linger = 5 * time.Minute
	// pastChanges bounds a feed's history, at some 400 bytes each; the oldest changes go first. An
	// edge that was away for longer is asked for its inventory.
	pastChanges = 2048
)

// past is one change of a collection: the object before and after, in outline. nil: it was not
// there.
type past struct {
	key      kube.Key
	old, new *kube.Object
}

// history is the newest changes of a collection. An edge that comes back names by one digest the
// set that it holds; going back through the changes shows whether that is the set that it should
// have held some time ago, and then the changes since are all that it needs. It is no promise:
// without a match, the edge is asked.
type history struct {
	mu      sync.Mutex
	changes []past // the oldest first
}

func (h *history) add(key kube.Key, old, new *kube.Object) {
	p := past{key, old.Outline(), new.Outline()}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.changes) == pastChanges {
		h.changes[0] = past{}
		h.changes = h.changes[1:]
	}
	h.changes = append(h.changes, p)
}

// since finds the keys that have changed since a set of objects, of which now is the present state,
// had the digest then. wants reports whether an object belongs to the set.
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
