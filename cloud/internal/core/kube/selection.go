package kube

import (
	"fmt"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
)

// Source is a selection as its client wrote it.
type Source struct{ Namespace, Labels, Fields string }

// Selection selects a client's objects in a collection.
type Selection struct {
	Source    Source
	Namespace string // "" for all
	Name      string // "" for all: the field selector metadata.name=NAME
	Node      string // "" for all: the field selector spec.nodeName=NODE, where the collection is indexed by it
	Labels    labels.Selector
	Fields    fields.Selector

	tests []fieldTest // those that Name and Node don't cover
}

type fieldTest struct {
	index int // in the object's fields; the negative ones are below
	want  string
	equal bool
}

const (
	testName = -1 - iota
	testNamespace
)

// Select parses the selectors of an interest. A field without a selector at kube-apiserver is an
// error.
func Select(resource schema.GroupVersionResource, from Source) (*Selection, error) {
	s := &Selection{Source: from, Namespace: from.Namespace, Labels: labels.Everything(), Fields: fields.Everything()}
	if from.Labels != "" {
		l, err := labels.Parse(from.Labels)
		if err != nil {
			return nil, fmt.Errorf("label selector: %w", err)
		}
		s.Labels = l
	}
	if from.Fields == "" {
		return s, nil
	}
	f, err := fields.ParseSelector(from.Fields)
	if err != nil {
		return nil, fmt.Errorf("field selector: %w", err)
	}
	s.Fields = f
	table := fieldsOf(resource.GroupResource())
	for _, r := range f.Requirements() {
		equal := r.Operator != selection.NotEquals
		test := fieldTest{want: r.Value, equal: equal}
		switch r.Field {
		case "metadata.name":
			if equal && s.Name == "" && r.Value != "" {
				s.Name = r.Value
				continue
			}
			test.index = testName
		case "metadata.namespace":
			if equal && r.Value != "" && (s.Namespace == "" || s.Namespace == r.Value) {
				s.Namespace = r.Value
				continue
			}
			test.index = testNamespace
		default:
			if test.index = table.index(r.Field); test.index < 0 {
				return nil, fmt.Errorf("field selector: %s can't be selected by %q", resource.Resource, r.Field)
			}
			if table.byNode && test.index == nodeNameField && equal && s.Node == "" && r.Value != "" {
				s.Node = r.Value
				continue
			}
		}
		s.tests = append(s.tests, test)
	}
	return s, nil
}

// Matches reports whether o is selected.
func (s *Selection) Matches(o *Object) bool {
	if s.Namespace != "" && o.Namespace != s.Namespace || s.Name != "" && o.Name != s.Name || s.Node != "" && o.field(nodeNameField) != s.Node {
		return false
	}
	for _, t := range s.tests {
		var have string
		switch t.index {
		case testName:
			have = o.Name
		case testNamespace:
			have = o.Namespace
		default:
			have = o.field(t.index)
		}
		if (have == t.want) != t.equal {
			return false
		}
	}
	return s.Labels == nil || s.Labels.Empty() || s.Labels.Matches(o.Labels)
}
