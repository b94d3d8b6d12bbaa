package object

import (
	"encoding/binary"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
)

// Labels are an object's labels as one text: each key and each value behind its length, in the
// order of the keys. A map of three has eight times its memory. The zero value is empty.
type Labels string

var _ labels.Labels = Labels("")

// NewLabels makes them of a map.
func NewLabels(all map[string]string) Labels {
	var b []byte
	for _, k := range slices.Sorted(maps.Keys(all)) {
		for _, s := range []string{k, all[k]} {
			b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
		}
	}
	return Labels(b)
}

// each calls do until it returns false.
func (l Labels) each(do func(key, value string) bool) {
	next := func() (s string) {
		n, size := binary.Uvarint([]byte(l[:min(len(l), binary.MaxVarintLen64)]))
		s, l = string(l[size:size+int(n)]), l[size+int(n):]
		return s
	}
	for len(l) > 0 {
		if key := next(); !do(key, next()) {
			return
		}
	}
}

// Map is the labels as Kubernetes has them; nil without one.
func (l Labels) Map() (all map[string]string) {
	l.each(func(k, v string) bool {
		if all == nil {
			all = map[string]string{}
		}
		all[k] = v
		return true
	})
	return all
}

// Lookup implements labels.Labels.
func (l Labels) Lookup(key string) (value string, exists bool) {
	l.each(func(k, v string) bool {
		if k == key {
			value, exists = v, true
		}
		return !exists
	})
	return value, exists
}

// Has implements labels.Labels.
func (l Labels) Has(key string) bool {
	_, exists := l.Lookup(key)
	return exists
}

// Get implements labels.Labels.
func (l Labels) Get(key string) string {
	value, _ := l.Lookup(key)
	return value
}
