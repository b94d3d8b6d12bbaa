// Package protocol negotiates the protocol version (package topic) of cloudcore and edgecore, and
// the optional features that each supports.
//
// It owns the range of versions that this release supports: its own and the previous one. The
// version is incremented only if an older end would misinterpret a message. Everything else is a
// feature, which is never sent to an end that did not list it. It refuses empty ranges, and lists
// of features that are too long. Values are immutable; every function may be called by many
// goroutines at once.
package protocol

import (
	"fmt"
	"slices"
)

const (
	// Current is the newest version that this release supports.
	Current = 2
	// Oldest is the oldest version that this release supports. No release had an older one.
	Oldest = 2

	// MaxFeatures and MaxFeatureBytes bound the features that an end may list.
	MaxFeatures     = 64
	MaxFeatureBytes = 64
)

// FeatureStreams is the support of streams that the other end opens (package tunnel).
const FeatureStreams = "streams"

// FeatureMetrics is the support of samples of the device's metrics (package nodemetrics).
const FeatureMetrics = "metrics"

// FeatureRescue is the support of rescue sessions: of two ends without a common version, of which
// the cloud's Welcome has the version Rescue. They carry heartbeats, without a Lease, and streams
// that the device opens to RescueTarget and to artefacts, so that it can be upgraded. These
// messages are frozen: testdata of package topic has their bytes.
const FeatureRescue = "rescue"

// Rescue stands for a version in the Welcome of a rescue session.
const Rescue = 0

// RescueTarget is the target of streams by which a device requests its operations, in
// HTTP/1.1.
const RescueTarget = "rescue"

// A Window is the range of versions that an end supports, from Min to Max.
type Window struct{ Min, Max uint32 }

// Ours is the window of this release.
func Ours() Window { return Window{Min: Oldest, Max: Current} }

// Stated returns the window that an end has sent. Ends without windows send a single version.
func Stated(protocol, oldest uint32) Window {
	if oldest == 0 {
		oldest = protocol
	}
	return Window{Min: oldest, Max: protocol}
}

// Common returns the highest version in both windows; false if they don't overlap, or if one of
// them is empty.
func (w Window) Common(other Window) (uint32, bool) {
	if w.Min > w.Max || other.Min > other.Max {
		return 0, false
	}
	highest := min(w.Max, other.Max)
	return highest, highest >= max(w.Min, other.Min)
}

// Bounds returns the oldest and the newest version.
func (w Window) Bounds() (oldest, newest uint32) { return w.Min, w.Max }

// Has reports whether a version is in the window.
func (w Window) Has(version uint32) bool { return w.Min <= version && version <= w.Max }

// String is for messages: "2", "2 to 3".
func (w Window) String() string {
	if w.Min == w.Max {
		return fmt.Sprint(w.Max)
	}
	return fmt.Sprintf("%d to %d", w.Min, w.Max)
}

// Features are those that an end has listed, in order.
type Features []string

// ParseFeatures validates a list from a peer. Unknown names are kept: they are those of a newer
// release.
func ParseFeatures(list []string) (Features, error) {
	if len(list) > MaxFeatures {
		return nil, fmt.Errorf("%d features are listed, at most %d may be", len(list), MaxFeatures)
	}
	for _, name := range list {
		if name == "" || len(name) > MaxFeatureBytes || !plain(name) {
			return nil, fmt.Errorf("%.*q is no name of a feature: 1 to %d of a-z, 0-9, - and .", MaxFeatureBytes, name, MaxFeatureBytes)
		}
	}
	f := slices.Clone(list)
	slices.Sort(f)
	return slices.Compact(f), nil
}

func plain(name string) bool {
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '.' {
			return false
		}
	}
	return true
}

// Has reports whether the end supports a feature.
func (f Features) Has(name string) bool {
	_, found := slices.BinarySearch(f, name)
	return found
}
