// Package vrid decides which virtual router IDs (VRIDs) other VRRP routers on a LAN use.
//
// It owns which reports are accepted, the rate limit, and when a VRID expires. A VRID is accepted
// if two nodes report it, or the only node that can hold the address: while another node holds the
// address and does not receive the router, a new VRID gains nothing, and a single node could keep
// the address moving. It refuses to keep state: the caller stores each decision. Words are used by
// one goroutine; the functions are pure.
package vrid

import (
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	// Most is the largest VRID.
	Most = 255
	// A VRID expires after keep without a report; its last report is stored to the step. A LAN gets
	// at most one new VRID each pause, since each moves an address, which interrupts it for
	// seconds.
	keep  = 24 * time.Hour
	step  = time.Hour
	pause = 10 * time.Minute
)

// Words are the reports of nodes about other routers on one LAN, by VRID.
type Words map[int32]*word

type word struct {
	nodes map[string]bool
	alone bool // reported by the only node that can hold the address
}

// Listen adds the reports of an address's nodes.
func (w Words) Listen(nodes []v1alpha1.VirtualIPNodeStatus) {
	for _, n := range nodes {
		if n.ForeignRouter == "" || n.ForeignVRID < 1 || n.ForeignVRID > Most {
			continue
		}
		if w[n.ForeignVRID] == nil {
			w[n.ForeignVRID] = &word{nodes: map[string]bool{}}
		}
		report := w[n.ForeignVRID]
		report.nodes[n.Name] = true
		report.alone = report.alone || !slices.ContainsFunc(nodes, func(o v1alpha1.VirtualIPNodeStatus) bool {
			return o.Name != n.Name && (o.State == v1alpha1.VIPHolder || o.State == v1alpha1.VIPBackup)
		})
	}
}

// Decide returns the VRIDs of other routers, from those accepted before and the present reports,
// and when to decide again; zero for never.
func Decide(now time.Time, before []v1alpha1.ForeignVRID, words Words) (all map[int32]v1alpha1.ForeignVRID, again time.Time) {
	next := func(at time.Time) {
		if again.IsZero() || at.Before(again) {
			again = at
		}
	}
	var newest time.Time
	all = map[int32]v1alpha1.ForeignVRID{}
	for _, h := range before {
		end := h.Last.Add(keep)
		if !now.Before(end) {
			continue
		}
		next(end)
		if have, known := all[h.VRID]; !known || have.Last.Before(&h.Last) {
			all[h.VRID] = h
		}
		if h.Since.After(newest) {
			newest = h.Since.Time
		}
	}
	at := metav1.NewTime(now).Rfc3339Copy()
	for _, n := range slices.Sorted(maps.Keys(words)) {
		if report := words[n]; len(report.nodes) < 2 && !report.alone {
			continue
		}
		h, known := all[n]
		switch free := newest.Add(pause); {
		case known && now.Sub(h.Last.Time) < step:
			next(h.Last.Add(step))
		case known:
			h.Last = at
			all[n] = h
		case now.Before(free):
			next(free)
		default:
			all[n] = v1alpha1.ForeignVRID{VRID: n, Since: at, Last: at}
			newest = now
		}
	}
	return all, again
}

// List returns the VRIDs in ascending order.
func List(all map[int32]v1alpha1.ForeignVRID) (list []v1alpha1.ForeignVRID) {
	for _, n := range slices.Sorted(maps.Keys(all)) {
		list = append(list, all[n])
	}
	return list
}

// Equal reports whether two entries are the same.
func Equal(a, b v1alpha1.ForeignVRID) bool {
	return a.VRID == b.VRID && a.Since.Equal(&b.Since) && a.Last.Equal(&b.Last)
}
