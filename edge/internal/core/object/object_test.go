package object_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	kubepatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	podstrategy "k8s.io/kubernetes/pkg/apis/core/v1"

	"github.com/skerry-io/skerry/edge/internal/core/object"
)

var pods = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

func pod() *corev1.Pod {
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "a", UID: "u", ResourceVersion: "17", Labels: map[string]string{"app": "x", "tier": "y"},
		},
		Spec:   corev1.PodSpec{NodeName: "edge1", Containers: []corev1.Container{{Name: "main"}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

func route() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "skerry.io/v1alpha1", "kind": "StaticRoute",
		"metadata": map[string]any{"name": "r", "resourceVersion": "5", "uid": "v"}, "spec": map[string]any{"metric": int64(3)},
	}}
}

func TestRoundTrip(t *testing.T) {
	routes := schema.GroupVersionResource{Group: "skerry.io", Version: "v1alpha1", Resource: "staticroutes"}
	for name, tt := range map[string]struct {
		resource schema.GroupVersionResource
		obj      runtime.Object
		protobuf bool
	}{
		"built in": {pods, pod(), true},
		"custom":   {routes, route(), false},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := object.FromObject(tt.resource, tt.obj)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.HasPrefix(string(o.Raw), "k8s\x00"); got != tt.protobuf {
				t.Errorf("protobuf: %v", got)
			}
			again, err := object.FromRaw(tt.resource, o.Raw)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(o, again); diff != "" {
				t.Error(diff)
			}
			o.Version = 1_700_000_000_123
			got, err := object.Decode(o)
			if err != nil {
				t.Fatal(err)
			}
			m, _ := meta.Accessor(got)
			if m.GetResourceVersion() != "1700000000123" {
				t.Errorf("resourceVersion: %s", m.GetResourceVersion())
			}
			before, _ := meta.Accessor(tt.obj)
			m.SetResourceVersion(before.GetResourceVersion())
			if diff := cmp.Diff(tt.obj, got); diff != "" {
				t.Error(diff)
			}
			asJSON, err := object.JSON(tt.obj)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := object.DecodeRaw(asJSON); err != nil {
				t.Error(err)
			} else if diff := cmp.Diff(tt.obj, got); diff != "" {
				t.Errorf("JSON: %s", diff)
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	for name, raw := range map[string]string{
		"nothing":        "",
		"YAML":           "apiVersion: v1\nkind: Pod\n",
		"half protobuf":  "k8s\x00\x0a",
		"no kind":        `{"metadata":{"name":"a"}}`,
		"no metadata":    `{"apiVersion":"x.io/v1","kind":"X"}`,
		"a list":         `{"apiVersion":"v1","kind":"PodList","items":[]}`,
		"options":        `{"apiVersion":"v1","kind":"DeleteOptions"}`,
		"not an object":  `[1]`,
		"a wrong type":   `{"apiVersion":"v1","kind":"Pod","metadata":{"name":1}}`,
		"much too large": `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"` + strings.Repeat("a", object.MaxRaw) + `"}}`,
	} {
		if obj, err := object.DecodeRaw([]byte(raw)); !errors.Is(err, object.ErrMalformed) {
			t.Errorf("%s: %T, %v; want %v", name, obj, err, object.ErrMalformed)
		}
	}
}

// The selectable fields are those of kube-apiserver, for the kinds that have fields of their own.
func TestFieldsAreThoseOfKubernetes(t *testing.T) {
	s := runtime.NewScheme()
	if err := podstrategy.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	for kind, obj := range map[string]runtime.Object{
		"Pod": &corev1.Pod{}, "Node": &corev1.Node{}, "Event": &corev1.Event{}, "Service": &corev1.Service{}, "Secret": &corev1.Secret{},
		"Namespace": &corev1.Namespace{}, "ReplicationController": &corev1.ReplicationController{},
	} {
		for field := range object.Fields(obj) {
			if field == "metadata.namespace" && (kind == "Node" || kind == "Namespace") {
				continue
			}
			if _, _, err := s.ConvertFieldLabel(schema.GroupVersionKind{Version: "v1", Kind: kind}, field, ""); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
		}
	}
}

func TestMatches(t *testing.T) {
	o, err := object.FromObject(pods, pod())
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		namespace, labels, fields string
		want                      bool
		err                       bool
	}{
		"all":                   {want: true},
		"its namespace":         {namespace: "default", want: true},
		"another":               {namespace: "other"},
		"label":                 {labels: "app=x", want: true},
		"labels":                {labels: "app in (x,z),tier!=z", want: true},
		"another label":         {labels: "app=z"},
		"name":                  {fields: "metadata.name=a", want: true},
		"another name":          {fields: "metadata.name=b"},
		"node":                  {fields: "spec.nodeName=edge1", want: true},
		"another node":          {fields: "spec.nodeName=edge2"},
		"node and phase":        {fields: "spec.nodeName=edge1,status.phase!=Running"},
		"an empty field":        {fields: "status.nominatedNodeName=", want: true},
		"a field it has not":    {fields: "spec.unschedulable=false", err: true},
		"one of those is wrong": {fields: "spec.nodeName=edge1,spec.x=1", err: true},
	} {
		l, err := labels.Parse(tt.labels)
		if err != nil {
			t.Fatal(err)
		}
		s := object.Selection{Resource: pods, Namespace: tt.namespace, Labels: l, Fields: fields.ParseSelectorOrDie(tt.fields)}
		got, err := s.Matches(o)
		if got != tt.want || (err != nil) != tt.err {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if ok, err := (object.Selection{Resource: pods}).Matches(o); !ok || err != nil {
		t.Errorf("no selectors: %v, %v", ok, err)
	}
}

func TestPatch(t *testing.T) {
	const (
		smp   = types.StrategicMergePatchType
		merge = types.MergePatchType
		jp    = types.JSONPatchType
	)
	for name, tt := range map[string]struct {
		obj  runtime.Object
		kind types.PatchType
		body string
		want string // of status.phase, or spec.metric
		err  error
	}{
		"strategic":           {pod(), smp, `{"metadata":{"uid":"u"},"status":{"phase":"Failed"}}`, "Failed", nil},
		"merge":               {pod(), merge, `{"status":{"phase":"Failed"}}`, "Failed", nil},
		"JSON":                {pod(), jp, `[{"op":"replace","path":"/status/phase","value":"Failed"}]`, "Failed", nil},
		"custom merge":        {route(), merge, `{"spec":{"metric":4}}`, "4", nil},
		"custom strategic":    {route(), smp, `{"spec":{"metric":4}}`, "", object.ErrPatchType},
		"apply":               {pod(), types.ApplyYAMLPatchType, `{}`, "", object.ErrPatchType},
		"garbage":             {pod(), smp, `{"status":`, "", object.ErrBadPatch},
		"JSON test fails":     {pod(), jp, `[{"op":"test","path":"/status/phase","value":"Failed"}]`, "", object.ErrBadPatch},
		"another name":        {pod(), smp, `{"metadata":{"name":"b"}}`, "", object.ErrBadPatch},
		"another uid":         {pod(), smp, `{"metadata":{"uid":"w"}}`, "", object.ErrBadPatch},
		"another kind":        {pod(), merge, `{"kind":"Node"}`, "", object.ErrBadPatch},
		"a field of no type":  {pod(), smp, `{"status":{"phase":{}}}`, "", object.ErrBadPatch},
		"the whole thing off": {pod(), merge, `null`, "", object.ErrBadPatch},
	} {
		before := tt.obj.DeepCopyObject()
		got, err := object.Patch(tt.obj, tt.kind, []byte(tt.body))
		if !errors.Is(err, tt.err) || (err == nil) != (tt.err == nil) {
			t.Errorf("%s: %v, want %v", name, err, tt.err)
			continue
		}
		if diff := cmp.Diff(before, tt.obj); diff != "" {
			t.Errorf("%s: the object itself was changed: %s", name, diff)
		}
		if err != nil {
			continue
		}
		have := ""
		switch o := got.(type) {
		case *corev1.Pod:
			have = string(o.Status.Phase)
		case *unstructured.Unstructured:
			b, _ := json.Marshal(o.Object["spec"].(map[string]any)["metric"])
			have = string(b)
		}
		if have != tt.want {
			t.Errorf("%s: %q, want %q", name, have, tt.want)
		}
	}
}

// Two merged patches have the effect of both in sequence, lists with directives included.
func TestMergePatches(t *testing.T) {
	base := pod()
	base.Status.Conditions = []corev1.PodCondition{
		{Type: "Ready", Status: "False"}, {Type: "Initialized", Status: "True"}, {Type: "PodScheduled", Status: "True"},
	}
	base.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}}
	for name, p := range map[string][2]string{
		"different fields": {`{"status":{"phase":"Failed"}}`, `{"status":{"message":"m"}}`},
		"the same field":   {`{"status":{"phase":"Failed"}}`, `{"status":{"phase":"Succeeded"}}`},
		"set and unset":    {`{"status":{"message":"m"}}`, `{"status":{"message":null}}`},
		"unset and set":    {`{"status":{"phase":null}}`, `{"status":{"phase":"Failed"}}`},
		"conditions": {
			`{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`,
			`{"status":{"conditions":[{"type":"Initialized","status":"False"},{"type":"New","status":"True"}]}}`,
		},
		"conditions in order, as a kubelet sends them": {
			`{"metadata":{"uid":"u"},"status":{"$setElementOrder/conditions":[{"type":"Initialized"},{"type":"Ready"},{"type":"PodScheduled"}],` +
				`"conditions":[{"type":"Ready","status":"True"}]}}`,
			`{"metadata":{"uid":"u"},"status":{"$setElementOrder/conditions":[{"type":"PodScheduled"},{"type":"Initialized"},{"type":"Ready"}],` +
				`"conditions":[{"type":"Ready","status":"False","reason":"r"}]}}`,
		},
		"one taken out, then put in": {
			`{"status":{"conditions":[{"$patch":"delete","type":"Ready"}]}}`,
			`{"status":{"conditions":[{"type":"Ready","status":"Unknown"}]}}`,
		},
		"one put in, then taken out": {
			`{"status":{"conditions":[{"type":"New","status":"True"}]}}`,
			`{"status":{"conditions":[{"$patch":"delete","type":"New"}]}}`,
		},
		"all replaced": {
			`{"status":{"conditions":[{"$patch":"replace"},{"type":"Ready","status":"True"}]}}`,
			`{"status":{"conditions":[{"type":"Initialized","status":"False"}]}}`,
		},
		"an address in place of another": {
			`{"metadata":{"uid":"u"},"status":{"podIP":"10.0.0.2","podIPs":[{"ip":"10.0.0.2"},{"$patch":"delete","ip":"10.0.0.1"}]}}`,
			`{"metadata":{"uid":"u"},"status":{"podIP":"10.0.0.3","podIPs":[{"ip":"10.0.0.3"},{"$patch":"delete","ip":"10.0.0.2"}]}}`,
		},
		"an address in place of one that was set and deleted": {
			`{"status":{"podIPs":[{"$patch":"delete","ip":"10.0.0.1"}]}}`,
			`{"status":{"podIPs":[{"ip":"10.0.0.3"}]}}`,
		},
		"lists without keys": {
			`{"status":{"podIPs":[{"ip":"10.0.0.2"},{"$patch":"delete","ip":"10.0.0.1"}]}}`,
			`{"status":{"podIPs":[{"ip":"10.0.0.3"}]}}`,
		},
	} {
		one, err := object.Patch(base, types.StrategicMergePatchType, []byte(p[0]))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want, err := object.Patch(one, types.StrategicMergePatchType, []byte(p[1]))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		merged, patched, err := object.MergePatches(base, []byte(p[0]), []byte(p[1]))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(want, patched); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		got, err := object.Patch(base, types.StrategicMergePatchType, merged)
		if err != nil {
			t.Errorf("%s: %s: %v", name, merged, err)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s: %s", name, merged, diff)
		}
		// The cloud may have the first patch, of which no answer came.
		got, err = object.Patch(one, types.StrategicMergePatchType, merged)
		if err != nil {
			t.Errorf("%s: over the first: %s: %v", name, merged, err)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: over the first: %s: %s", name, merged, diff)
		}
		if object.PatchUID([]byte(p[1])) != object.PatchUID(merged) {
			t.Errorf("%s: the uid is lost: %s", name, merged)
		}
	}
}

// The name is taken from the object if it is not known otherwise.
func TestFromDecoded(t *testing.T) {
	in := func(namespace, name string) object.Ref {
		return object.Ref{Resource: pods, Namespace: namespace, Name: name}
	}
	called := func(namespace, name string) *corev1.Pod {
		p := pod()
		p.Namespace, p.Name = namespace, name
		return p
	}
	for name, tt := range map[string]struct {
		ref  object.Ref
		obj  runtime.Object
		want object.Ref // "" in all: malformed
	}{
		"named":                 {in("default", "a"), pod(), in("default", "a")},
		"unnamed":               {in("", ""), pod(), in("default", "a")},
		"unnamed, of no space":  {in("", ""), route(), in("", "r")},
		"a name of 1 KiB":       {in("", ""), called("", strings.Repeat("a", 1<<10)), in("", strings.Repeat("a", 1<<10))},
		"another name":          {in("default", "b"), pod(), object.Ref{}},
		"another namespace":     {in("other", "a"), pod(), object.Ref{}},
		"a namespace alone":     {in("default", ""), pod(), object.Ref{}},
		"a name alone":          {in("", "a"), pod(), object.Ref{}},
		"nameless":              {in("", ""), called("default", ""), object.Ref{}},
		"nameless, and so said": {in("default", ""), called("default", ""), object.Ref{}},
		"no text":               {in("", ""), called("default", "\xff"), object.Ref{}},
		"a namespace of bytes":  {in("", ""), called("\xff", "a"), object.Ref{}},
		"a NUL":                 {in("", ""), called("a\x00b", "c"), object.Ref{}},
		"too long":              {in("", ""), called("", strings.Repeat("a", 1<<10+1)), object.Ref{}},
		"too long a namespace":  {in("", ""), called(strings.Repeat("a", 1<<10+1), "a"), object.Ref{}},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := object.FromDecoded(tt.ref, tt.obj, []byte("raw"))
			if (err == nil) != (tt.want.Name != "") || err != nil && !errors.Is(err, object.ErrMalformed) {
				t.Fatal(err)
			}
			if o.Ref != tt.want || err == nil && string(o.Raw) != "raw" {
				t.Errorf("it is %v, %q; want %v", o.Ref, o.Raw, tt.want)
			}
		})
	}
}

// An undecodable object is described by its own name, as far as it can be read.
func TestDescribe(t *testing.T) {
	a, err := object.Encode(pod())
	if err != nil {
		t.Fatal(err)
	}
	in := object.Ref{Resource: pods}
	named := object.Ref{Resource: pods, Namespace: "default", Name: "a"}
	for name, tt := range map[string]struct {
		ref  object.Ref
		raw  string
		want object.Ref
	}{
		"protobuf":              {in, string(a), named},
		"of an unknown kind":    {in, strings.Replace(string(a), "Pod", "Pot", 1), named},
		"JSON of a broken spec": {in, `{"metadata":{"namespace":"default","name":"a"},"spec":7}`, named},
		"named beside it":       {named, `{"metadata":{"name":"b"}}`, named},
		"nothing to read":       {in, "k8s\x00\xff", in},
		"empty":                 {in, "", in},
	} {
		if got := object.Describe(tt.ref, []byte(tt.raw)); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

func FuzzDecodeRaw(f *testing.F) {
	nameless, bytesForName := pod(), pod()
	nameless.Name, bytesForName.Name = "", "a\xff\x00"
	for _, obj := range []runtime.Object{pod(), route(), nameless, bytesForName} {
		raw, err := object.Encode(obj)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
		asJSON, err := object.JSON(obj)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(asJSON)
		f.Add(append(bytes.Clone(raw), bytes.Repeat([]byte{0x0a, 0x00}, 50_000)...)) // empty elements
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		object.Describe(object.Ref{}, raw)
		obj, err := object.DecodeRaw(raw)
		if err != nil {
			return
		}
		object.Fields(obj)
		if o, err := object.FromDecoded(object.Ref{Resource: pods}, obj, raw); err == nil {
			if o.Name == "" || !utf8.ValidString(o.Namespace+o.Name) || len(o.Namespace)+len(o.Name) > 2<<10 {
				t.Errorf("it is called %q/%q", o.Namespace, o.Name)
			}
		}
		encoded, err := object.Encode(obj)
		if err != nil {
			return // an object can be decoded and not encoded again, such as a time before year 0
		}
		if _, err := object.DecodeRaw(encoded); err != nil && len(encoded) <= object.MaxRaw {
			t.Errorf("what was encoded can't be decoded: %v", err)
		}
	})
}

// doubling is a JSON patch that doubles an object n times.
func doubling(n int) []byte {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`{"op":"copy","from":"/metadata","path":"/metadata/x%d"}`, i))
	}
	return []byte("[" + strings.Join(all, ",") + "]")
}

// copying adds size bytes of arrays within arrays, copies them to one place n times, and takes
// them out again.
func copying(size, n int) []byte {
	deep := strings.Repeat("[", 20) + `"` + strings.Repeat("x", size) + `"` + strings.Repeat("]", 20)
	return []byte(`[{"op":"add","path":"/metadata/annotations","value":{"a":` + deep + `}},` +
		strings.Repeat(`{"op":"copy","from":"/metadata/annotations/a`+strings.Repeat("/0", 18)+`","path":"/metadata/annotations/b"},`, n) +
		`{"op":"remove","path":"/metadata/annotations"}]`)
}

// A patch whose every operation moves a list of a million elements is refused, and one of many
// small operations is not.
func TestHostile_02_PatchOfManyOperationsIsRefused(t *testing.T) {
	inFront := func(size, n int) []byte {
		return []byte(`[{"op":"add","path":"/metadata/annotations","value":{"a":[` + strings.Repeat("1,", size) + `1]}},` +
			strings.Repeat(`{"op":"add","path":"/metadata/annotations/a/0","value":1},`, n) + `{"op":"remove","path":"/metadata/annotations"}]`)
	}
	if _, err := object.Patch(pod(), types.JSONPatchType, inFront(1_000_000, 1000)); !errors.Is(err, object.ErrBadPatch) || !strings.Contains(err.Error(), "operations, at most") {
		t.Errorf("a thousand in front of a million: %v", err)
	}
	if _, err := object.Patch(pod(), types.JSONPatchType, inFront(10, 1000)); err != nil {
		t.Errorf("a thousand in front of ten: %v", err)
	}
}

// A JSON patch gives the same result on the device as in kube-apiserver, whose library is an older
// one of the same name.
func TestPatch_JSONAsKubeAPIServer(t *testing.T) {
	for _, patch := range []string{
		`[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`,
		`[{"op":"add","path":"/spec/containers/-","value":{"name":"c"}}]`,
		`[{"op":"add","path":"/spec/containers/0","value":{"name":"c"}}]`,
		`[{"op":"add","path":"/spec/containers/9","value":{"name":"c"}}]`,
		`[{"op":"add","path":"/spec/containers/-1","value":{"name":"c"}}]`,
		`[{"op":"add","path":"/spec/none/x","value":1}]`,
		`[{"op":"remove","path":"/spec/containers/0"}]`,
		`[{"op":"remove","path":"/spec/none"}]`,
		`[{"op":"replace","path":"/spec/containers/0/name","value":"other"}]`,
		`[{"op":"replace","path":"/spec/none","value":"other"}]`,
		`[{"op":"move","from":"/spec/containers/0/name","path":"/metadata/generateName"}]`,
		`[{"op":"copy","from":"/metadata/name","path":"/metadata/generateName"}]`,
		`[{"op":"copy","from":"/metadata/none","path":"/metadata/generateName"}]`,
		`[{"op":"test","path":"/metadata/name","value":"a"},{"op":"add","path":"/metadata/labels","value":{"a~1b":"<&>"}}]`,
		`[{"op":"test","path":"/metadata/name","value":"other"}]`,
		`[{"op":"test","path":"/metadata/none","value":null}]`,
		`[{"op":"add","path":"/metadata/annotations","value":{"a/b":"1","c~d":"2"}},{"op":"remove","path":"/metadata/annotations/a~1b"},{"op":"replace","path":"/metadata/annotations/c~0d","value":"3"}]`,
		`[{"op":"none","path":"/metadata"}]`,
		`[{"op":"remove","path":""}]`,
		`{"op":"remove"}`,
		`[]`,
	} {
		t.Run(patch, func(t *testing.T) {
			got, err := object.Patch(pod(), types.JSONPatchType, []byte(patch))
			doc, jsonErr := object.JSON(pod())
			if jsonErr != nil {
				t.Fatal(jsonErr)
			}
			p, kubeErr := kubepatch.DecodePatch([]byte(patch))
			if kubeErr == nil {
				doc, kubeErr = p.Apply(doc)
			}
			var want corev1.Pod
			if kubeErr == nil {
				kubeErr = json.Unmarshal(doc, &want)
			}
			if (err == nil) != (kubeErr == nil) {
				t.Fatalf("the error is %v, kube-apiserver's %v", err, kubeErr)
			}
			if err == nil {
				if diff := cmp.Diff(&want, got); diff != "" {
					t.Errorf("other than kube-apiserver's (-kube-apiserver +device):\n%s", diff)
				}
			}
		})
	}
}

// A patch of a kilobyte that would make gigabytes is refused, and one that copies a little is not.
func TestHostile_02_PatchThatDoublesIsRefused(t *testing.T) {
	if _, err := object.Patch(pod(), types.JSONPatchType, doubling(40)); !errors.Is(err, object.ErrBadPatch) || !strings.Contains(err.Error(), "is larger than") {
		t.Errorf("forty times twice as long: %v", err)
	}
	if _, err := object.Patch(pod(), types.JSONPatchType, copying(200_000, 6)); !errors.Is(err, object.ErrBadPatch) || !strings.Contains(err.Error(), "after a copy") {
		t.Errorf("a large object written out six times: %v", err)
	}
	if _, err := object.Patch(pod(), types.JSONPatchType, copying(1000, 90)); err != nil {
		t.Errorf("a small one written out ninety times: %v", err)
	}
	got, err := object.Patch(pod(), types.JSONPatchType, []byte(`[{"op":"copy","from":"/metadata/name","path":"/metadata/generateName"},{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`))
	if err != nil {
		t.Fatal(err)
	}
	if p := got.(*corev1.Pod); p.GenerateName != "a" || p.Labels["a"] != "b" {
		t.Errorf("copied: %+v", p.ObjectMeta)
	}
}

// A patch that is nested thousands of levels deep is refused before a library goes through it once
// for each level.
func TestHostile_02_PatchThatIsDeepIsRefused(t *testing.T) {
	nested := func(n int) []byte { return []byte(strings.Repeat(`{"a":`, n) + "1" + strings.Repeat("}", n)) }
	if _, err := object.Patch(pod(), types.MergePatchType, nested(5000)); !errors.Is(err, object.ErrBadPatch) || !strings.Contains(err.Error(), "levels deep") {
		t.Errorf("5,000 levels: %v", err)
	}
	if _, err := object.Patch(pod(), types.MergePatchType, nested(30)); err != nil && strings.Contains(err.Error(), "levels deep") {
		t.Errorf("30 levels: %v", err)
	}
	brackets := []byte(`{"metadata":{"annotations":{"a":"` + strings.Repeat(`{[\"`, 1000) + `"}}}`)
	if _, err := object.Patch(pod(), types.MergePatchType, brackets); err != nil {
		t.Errorf("brackets in a text: %v", err)
	}
}

func FuzzPatch(f *testing.F) {
	f.Add(0, []byte(`{"status":{"$setElementOrder/conditions":[{"type":"A"}],"conditions":[{"type":"A","status":"True"}]}}`))
	f.Add(1, []byte(`{"status":{"phase":null},"metadata":{"labels":{"$patch":"replace","a":"b"}}}`))
	f.Add(2, []byte(`[{"op":"move","from":"/spec","path":"/status"}]`))
	f.Add(0, []byte(`{"spec":{"containers":[{"$patch":"delete","name":"main"}],"$retainKeys":["containers"]}}`))
	// Another object's name, and patches that grow by themselves.
	f.Add(1, []byte(`{"metadata":{"name":"b","namespace":"kube-system","uid":"v"}}`))
	f.Add(2, []byte(`[{"op":"replace","path":"/metadata/name","value":"b"},{"op":"test","path":"/a~2","value":1}]`))
	f.Add(2, []byte(`[`+strings.Repeat(`{"op":"copy","from":"/spec","path":"/spec/x"},`, 60)+`{"op":"remove","path":""}]`))
	f.Add(2, doubling(40))
	f.Add(2, copying(1000, 100))
	f.Add(1, []byte(strings.Repeat(`{"a":`, 5000)+"1"+strings.Repeat("}", 5000)))
	f.Fuzz(func(t *testing.T, kind int, body []byte) {
		p := pod()
		kinds := []types.PatchType{types.StrategicMergePatchType, types.MergePatchType, types.JSONPatchType}
		got, err := object.Patch(p, kinds[uint(kind)%3], body)
		if diff := cmp.Diff(pod(), p); diff != "" {
			t.Errorf("the object itself was changed: %s", diff)
		}
		if err != nil {
			return
		}
		if m, err := meta.Accessor(got); err != nil || m.GetName() != "a" || m.GetNamespace() != "default" || m.GetUID() != "u" {
			t.Errorf("it is another object: %v", err)
		}
		_, _, _ = object.MergePatches(p, body, body)
	})
}
