package kube

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/common/selectable"
)

// nodeNameField is where the tables of resources that have one hold spec.nodeName: the field that
// stores are indexed by.
const nodeNameField = 0

// fieldTable lists the fields that selectors of one resource may use, in addition to metadata.name
// and metadata.namespace.
type fieldTable struct {
	names  []string
	byNode bool // the first is spec.nodeName
}

// fieldsOf returns the table; the fields are those that kube-apiserver supports for the resource.
func fieldsOf(resource schema.GroupResource) *fieldTable {
	names := selectable.Names(resource)
	return &fieldTable{names: names, byNode: len(names) > 0 && names[nodeNameField] == selectable.NodeName}
}

func (t *fieldTable) index(name string) int { return slices.Index(t.names, name) }
