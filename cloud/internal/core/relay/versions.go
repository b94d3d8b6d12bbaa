package relay

import (
	"sync"

	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// rememberedVersions bounds what a session remembers of objects, some 100 bytes each; more than the
// writes that an edge may have on the way. The oldest are forgotten first; the next write of such
// an object costs two reads where its edge does not send its version.
const rememberedVersions = 128

// versions holds the versions of the objects that a session writes. It outlives an attempt, so that
// a write of several requests resumes where a failure interrupted it.
type versions struct {
	mu    sync.Mutex
	known map[string]known
	order []string // of first being remembered
}

// known is the state of one object in versions.
type known struct {
	// version may be written on top of without reading the Lease: this session made it, or read it
	// and then found that it was still the newest session.
	version string
	// read is the object as read, before the Lease has been checked.
	read *reading
}

// reading is an object as it was read: its version, or that it was not there.
type reading struct {
	version string
	missing bool
	// obsolete: the object supersedes the write.
	obsolete bool
}

// put remembers a version that may be written on top of. An empty one is ignored.
func (v *versions) put(key, version string) { v.set(key, known{version: version}) }

// forget drops the version, but not that the object was seen.
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

// await remembers a read object until the Lease has been checked.
func (v *versions) await(key string, r reading) { v.set(key, known{read: &r}) }

// awaiting returns the object read and not yet confirmed, or nil.
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

// newest returns the newer of the session's confirmed version and its edge's version of an object,
// or "".
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
