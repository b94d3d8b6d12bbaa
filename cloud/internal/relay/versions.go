package relay

import (
	"sync"

	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// rememberedVersions bounds what a session remembers of its own writes, some 100 bytes each. The oldest are forgotten first; the next write of such an object costs
// two reads where its edge does not say which version it has.
const rememberedVersions = 128

// versions are the resourceVersions that this session's own writes have made, by object. A write on top of one needs no look at the Lease.
type versions struct {
	mu    sync.Mutex
	made  map[string]string
	order []string // of first being remembered
}

func (v *versions) put(key, version string) {
	if version == "" {
		v.forget(key)
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.made == nil {
		v.made = map[string]string{}
	}
	if _, ok := v.made[key]; !ok {
		v.order = append(v.order, key)
	}
	v.made[key] = version
	for len(v.order) > rememberedVersions {
		delete(v.made, v.order[0])
		v.order = v.order[1:]
	}
}

// newest is the newer of what this session made of an object and what its edge had of it, or "".
func (v *versions) newest(key, held string) string {
	v.mu.Lock()
	made := v.made[key]
	v.mu.Unlock()
	if made == "" || held == "" {
		return made + held
	}
	if n, err := resourceversion.CompareResourceVersion(made, held); err == nil && n < 0 {
		return held
	}
	return made
}

func (v *versions) forget(key string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, ok := v.made[key]; ok {
		v.made[key] = "" // its place in order stays
	}
}
