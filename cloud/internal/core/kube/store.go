package kube

import (
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Store is the newest known state of one collection, encoded. Many read it; one writer changes it,
// by Replace, Put and Delete.
type Store struct {
	resource schema.GroupVersionResource
	encoder  *encoder
	synced   chan struct{} // closed by the first Replace

	mu        sync.RWMutex
	isSynced  bool
	objects   map[Key]*Object
	byNode    map[string]map[Key]*Object // nil where the collection has no spec.nodeName
	observers []*observer
	failure   error  // of the last attempt to list or watch, nil while all is well
	version   uint64 // the resourceVersion as of which the objects are known, 0 where it is no number
	floor     uint64 // watch events of versions up to this one are old: the collection was read in the meantime
}

type observer struct{ changed func(old, new *Object) }

func newStore(resource schema.GroupVersionResource, e *encoder) *Store {
	s := &Store{resource: resource, encoder: e, synced: make(chan struct{}), objects: map[Key]*Object{}}
	if e.fields.byNode {
		s.byNode = map[string]map[Key]*Object{}
	}
	return s
}

// NewStore returns an empty store that its caller fills: for tests, and for sources that are no
// watch.
func NewStore(resource schema.GroupVersionResource) *Store {
	return newStore(resource, newCatalog().encoder(resource))
}

// Resource is the collection.
func (s *Store) Resource() schema.GroupVersionResource { return s.resource }

// Synced is closed once the store has held the whole collection.
func (s *Store) Synced() <-chan struct{} { return s.synced }

// HasSynced reports whether Synced is closed.
func (s *Store) HasSynced() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.isSynced
}

// Failure is why the collection can't be listed or watched at the moment, or nil.
func (s *Store) Failure() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.failure
}

// Version is the resourceVersion as of which the store holds the collection, 0 while that
// is unknown.
func (s *Store) Version() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.version
}

// Get returns the object, or nil.
func (s *Store) Get(key Key) *Object {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.objects[key]
}

// Len is how many objects the store holds.
func (s *Store) Len() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.objects)
}

// Each calls fn for every object that sel selects, in no order, until fn returns false. The store
// is locked until then; fn must not call it.
func (s *Store) Each(sel *Selection, fn func(*Object) bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if sel.Name != "" && sel.Namespace != "" {
		if o := s.objects[Key{sel.Namespace, sel.Name}]; o != nil && sel.Matches(o) {
			fn(o)
		}
		return
	}
	if sel.Name != "" {
		if o := s.objects[Key{"", sel.Name}]; o != nil { // cluster-scoped, as nearly always
			if sel.Matches(o) {
				fn(o)
			}
			return
		}
	}
	all := s.objects
	if sel.Node != "" && s.byNode != nil {
		all = s.byNode[sel.Node]
	}
	for _, o := range all {
		if sel.Matches(o) && !fn(o) {
			return
		}
	}
}

// Observe calls changed for every change from now on, including those that edges don't see (the Sum
// stays), one after another, before it can be read: old is nil for a new object, new for a deleted
// one. changed must be quick and must not call the store. The returned function ends it.
func (s *Store) Observe(changed func(old, new *Object)) (cancel func()) {
	o := &observer{changed}
	s.mu.Lock()
	s.observers = append(s.observers, o)
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for i, have := range s.observers {
			if have == o {
				s.observers = append(s.observers[:i:i], s.observers[i+1:]...)
				return
			}
		}
	}
}

// Put sets one object. It takes o over.
func (s *Store) Put(o runtime.Object) error {
	encoded, err := s.encoder.encode(o)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.advance(parseVersion(encoded.Revision)) {
		s.set(encoded)
	}
	return nil
}

// Delete removes one object.
func (s *Store) Delete(key Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(key)
}

// deleted removes one object, as of a version.
func (s *Store) deleted(key Key, version uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.advance(version) {
		s.remove(key)
	}
}

// reached notes that the watch has brought all up to a version.
func (s *Store) reached(version uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advance(version)
}

// advance reports whether a change of that version is news. The lock is held.
func (s *Store) advance(version uint64) bool {
	if version != 0 && version <= s.floor {
		return false
	}
	s.version = max(s.version, version)
	return true
}

// Replace makes all the whole of the collection, as of the newest of the objects. It takes
// them over.
func (s *Store) Replace(all []runtime.Object) error {
	var newest uint64
	for _, o := range all {
		newest = max(newest, versionOf(o))
	}
	return s.replace(all, newest, nil, false)
}

// replace makes all the content of the collection as of a version, unless accept, which is called
// with the lock held, returns false. If concurrent is set, a watch runs at the same time, and its
// events of versions up to this one are ignored.
func (s *Store) replace(all []runtime.Object, version uint64, accept func() bool, concurrent bool) error {
	fresh := make([]*Object, 0, len(all))
	keep := make(map[Key]bool, len(all))
	for _, o := range all {
		encoded, err := s.encoder.encode(o)
		if err != nil {
			return err
		}
		fresh = append(fresh, encoded)
		keep[encoded.Key] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if accept != nil && !accept() {
		return nil
	}
	s.version, s.floor = version, 0
	if concurrent {
		s.floor = version
	}
	for key := range s.objects {
		if !keep[key] {
			s.remove(key)
		}
	}
	for _, o := range fresh {
		if old := s.objects[o.Key]; old != nil && old.UID == o.UID && old.Revision == o.Revision {
			continue // the same: holders of the old bytes keep sharing them
		}
		s.set(o)
	}
	s.failure = nil
	if !s.isSynced {
		s.isSynced = true
		close(s.synced)
	}
	return nil
}

// The lock is held for these.

func (s *Store) set(o *Object) {
	old := s.objects[o.Key]
	if old != nil && old.Sum == o.Sum {
		o.Raw = old.Raw // a change of the status alone: one copy of the rest is enough
	}
	if old != nil {
		o.share(old)
	}
	s.objects[o.Key] = o
	if s.byNode != nil {
		node := o.field(nodeNameField)
		if old != nil && old.field(nodeNameField) != node {
			s.unindex(old)
		}
		if node != "" {
			if s.byNode[node] == nil {
				s.byNode[node] = map[Key]*Object{}
			}
			s.byNode[node][o.Key] = o
		}
	}
	for _, w := range s.observers {
		w.changed(old, o)
	}
}

func (s *Store) remove(key Key) {
	old, ok := s.objects[key]
	if !ok {
		return
	}
	delete(s.objects, key)
	if s.byNode != nil {
		s.unindex(old)
	}
	for _, w := range s.observers {
		w.changed(old, nil)
	}
}

func (s *Store) unindex(o *Object) {
	node := o.field(nodeNameField)
	delete(s.byNode[node], o.Key)
	if len(s.byNode[node]) == 0 {
		delete(s.byNode, node)
	}
}

// Fail notes why the collection can't be listed or watched at the moment; nil: it can.
func (s *Store) Fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = err
}
