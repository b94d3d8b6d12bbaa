package kube

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// Mirror is a collection as one of cloudcore's own parts reads it: each object decoded once for
// each of its versions. It may be used by many goroutines.
type Mirror[T any] struct {
	read func(*Object) (*T, error)
	same func(old, now *T) bool

	mu      sync.Mutex
	objects map[Key]*T
	broken  map[Key]error
}

// NewMirror makes a Mirror of the values that read returns for objects. A change that same reports
// as equal is not counted; nil: every change counts.
func NewMirror[T any](read func(*Object) (*T, error), same func(old, now *T) bool) *Mirror[T] {
	return &Mirror[T]{read: read, same: same}
}

// Follow keeps the mirror equal to its store, and calls changed after the changes that count, until
// cancel is called.
func (m *Mirror[T]) Follow(s *Store, changed func()) (cancel func()) {
	m.mu.Lock()
	m.objects, m.broken = map[Key]*T{}, map[Key]error{}
	m.mu.Unlock()
	cancel = s.Observe(func(old, now *Object) {
		switch {
		case now != nil && m.put(now), now == nil && m.drop(old):
			changed()
		}
	})
	s.Each(&Selection{Labels: labels.Everything(), Fields: fields.Everything()}, func(o *Object) bool {
		m.put(o)
		return true
	})
	return cancel
}

func (m *Mirror[T]) put(o *Object) (changed bool) {
	now, err := m.read(o)
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.objects[o.Key]
	delete(m.broken, o.Key)
	if err != nil {
		delete(m.objects, o.Key)
		m.broken[o.Key] = err
		return true
	}
	m.objects[o.Key] = now
	return m.same == nil || old == nil || !m.same(old, now)
}

func (m *Mirror[T]) drop(o *Object) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.objects, o.Key)
	delete(m.broken, o.Key)
	return true
}

// List is all objects, which others read too, in no order. An object that can't be read is an error
// that names it.
func (m *Mirror[T]) List() ([]*T, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, err := range m.broken {
		return nil, fmt.Errorf("reading %s: %w", key, err)
	}
	out := make([]*T, 0, len(m.objects))
	for _, o := range m.objects {
		out = append(out, o)
	}
	return out, nil
}
