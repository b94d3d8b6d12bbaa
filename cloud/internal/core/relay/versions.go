package relay

import (
	"sync"

	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// rememberedVersions bounds what a session remembers of objects, some 100 bytes each; more than
// the writes that an edge may have on the way. The oldest are forgotten first; the next write of
// such an object costs two reads where its edge does not say which version it has.
const rememberedVersions = 128

// versions is what a session knows of the objects that it writes. It outlives the attempt that
// found it out, so that a write of several requests goes on where a failure interrupted it.
type versions struct {
	mu    sync.Mutex
	known map[string]known
	order []string // of first being remembered
}

// known is what a session knows of one object.
type known struct {
	// version may be written on top of with no look at the Lease: this session made it, or read it
	// and then found that it was still the newest session.
	version string
	// read is what was read of the object and awaits that look.
	read *reading
}

// reading is an object as it was read: its version, or that it was not there.
type reading struct {
	version string
	missing bool
	// obsolete: the object supersedes the write.
	obsolete bool
}

// put remembers a version that may be written on top of. An empty one is not known.
func (v *versions) put(key, version string) { v.set(key, known{version: version}) }

// forget drops what was known but that the object was seen.
func (v *versions) forget(key string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, ok := v.known[key]; ok {
		v.known[key] = known{} // its place in order stays
	}
}

// seen remembers that there is, or was, such an object.
func (v *versions) seen(key string) {
	if !v.exists(key) {
		v.set(key, known{})
	}
}

// exists reports whether this session has seen the object. It may be gone since.
func (v *versions) exists(key string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, ok := v.known[key]
	return ok
}

// await remembers what was read until the Lease has been looked at.
func (v *versions) await(key string, r reading) { v.set(key, known{read: &r}) }

// awaiting is what was read and not looked at since, or nil.
func (v *versions) awaiting(key string) *reading {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.known[key].read
}

func (v *versions) set(key string, k known) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.known == nil {
		v.known = map[string]known{}
	}
	if _, ok := v.known[key]; !ok {
		v.order = append(v.order, key)
	}
	v.known[key] = k
	for len(v.order) > rememberedVersions {
		delete(v.known, v.order[0])
		v.order = v.order[1:]
	}
}

// newest is the newer of what this session may write on top of and what its edge had of an
// object, or "".
func (v *versions) newest(key, held string) string {
	v.mu.Lock()
	made := v.known[key].version
	v.mu.Unlock()
	if made == "" || held == "" {
		return made + held
	}
	if n, err := resourceversion.CompareResourceVersion(made, held); err == nil && n < 0 {
		return held
	}
	return made
}
