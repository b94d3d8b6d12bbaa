package edgeapi

import (
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
)

// Kubernetes' own resources are those of its generated client, which has a method for each: its
// name is the resource's, its argument shows whether the resource is namespaced, and the methods of
// its result are the verbs.
func TestBuiltinsAreTheClients(t *testing.T) {
	want := map[schema.GroupVersionResource]builtin{}
	for group := range reflect.TypeFor[kubernetes.Interface]().Methods() {
		if group.Type.NumOut() != 1 || group.Type.Out(0).Kind() != reflect.Interface {
			continue
		}
		for method := range group.Type.Out(0).Methods() {
			if method.Type.NumOut() != 1 || method.Type.Out(0).Kind() != reflect.Interface {
				continue
			}
			client := method.Type.Out(0)
			get, ok := client.MethodByName("Get")
			if !ok || get.Type.NumOut() != 2 || get.Type.Out(0).Kind() != reflect.Pointer {
				continue
			}
			o, ok := reflect.New(get.Type.Out(0).Elem()).Interface().(runtime.Object)
			if !ok {
				continue
			}
			kinds, _, err := scheme.Scheme.ObjectKinds(o)
			if err != nil {
				continue
			}
			b := builtin{kind: kinds[0], namespaced: method.Type.NumIn() == 1}
			for _, verb := range []string{"Create", "Delete", "DeleteCollection", "Get", "List", "Patch", "Update", "Watch"} {
				if _, ok := client.MethodByName(verb); ok {
					b.verbs = append(b.verbs, strings.ToLower(verb))
				}
			}
			want[b.kind.GroupVersion().WithResource(strings.ToLower(method.Name))] = b
		}
	}
	if len(want) < 100 {
		t.Fatalf("the generated client has %d resources", len(want))
	}
	if diff := cmp.Diff(want, builtins(), cmp.AllowUnexported(builtin{})); diff != "" {
		t.Errorf("(-client +builtins)\n%s", diff)
	}
}
