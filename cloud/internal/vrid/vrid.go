// Package vrid decides which numbers of VRRP other routers on a LAN use.
//
// It owns whose word counts, at what rate, and when a number is given back. A number counts by the
// word of two nodes, or of the only one that could hold the address: where another node holds it
// without hearing the router nothing is gained by another number, and one node's word could take
// the address away for ever. It refuses to keep anything: what was decided is its caller's. Pure
// functions.
package vrid

import (
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	// Most is the largest number that VRRP has.
	Most = 255
	// A number is given again after keep without a word of it; its time is written anew each step.
	// One number a LAN is believed each pause: with each an address moves, and is away for seconds.
	keep  = 24 * time.Hour
	step  = time.Hour
	pause = 10 * time.Minute
)

// Words are what nodes say of other routers on one LAN, by number.
type Words map[int32]*word

type word struct {
	nodes map[string]bool
	alone bool // by a node besides which no other could hold the address
}

// Listen takes in what the nodes of an address report.
func (w Words) Listen(nodes []v1alpha1.VirtualIPNodeStatus) {
	for _, n := range nodes {
		if n.ForeignRouter == "" || n.ForeignVRID < 1 || n.ForeignVRID > Most {
			continue
		}
		if w[n.ForeignVRID] == nil {
			w[n.ForeignVRID] = &word{nodes: map[string]bool{}}
		}
		said := w[n.ForeignVRID]
		said.nodes[n.Name] = true
		said.alone = said.alone || !slices.ContainsFunc(nodes, func(o v1alpha1.VirtualIPNodeStatus) bool {
			return o.Name != n.Name && (o.State == v1alpha1.VIPHolder || o.State == v1alpha1.VIPBackup)
		})
	}
}

// Decide returns the numbers that other routers use, of those that were believed before and of what
// is said now, and when to decide again; zero for never.
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
		if said := words[n]; len(said.nodes) < 2 && !said.alone {
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

// List is the numbers in their order.
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
