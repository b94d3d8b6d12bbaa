package object

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/scheme"
)

var (
	// ErrBadPatch is returned for a patch that can't be read or applied; trying again can't help.
	ErrBadPatch = errors.New("bad patch")
	// ErrPatchType is returned for a patch type that the object does not take.
	ErrPatchType = errors.New("patch type not supported")
)

const (
	maxWork    = 256 << 20 // operations of a JSON patch, times the bytes of object and patch that each may go through
	maxWritten = 1 << 20   // bytes of the object, written out after each operation that copies
)

// maxDepth is more than any object that a device writes is nested (a Pod has some 14 levels). The
// libraries go through a patch once again at each level: 30 kB of 5,000 levels kept a processor
// busy for seconds.
const maxDepth = 32

// tooDeep reports whether JSON is nested deeper than maxDepth. Invalid JSON is refused by its
// readers.
func tooDeep(text []byte) bool {
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}

// operations applies a JSON patch (RFC 6902). Each operation may go through the whole document, as
// one that puts an element in front of a list does. A copy may also double it, so that thirty of
// them make gigabytes: it is encoded after each, and its size is bounded. The other operations add
// no more than the patch's size.
func operations(doc, body []byte) ([]byte, error) {
	p, err := jsonpatch.DecodePatch(body)
	if err != nil {
		return nil, err
	}
	if size := len(doc) + len(body); len(p) > maxWork/size {
		return nil, fmt.Errorf("%d operations, at most %d are taken with %d bytes of object and patch", len(p), maxWork/size, size)
	}
	for written := 0; ; {
		n := slices.IndexFunc(p, func(o jsonpatch.Operation) bool { return o.Kind() == "copy" }) + 1
		if n == 0 {
			return p.Apply(doc)
		}
		if doc, err = p[:n].Apply(doc); err != nil {
			return nil, err
		}
		if written += len(doc); written > maxWritten {
			return nil, fmt.Errorf("the object is larger than %d bytes after a copy", maxWritten)
		}
		p = p[n:]
	}
}

// Patch applies a strategic merge, merge or JSON patch to obj and returns the result; obj is not
// changed. The object's identity (its kind, namespace, name and uid) can't be patched.
func Patch(obj runtime.Object, patchType types.PatchType, body []byte) (result runtime.Object, err error) {
	defer func() {
		if p := recover(); p != nil {
			result, err = nil, fmt.Errorf("%w: panic: %v", ErrBadPatch, p)
		}
	}()
	if len(body) > MaxRaw {
		return nil, fmt.Errorf("%w: %d bytes, at most %d are taken", ErrBadPatch, len(body), MaxRaw)
	}
	if tooDeep(body) {
		return nil, fmt.Errorf("%w: it is nested more than %d levels deep", ErrBadPatch, maxDepth)
	}
	original, err := JSON(obj)
	if err != nil {
		return nil, err
	}
	var patched []byte
	switch patchType {
	case types.StrategicMergePatchType:
		patched, err = strategic(obj, original, body)
	case types.MergePatchType:
		patched, err = jsonpatch.MergePatch(original, body)
	case types.JSONPatchType:
		patched, err = operations(original, body)
	default:
		return nil, fmt.Errorf("%w: %s", ErrPatchType, patchType)
	}
	if err != nil {
		if errors.Is(err, ErrPatchType) {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %w", ErrBadPatch, err)
	}
	result, err = fresh(obj)
	if err != nil {
		return nil, err
	}
	if u, ok := result.(*unstructured.Unstructured); ok {
		err = u.UnmarshalJSON(patched)
	} else {
		err = json.Unmarshal(patched, result)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the result is no object: %w", ErrBadPatch, err)
	}
	return result, sameIdentity(obj, result)
}

// strategic keeps the values of unknown fields out: the struct's tags define how each list merges,
// so only Kubernetes' own kinds have it.
func strategic(obj runtime.Object, original, body []byte) ([]byte, error) {
	if _, ok := obj.(runtime.Unstructured); ok {
		return nil, fmt.Errorf("%w: strategic merge of %s", ErrPatchType, obj.GetObjectKind().GroupVersionKind())
	}
	return strategicpatch.StrategicMergePatch(original, body, obj)
}

func fresh(obj runtime.Object) (runtime.Object, error) {
	if _, ok := obj.(runtime.Unstructured); ok {
		return &unstructured.Unstructured{}, nil
	}
	kind := obj.GetObjectKind().GroupVersionKind()
	if kind.Empty() {
		kinds, _, err := scheme.Scheme.ObjectKinds(obj)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrBadPatch, err)
		}
		kind = kinds[0]
	}
	n, err := scheme.Scheme.New(kind)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadPatch, err)
	}
	return n, nil
}

func sameIdentity(before, after runtime.Object) error {
	b, err := meta.Accessor(before)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBadPatch, err)
	}
	a, err := meta.Accessor(after)
	if err != nil {
		return fmt.Errorf("%w: the result has no metadata", ErrBadPatch)
	}
	if a.GetName() != b.GetName() || a.GetNamespace() != b.GetNamespace() || a.GetUID() != b.GetUID() {
		return fmt.Errorf("%w: it changes the object's name, namespace or uid", ErrBadPatch)
	}
	if k := before.GetObjectKind().GroupVersionKind(); !k.Empty() && after.GetObjectKind().GroupVersionKind() != k {
		return fmt.Errorf("%w: it changes the object's kind", ErrBadPatch)
	}
	return nil
}

// MergePatches makes one strategic merge patch with the effect on base of first and then second. It
// has the same effect where first was applied before: the cloud may have it, though its answer was
// lost. If merging the patches themselves gives another result (lists with directives may not), the
// result is made of the differences. patched is the state after both.
func MergePatches(base runtime.Object, first, second []byte) (merged []byte, patched runtime.Object, err error) {
	one, err := Patch(base, types.StrategicMergePatchType, first)
	if err != nil {
		return nil, nil, err
	}
	want, err := Patch(one, types.StrategicMergePatchType, second)
	if err != nil {
		return nil, nil, err
	}
	leads := func(from runtime.Object, patch []byte) bool {
		got, err := Patch(from, types.StrategicMergePatchType, patch)
		return err == nil && reflect.DeepEqual(got, want)
	}
	if merged, err := mergeMaps(base, first, second); err == nil && leads(base, merged) && leads(one, merged) {
		return merged, want, nil
	}
	fromBase, err := difference(base, want)
	if err != nil {
		return nil, nil, err
	}
	fromOne, err := difference(one, want)
	if err != nil {
		return nil, nil, err
	}
	if merged, err := json.Marshal(union(fromBase, fromOne)); err == nil && leads(base, merged) && leads(one, merged) {
		return withUID(merged, second), want, nil
	}
	merged, err = json.Marshal(fromBase)
	return withUID(merged, second), want, err
}

// difference is the strategic merge patch that leads from an object to another.
func difference(from, to runtime.Object) (map[string]any, error) {
	before, err := JSON(from)
	if err != nil {
		return nil, err
	}
	after, err := JSON(to)
	if err != nil {
		return nil, err
	}
	raw, err := strategicpatch.CreateTwoWayMergePatch(before, after, from)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadPatch, err)
	}
	var diff map[string]any
	return diff, json.Unmarshal(raw, &diff)
}

// orderOf begins the key of a strategic merge patch that has the order of a list, by its merge key.
const orderOf = "$setElementOrder/"

// union is a patch with all of two that lead to the same state from different ones: where both have
// a value, it is that state's.
func union(a, b map[string]any) map[string]any {
	all := maps.Clone(a)
	for key, theirs := range b {
		ours, both := all[key]
		switch theirs := theirs.(type) {
		case map[string]any:
			if ours, ok := ours.(map[string]any); ok {
				all[key] = union(ours, theirs)
				continue
			}
		case []any:
			if ours, ok := ours.([]any); ok && !strings.HasPrefix(key, orderOf) {
				all[key] = unionOf(ours, theirs, cmp.Or(mergeKey(a[orderOf+key]), mergeKey(b[orderOf+key])))
				continue
			}
		}
		if !both {
			all[key] = theirs
		}
	}
	return all
}

// mergeKey is the key by which the elements of a list are told apart; "" if an order has none.
func mergeKey(order any) string {
	if list, ok := order.([]any); ok && len(list) > 0 {
		if element, ok := list[0].(map[string]any); ok {
			for key := range element {
				return key
			}
		}
	}
	return ""
}

// unionOf is union for the elements of lists.
func unionOf(a, b []any, key string) []any {
	all := slices.Clone(a)
	for _, theirs := range b {
		element, _ := theirs.(map[string]any)
		i := slices.IndexFunc(all, func(ours any) bool {
			if reflect.DeepEqual(ours, theirs) {
				return true
			}
			other, ok := ours.(map[string]any)
			return ok && element != nil && element[key] != nil && reflect.DeepEqual(other[key], element[key])
		})
		switch {
		case i < 0:
			all = append(all, theirs)
		case element != nil:
			all[i] = union(all[i].(map[string]any), element)
		}
	}
	return all
}

func mergeMaps(base runtime.Object, first, second []byte) (merged []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: panic: %v", ErrBadPatch, p)
		}
	}()
	schema, err := strategicpatch.NewPatchMetaFromStruct(base)
	if err != nil {
		return nil, err
	}
	var a, b strategicpatch.JSONMap
	if err := json.Unmarshal(first, &a); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(second, &b); err != nil {
		return nil, err
	}
	m, err := strategicpatch.MergeStrategicMergeMapPatchUsingLookupPatchMeta(schema, a, b)
	if err != nil {
		return nil, err
	}
	return json.Marshal(m)
}

// withUID keeps the precondition that a kubelet puts into its patches (metadata.uid): a difference
// lacks equal fields.
func withUID(diff, like []byte) []byte {
	uid := PatchUID(like)
	if uid == "" {
		return diff
	}
	var m map[string]any
	if json.Unmarshal(diff, &m) != nil {
		return diff
	}
	md, _ := m["metadata"].(map[string]any)
	if md == nil {
		md = map[string]any{}
	}
	md["uid"] = string(uid)
	m["metadata"] = md
	out, err := json.Marshal(m)
	if err != nil {
		return diff
	}
	return out
}

// PatchUID is the uid that a merge patch (of either kind) names as its precondition, or "".
func PatchUID(body []byte) types.UID {
	var p struct {
		Metadata struct {
			UID types.UID `json:"uid"`
		} `json:"metadata"`
	}
	if json.Unmarshal(body, &p) != nil {
		return ""
	}
	return p.Metadata.UID
}
