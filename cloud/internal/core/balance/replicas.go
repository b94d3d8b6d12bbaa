package balance

import (
	"encoding/json"
	"strings"
	"time"
)

const (
	// Prefix is of the annotations of the Lease: one for each replica.
	Prefix = "replicas.skerry.io/"
	// period is between two requests of a replica.
	period = 10 * time.Second
	// lifetime is for how long a replica counts as serving after its last observed renewal.
	lifetime = 3 * period
	// forget is the time without a renewal after which any replica removes another one's
	// annotation. A replica that comes back writes it again.
	forget = 10 * time.Minute
)

// replicas is one replica's record of the others. It does not depend on another machine's clock: a
// replica serves if its annotation is seen to change, as client-go's leader election sees it. Owned
// by one goroutine.
type replicas struct {
	own  string // key
	of   map[string]*replica
	read time.Time // the last observation
}

type replica struct {
	text    string
	count   Count
	changed time.Time // when text was first seen, or seen to change
	counted time.Time // it was written no earlier: the observation before
	renewed bool      // seen to change: not left by a replica that is gone
}

// Key is the annotation of an instance. Its part after the prefix has at most 63 characters.
func Key(instance string) string {
	if most := 63; len(instance) > most {
		instance = strings.TrimLeft(instance[len(instance)-most:], "-_.")
	}
	return Prefix + instance
}

// observe records the annotations at a time of this replica's clock.
func (r *replicas) observe(annotations map[string]string, now time.Time) {
	for k := range r.of {
		if _, ok := annotations[k]; !ok {
			delete(r.of, k)
		}
	}
	for k, text := range annotations {
		if !strings.HasPrefix(k, Prefix) || k == r.own {
			continue
		}
		before := r.of[k]
		if before != nil && before.text == text {
			continue
		}
		next := &replica{text: text, changed: now, counted: r.read, renewed: before != nil}
		if err := json.Unmarshal([]byte(text), &next.count); err != nil || next.count.Sessions < 0 {
			next.renewed = false // not ours: it counts as no replica
		}
		r.of[k] = next
	}
	r.read = now
}

// serving are those that serve.
func (r *replicas) serving(now time.Time) (all []Count) {
	for _, o := range r.of {
		if o.serves(now) {
			all = append(all, o.count)
		}
	}
	return all
}

func (o *replica) serves(now time.Time) bool { return o.renewed && apart(o.changed, now) < lifetime }

// countedSince reports whether all serving replicas have reported their sessions since t.
func (r *replicas) countedSince(t, now time.Time) bool {
	for _, o := range r.of {
		if o.serves(now) && o.counted.Before(t) {
			return false
		}
	}
	return true
}

// gone are the annotations to remove.
func (r *replicas) gone(now time.Time) (keys []string) {
	for k, o := range r.of {
		if apart(o.changed, now) >= forget {
			keys = append(keys, k)
		}
	}
	return keys
}

// apart returns how long after a b is, by the clock with the greater distance: the monotonic one
// stops while a machine is suspended, and the other one may be set.
func apart(a, b time.Time) time.Duration {
	return max(b.Sub(a), b.Round(0).Sub(a.Round(0)).Abs())
}
