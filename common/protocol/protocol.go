// Package protocol negotiates which version of the contract (package topic) cloudcore and edgecore
// speak with each other, and which optional features each may use.
//
// It owns the window of versions that this release speaks: its own and the one before. The number
// grows only where an older end would misread a message. Everything else is a feature, which is
// never sent to an end that did not list it. It refuses windows that are empty, and lists of
// features that are too long. Values don't change; every function may be called by many goroutines
// at once.
package protocol

import (
	"fmt"
	"slices"
)

const (
	// Current is the version that this release speaks with its like.
	Current = 2
	// Oldest is the oldest version that this release still speaks. There is no release that speaks
	// an older one.
	Oldest = 2

	// MaxFeatures and MaxFeatureBytes bound what an end may list.
	MaxFeatures     = 64
	MaxFeatureBytes = 64
)

// FeatureStreams is taking streams that the other end opens (package tunnel).
const FeatureStreams = "streams"

// A Window is the versions that an end speaks, from Min to Max.
type Window struct{ Min, Max uint32 }

// Ours is the window of this release.
func Ours() Window { return Window{Min: Oldest, Max: Current} }

// Stated is the window that an end has stated. One that knows no windows names a single version.
func Stated(protocol, oldest uint32) Window {
	if oldest == 0 {
		oldest = protocol
	}
	return Window{Min: oldest, Max: protocol}
}

// Common is the highest version that both windows have; false where there is none, or where one
// of them is empty.
func (w Window) Common(other Window) (uint32, bool) {
	if w.Min > w.Max || other.Min > other.Max {
		return 0, false
	}
	highest := min(w.Max, other.Max)
	return highest, highest >= max(w.Min, other.Min)
}

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

// ParseFeatures judges a list that came from outside. Unknown names are those of a newer release,
// and stay.
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

// Has reports whether the end may be sent what is of this feature.
func (f Features) Has(name string) bool {
	_, found := slices.BinarySearch(f, name)
	return found
}
