package selectable_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install"
	_ "k8s.io/kubernetes/pkg/apis/apiserverinternal/install"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	_ "k8s.io/kubernetes/pkg/apis/certificates/install"
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/discovery/install"
	_ "k8s.io/kubernetes/pkg/apis/events/install"
	_ "k8s.io/kubernetes/pkg/apis/flowcontrol/install"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	_ "k8s.io/kubernetes/pkg/apis/node/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install"
	_ "k8s.io/kubernetes/pkg/apis/storage/install"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/selectable"
)

// paths are the fields of a type by their names in JSON, as selectors name them, down to
// the third level.
func paths(t reflect.Type, prefix string, depth int, out map[string]bool) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || depth == 3 {
		return
	}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || name == "-" || name == "metadata" {
			continue
		}
		out[prefix+name] = true
		paths(f.Type, prefix+name+".", depth+1, out)
	}
}

// kube-apiserver decides by its scheme which fields a selector may name. Every field of every kind
// that it has, and every field of this package's list, is asked of it.
func TestEveryday_10_FieldsAreThoseOfKubernetes(t *testing.T) {
	kinds, selectableKinds := 0, 0
	every := map[string]bool{}
	object := reflect.TypeFor[metav1.ObjectMetaAccessor]()
	for kind := range scheme.Scheme.AllKnownTypes() {
		plural, _ := meta.UnsafeGuessKindToResource(kind)
		for _, name := range selectable.Names(plural.GroupResource()) {
			every[name] = true
		}
	}
	for kind, typ := range scheme.Scheme.AllKnownTypes() {
		if kind.Version == runtime.APIVersionInternal || strings.HasSuffix(kind.Kind, "List") || !reflect.PointerTo(typ).Implements(object) || !legacyscheme.Scheme.Recognizes(kind) {
			continue
		}
		obj, err := scheme.Scheme.New(kind)
		if err != nil {
			t.Fatal(err)
		}
		if removed, ok := obj.(interface{ APILifecycleRemoved() (int, int) }); ok {
			if major, minor := removed.APILifecycleRemoved(); major == 1 && minor < 30 {
				continue // no kube-apiserver that edges can meet serves it
			}
		}
		kinds++
		plural, _ := meta.UnsafeGuessKindToResource(kind)
		ours := selectable.Names(plural.GroupResource())
		candidates := map[string]bool{}
		paths(typ, "", 0, candidates)
		for name := range every {
			candidates[name] = true
		}
		var theirs []string
		for name := range candidates {
			if _, _, err := legacyscheme.Scheme.ConvertFieldLabel(kind, name, "1"); err == nil {
				theirs = append(theirs, name)
			}
		}
		slices.Sort(theirs)
		if sorted := slices.Sorted(slices.Values(ours)); !slices.Equal(sorted, theirs) {
			t.Errorf("%s: fields %q, Kubernetes selects by %q", kind, sorted, theirs)
			continue
		}
		if values := selectable.Values(obj); len(values) != len(ours) {
			t.Errorf("%s: values %q of fields %q", kind, values, ours)
		}
		if i := slices.Index(ours, selectable.NodeName); i > 0 {
			t.Errorf("%s: %s is not the first field", kind, selectable.NodeName)
		}
		if len(theirs) > 0 {
			selectableKinds++
		}
	}
	if kinds < 50 || selectableKinds < 12 {
		t.Errorf("%d kinds compared, %d with fields: the scheme is not what this test thinks", kinds, selectableKinds)
	}
}

func TestValuesOfANodeOperation(t *testing.T) {
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"nodeName": "edge1"}}}
	o.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("NodeOperation"))
	if got := selectable.Values(o); !slices.Equal(got, []string{"edge1"}) {
		t.Errorf("values %q", got)
	}
	o.SetKind("StaticRoute")
	if got := selectable.Values(o); got != nil {
		t.Errorf("values of a kind without fields: %q", got)
	}
}
