package dependency_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/node"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"github.com/skerry-io/skerry/common/dependency"
)

// fill gives every string of v a value of its own and every optional or repeated field one element.
// A recursive type stays empty.
func fill(v reflect.Value, n *int, above ...reflect.Type) {
	switch v.Interface().(type) {
	case metav1.Time, resource.Quantity, metav1.ManagedFieldsEntry:
		return
	}
	switch v.Kind() {
	case reflect.String:
		*n++
		v.SetString(fmt.Sprintf("s%d", *n))
	case reflect.Pointer:
		if !slices.Contains(above, v.Type()) {
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), n, append(above, v.Type())...)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() != reflect.Uint8 && !slices.Contains(above, v.Type()) {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			fill(v.Index(0), n, append(above, v.Type())...)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), n, above...)
			}
		}
	}
}

func filled[T any](from int) *T {
	o := new(T)
	fill(reflect.ValueOf(o).Elem(), &from)
	return o
}

func filledPod() *corev1.Pod {
	p := filled[corev1.Pod](0)
	p.DeletionTimestamp, p.Annotations, p.Spec.NodeName = nil, nil, "edge1"
	all := p.Spec.Volumes[0] // of each volume the authorizer checks the first source alone
	p.Spec.Volumes = nil
	for i := range reflect.TypeFor[corev1.VolumeSource]().NumField() {
		one := all.DeepCopy()
		source := reflect.ValueOf(&one.VolumeSource).Elem()
		for j := range source.NumField() {
			if j != i {
				source.Field(j).SetZero()
			}
		}
		one.Name = fmt.Sprintf("volume%d", i)
		p.Spec.Volumes = append(p.Spec.Volumes, *one)
	}
	return p
}

// asked is a cluster's Node authorizer, with its graph of the cluster.
type asked struct {
	graph      *node.Graph
	authorizer authorizer.Authorizer
	resources  []schema.GroupResource // all that it decides on
}

func newAsked() *asked {
	a := &asked{graph: node.NewGraph()}
	rules := bootstrappolicy.NodeRules()
	a.authorizer = node.NewAuthorizer(a.graph, nodeidentifier.NewDefaultNodeIdentifier(), rules)
	seen := map[schema.GroupResource]bool{}
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, r := range rule.Resources {
				seen[schema.GroupResource{Group: group, Resource: r}] = true
			}
		}
	}
	for _, r := range dependency.Resources() {
		seen[r.GroupResource()] = true
	}
	// The pods themselves, the Node and its CSINode come by the kubelet's own watches and reads.
	for _, own := range []schema.GroupResource{{Resource: "pods"}, {Resource: "nodes"}, {Group: "storage.k8s.io", Resource: "csinodes"}} {
		delete(seen, own)
	}
	for r := range seen {
		a.resources = append(a.resources, r)
	}
	return a
}

func (a *asked) may(t *testing.T, r schema.GroupResource, namespace, name string) bool {
	t.Helper()
	decision, _, err := a.authorizer.Authorize(context.Background(), authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: "system:node:edge1", Groups: []string{"system:nodes"}},
		Verb: "get", APIGroup: r.Group, Resource: r.Resource, Namespace: namespace, Name: name, ResourceRequest: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	return decision == authorizer.DecisionAllow
}

// grants lists the objects that the authorizer lets edge1 read because of its graph: of every
// resource, in each of the namespaces, the objects of these names, where it doesn't grant any name.
func (a *asked) grants(t *testing.T, namespaces, names []string) (granted []string) {
	t.Helper()
	for _, r := range a.resources {
		for _, namespace := range namespaces {
			if a.may(t, r, namespace, "any") {
				continue
			}
			for _, name := range names {
				if a.may(t, r, namespace, name) {
					granted = append(granted, fmt.Sprintf("%s %s/%s", r, namespace, name))
				}
			}
		}
	}
	slices.Sort(granted)
	return granted
}

// strings of v, all of them.
func stringsOf(v reflect.Value, out *[]string) {
	switch v.Kind() {
	case reflect.String:
		*out = append(*out, v.String())
	case reflect.Pointer:
		if !v.IsNil() {
			stringsOf(v.Elem(), out)
		}
	case reflect.Slice:
		for i := range v.Len() {
			stringsOf(v.Index(i), out)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				stringsOf(v.Field(i), out)
			}
		}
	}
}

func namesIn(objects ...any) (names []string) {
	for _, o := range objects {
		stringsOf(reflect.ValueOf(o), &names)
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(s string) bool { return s == "" || s == "any" })
}

func ours(refs ...dependency.Ref) (all []string) {
	for _, r := range refs {
		all = append(all, fmt.Sprintf("%s %s/%s", r.Resource.GroupResource(), r.Namespace, r.Name))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// The Node authorizer's graph gets a pod that names an object wherever a pod can name any, and the
// authorizer is asked about every name of it in every resource: it grants exactly the list. So a
// Kubernetes with a new reference fails here.
func TestEveryday_10_WhatTravelsIsWhatTheNodeAuthorizerGrants(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		least  int // that the list must have
	}{
		"everything": {func(*corev1.Pod) {}, 27},
		"claims of templates": {func(p *corev1.Pod) {
			p.Spec.ResourceClaims[0].ResourceClaimName = nil
			p.Status.ResourceClaimStatuses[0].Name = p.Spec.ResourceClaims[0].Name
		}, 27},
		"a claim that is not made yet": {func(p *corev1.Pod) { p.Spec.ResourceClaims[0].ResourceClaimName = nil }, 26},
		"a claim that is not needed": {func(p *corev1.Pod) {
			p.Spec.ResourceClaims[0].ResourceClaimName = nil
			p.Status.ResourceClaimStatuses[0] = corev1.PodResourceClaimStatus{Name: p.Spec.ResourceClaims[0].Name}
		}, 26},
		"no extended resources": {func(p *corev1.Pod) { p.Status.ExtendedResourceClaimStatus = nil }, 26},
		"a mirror pod":          {func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }, 0},
		"another node":          {func(p *corev1.Pod) { p.Spec.NodeName = "" }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := filledPod()
			test.change(p)
			a := newAsked()
			if p.Spec.NodeName != "" { // else the authorizer's populator leaves it out
				a.graph.AddPod(p)
			}
			names := namesIn(p)
			for _, v := range p.Spec.Volumes {
				names = append(names, p.Name+"-"+v.Name)
			}
			granted := a.grants(t, []string{p.Namespace, ""}, names)
			have := ours(dependency.Of(p)...)
			if diff := cmp.Diff(granted, have); diff != "" {
				t.Errorf("(-granted +travels):\n%s", diff)
			}
			if len(have) < test.least {
				t.Errorf("only %d travel: %q", len(have), have)
			}
		})
	}
}

// A volume is reached through its claim, and the objects that it names in turn; the attachment is
// this node's alone.
func TestEveryday_10_WhatAVolumeNeedsIsWhatTheNodeAuthorizerGrants(t *testing.T) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "p"}, Spec: corev1.PodSpec{
		NodeName: "edge1", Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"},
		}}},
	}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "claim"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "volume"}}
	pv := filled[corev1.PersistentVolume](1000)
	pv.Name, pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name = "volume", "d", "claim"
	attachment := dependency.AttachmentName(pv.Spec.CSI.VolumeHandle+pv.Spec.CSI.Driver, "edge1")
	elsewhere := dependency.AttachmentName(pv.Spec.CSI.VolumeHandle+pv.Spec.CSI.Driver, "edge2")

	sources := 0
	for i := range reflect.TypeFor[corev1.PersistentVolumeSource]().NumField() {
		one := pv.DeepCopy() // the authorizer checks the first source alone
		source := reflect.ValueOf(&one.Spec.PersistentVolumeSource).Elem()
		for j := range source.NumField() {
			if j != i {
				source.Field(j).SetZero()
			}
		}
		a := newAsked()
		a.graph.AddPod(p)
		a.graph.AddPV(one)
		if one.Spec.CSI != nil {
			a.graph.AddVolumeAttachment(attachment, "edge1")
			a.graph.AddVolumeAttachment(elsewhere, "edge2")
		}
		names := append(namesIn(one, p, claim), attachment, elsewhere)
		granted := a.grants(t, append(namesIn(one), ""), names)
		// kube-apiserver passes no namespace for cluster-scoped resources, and the authorizer
		// doesn't look.
		granted = slices.DeleteFunc(granted, func(s string) bool {
			for _, cluster := range []string{"persistentvolumes ", "volumeattachments.storage.k8s.io "} {
				if len(s) > len(cluster) && s[:len(cluster)] == cluster && s[len(cluster)] != '/' {
					return true
				}
			}
			return false
		})
		refs := append(dependency.Of(p), dependency.Of(claim)...)
		for _, r := range dependency.Of(one) {
			refs = append(refs, r.On("edge1"))
		}
		if diff := cmp.Diff(granted, ours(refs...)); diff != "" {
			t.Errorf("a volume of %s (-granted +travels):\n%s", source.Type().Field(i).Name, diff)
		}
		if len(granted) > 2 {
			sources++
		}
	}
	if sources < 4 {
		t.Errorf("%d kinds of volumes name more than a claim has: the test asks nothing", sources)
	}
}
