package route

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
)

// record is the state of one StaticRoute that survives restarts.
type record struct {
	UID      types.UID                `json:"uid"`
	Entry    v1alpha1.StaticRouteNode `json:"entry"`    // as last reported, or about to be
	Reported bool                     `json:"reported"` // it is in the outbox
	Boot     string                   `json:"boot"`
	// Trying: the route is being set, and whether the cloud still answers is not known yet.
	Trying           bool   `json:"trying,omitempty"`
	TryingGeneration int64  `json:"tryingGeneration,omitempty"`
	Proven           string `json:"proven,omitempty"` // the route that did no harm
	// Strikes is how often the route cut the node off, at the object's StruckGeneration, and Struck
	// the observed failure. Postponed: it was withdrawn and the network did not return without it
	// either, so that it may not have been the cause; it is retried when the next link opens.
	Strikes          int    `json:"strikes,omitempty"`
	StruckGeneration int64  `json:"struckGeneration,omitempty"`
	Struck           string `json:"struck,omitempty"`
	Postponed        bool   `json:"postponed,omitempty"`

	again time.Time // of the next try of a route that was taken back
	retry time.Time // when to process it again; zero: after an event
	saved []byte    // its state on the disk
}

// common is the stored state besides the records: the ways to the cloud, which are protected also
// on a device that was restarted without them.
type common struct {
	NodeUID   types.UID      `json:"nodeUID,omitempty"`
	Clouds    []netip.Addr   `json:"clouds,omitempty"`    // where links were opened to, the newest first; maxClouds
	Gateways  []netip.Addr   `json:"gateways,omitempty"`  // of the default routes, when there were any last
	Resolvers []netip.Addr   `json:"resolvers,omitempty"` // DNS servers, when there were any last
	Services  []netip.Prefix `json:"services,omitempty"`  // the ranges of Services
}

const (
	commonKey = "." // can't be an object's name
	maxClouds = 8
	// retryAfter is when a route that cut the node off is tried once more; after lastStrike times
	// it is not, before its object changes.
	retryAfter = 5 * time.Minute
	lastStrike = 2
	// tryAgain is when a postponed route is retried although no link has opened since: the existing
	// one may have survived it.
	tryAgain = time.Minute
)

// records are those of all StaticRoutes, by name, and their common record.
type records struct {
	state agent.Memory
	boot  string
	all   map[string]*record
	common
	savedCommon []byte
	behind      bool                // the store has not taken the common record
	timed       map[string]struct{} // names of those with a retry, few of thousands
}

func loadRecords(state agent.Memory, boot string) (*records, error) {
	r := &records{state: state, boot: boot, all: map[string]*record{}, timed: map[string]struct{}{}}
	kept, err := state.Load()
	if err != nil {
		return nil, err
	}
	for name, raw := range kept {
		if name == commonKey {
			if json.Unmarshal(raw, &r.common) != nil {
				r.common = common{} // unreadable: it will be learnt again
			}
			r.savedCommon = raw
			continue
		}
		one := &record{saved: raw}
		if json.Unmarshal(raw, one) != nil {
			one = &record{saved: raw}
		}
		if one.Trying {
			one.Trying, one.Struck = false, "edgecore ended while it was watching whether the cloud still answers"
			if one.StruckGeneration != one.TryingGeneration {
				one.Strikes = 0
			}
			one.Strikes, one.StruckGeneration = one.Strikes+1, one.TryingGeneration
		}
		r.all[name] = one
	}
	return r, nil
}

// of returns the record of a StaticRoute; a new one if it is missing or belongs to an older object
// of the name.
func (r *records) of(c *claim) *record {
	one := r.all[c.name]
	if one == nil {
		one = &record{UID: c.uid}
		r.all[c.name] = one
	}
	if one.UID != c.uid {
		*one = record{UID: c.uid, saved: one.saved}
	}
	return one
}

// retryAt schedules a StaticRoute for that time.
func (r *records) retryAt(name string, at time.Time) {
	if one := r.all[name]; one != nil {
		one.retry = at
		r.timed[name] = struct{}{}
	}
}

// due takes the names of the due ones.
func (r *records) due(now time.Time) (names []string) {
	for name := range r.timed {
		switch one := r.all[name]; {
		case one == nil || one.retry.IsZero():
			delete(r.timed, name)
		case !now.Before(one.retry):
			one.retry = time.Time{}
			delete(r.timed, name)
			names = append(names, name)
		}
	}
	return names
}

func (r *records) known(c *claim) bool {
	one := r.all[c.name]
	return one != nil && one.UID == c.uid
}

// saveCommon writes the common record, if it differs from the disk.
func (r *records) saveCommon(ctx context.Context) error {
	raw, err := json.Marshal(r.common)
	if err != nil {
		return fmt.Errorf("encoding the node's record: %w", err)
	}
	if bytes.Equal(raw, r.savedCommon) {
		r.behind = false
		return nil
	}
	if err := r.state.Save(ctx, map[string][]byte{commonKey: raw}); err != nil {
		r.behind = true
		return err
	}
	r.savedCommon, r.behind = raw, false
	return nil
}

// save writes the records of those names that differ from the disk.
func (r *records) save(ctx context.Context, names map[string]struct{}) error {
	changes := map[string][]byte{}
	for name := range names {
		one := r.all[name]
		if one == nil {
			continue
		}
		raw, err := json.Marshal(one)
		if err != nil {
			return fmt.Errorf("encoding the record of %s: %w", name, err)
		}
		if !bytes.Equal(raw, one.saved) {
			changes[name] = raw
		}
	}
	if len(changes) == 0 {
		return nil
	}
	if err := r.state.Save(ctx, changes); err != nil {
		return err
	}
	for name, raw := range changes {
		r.all[name].saved = raw
	}
	return nil
}

// forget deletes records.
func (r *records) forget(ctx context.Context, names []string) error {
	if len(names) == 0 {
		return nil
	}
	gone := map[string][]byte{}
	for _, name := range names {
		gone[name] = nil
	}
	if err := r.state.Save(ctx, gone); err != nil {
		return err
	}
	for _, name := range names {
		delete(r.all, name)
	}
	return nil
}

// linkedTo records the address of the link. It reports whether it is new.
func (r *records) linkedTo(remote netip.Addr) (isNew bool) {
	if !remote.IsValid() || len(r.Clouds) > 0 && r.Clouds[0] == remote {
		return false
	}
	isNew = !slices.Contains(r.Clouds, remote)
	others := slices.DeleteFunc(slices.Clone(r.Clouds), func(x netip.Addr) bool { return x == remote })
	r.Clouds = append([]netip.Addr{remote}, others...)
	r.Clouds = r.Clouds[:min(len(r.Clouds), maxClouds)]
	return isNew
}

// proven reports whether this very route has been watched before.
func (r *records) proven(c *claim, text string) bool {
	return r.known(c) && r.all[c.name].Proven == text
}

// proved notes how a try ended.
func (r *records) proved(c *claim, text string, well bool) {
	one := r.of(c)
	one.Trying = false
	if well {
		one.Proven, one.Strikes, one.Struck, one.Postponed = text, 0, "", false
	}
}

// strike notes that a route cut the node off.
func (r *records) strike(c *claim, why string, now time.Time) {
	one := r.of(c)
	if one.StruckGeneration != c.generation {
		one.Strikes = 0
	}
	one.Strikes++
	one.Trying, one.Struck, one.StruckGeneration, one.Proven, one.Postponed = false, why, c.generation, "", false
	one.again = now.Add(retryAfter)
	r.retryAt(c.name, one.again)
}

// postpone notes that a route was taken back, and that it is not known whether it was the cause.
func (r *records) postpone(c *claim, why string, now time.Time) {
	one := r.of(c)
	one.again = now.Add(tryAgain)
	r.retryAt(c.name, one.again)
	one.Trying, one.Struck, one.StruckGeneration, one.Proven, one.Postponed = false, why, c.generation, "", true
}

// linkOpened makes postponed routes eligible again, and returns their names.
func (r *records) linkOpened() (names []string) {
	for name, one := range r.all {
		if one.Postponed {
			one.Postponed = false
			names = append(names, name)
		}
	}
	return names
}

// held gives the reason a route that cut the node off, or may have, must stay away: for now, or
// until its object changes.
func (r *records) held(now time.Time, linked bool, c *claim) *rejection {
	one := r.all[c.name]
	if one == nil || one.UID != c.uid || one.StruckGeneration != c.generation {
		return nil
	}
	switch {
	case one.Postponed && linked && !one.again.IsZero() && !now.Before(one.again):
		return nil
	case one.Postponed:
		return reject(v1alpha1.RouteRolledBack, "%s while this route was tried, and it did not come back without the route: "+
			"the device applies the route again when the link opens", one.Struck)
	case one.Strikes == 0:
		return nil
	case one.Strikes >= lastStrike:
		return reject(v1alpha1.RouteRolledBack, "%s with this route, so it was taken back, %d times; it is not tried again before "+
			"the object changes", one.Struck, one.Strikes)
	case linked && !one.again.IsZero() && !now.Before(one.again):
		return nil
	}
	if one.retry.IsZero() { // a fresh process, or offline: once more, when there is a link to watch by
		r.retryAt(c.name, now.Add(retryAfter))
		if one.again.IsZero() {
			one.again = one.retry
		}
	}
	return reject(v1alpha1.RouteRolledBack, "%s with this route, so it was taken back; it will be tried once more", one.Struck)
}

// drifted reports whether the route of a report-only StaticRoute was already missing when this
// process started, in this boot of the device.
func (r *records) drifted(c *claim) bool {
	one := r.all[c.name]
	return one != nil && !c.repair && one.UID == c.uid && one.Boot == r.boot &&
		one.Entry.Reason == v1alpha1.RouteDrifted && one.Entry.ObservedGeneration == c.generation
}
