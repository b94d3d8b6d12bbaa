package object

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/skerry-io/skerry/common/selectable"
)

const (
	fieldName      = "metadata.name"
	fieldNamespace = "metadata.namespace"
)

// Fields returns obj's selectable fields, as kube-apiserver's own registries do
// (https://kubernetes.io/docs/concepts/overview/working-with-objects/field-selectors/). A field
// that the kind supports is always there, even if empty.
func Fields(obj runtime.Object) fields.Set {
	set := fields.Set{}
	if m, err := meta.Accessor(obj); err == nil {
		set[fieldName] = m.GetName()
		set[fieldNamespace] = m.GetNamespace()
	}
	selectable.Fields(obj, func(name, value string) { set[name] = value })
	return set
}

// FieldError is a selector that asks for a field which the kind does not offer.
type FieldError struct{ Field string }

func (e *FieldError) Error() string { return "field label not supported: " + e.Field }

// Matches reports whether the selection holds o. It decodes o only where the selector asks for more
// than name and namespace.
func (s Selection) Matches(o Object) (bool, error) {
	if s.Resource != o.Resource || (s.Namespace != "" && s.Namespace != o.Namespace) {
		return false, nil
	}
	if s.Labels != nil && !s.Labels.Empty() && !s.Labels.Matches(o.Labels) {
		return false, nil
	}
	if s.Fields == nil || s.Fields.Empty() {
		return true, nil
	}
	set := fields.Set{fieldName: o.Name, fieldNamespace: o.Namespace}
	decoded := false
	for _, r := range s.Fields.Requirements() {
		if set.Has(r.Field) {
			continue
		}
		if decoded {
			return false, &FieldError{Field: r.Field}
		}
		obj, err := DecodeRaw(o.Raw)
		if err != nil {
			return false, fmt.Errorf("decoding %s: %w", o.Ref, err)
		}
		set, decoded = Fields(obj), true
		if !set.Has(r.Field) {
			return false, &FieldError{Field: r.Field}
		}
	}
	return s.Fields.Matches(set), nil
}

// Name is the one name that the selection is limited to, or "".
func (s Selection) Name() string {
	if s.Fields == nil {
		return ""
	}
	name, _ := s.Fields.RequiresExactMatch(fieldName)
	return name
}

// LabelString and FieldString are the selectors in a form that is equal for equal selectors.
func (s Selection) LabelString() string {
	if s.Labels == nil {
		return ""
	}
	return s.Labels.String()
}

// FieldString: see LabelString.
func (s Selection) FieldString() string {
	if s.Fields == nil {
		return ""
	}
	return s.Fields.String()
}

func (s Selection) String() string {
	out := s.Resource.GroupResource().String()
	if s.Namespace != "" {
		out += " in " + s.Namespace
	}
	if l := s.LabelString(); l != "" {
		out += " with labels " + l
	}
	if f := s.FieldString(); f != "" {
		out += " with fields " + f
	}
	return out
}
