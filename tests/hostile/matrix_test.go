package hostile_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/hostile"
)

const own, another = "edge-a", "edge-b" // the device's node, and one whose things it tries to get

// less is a reason why a device gets less through its link than a kubelet that talks to
// kube-apiserver directly.
type less struct {
	why   string
	holds func(call) bool
}

// narrower are all such reasons. A call without a matching line is allowed by both or refused by
// both.
func narrower() []less {
	return []less{
		{"watches are interests: the edge API serves them from the store", func(c call) bool { return c.verb == "watch" }},
		{"events go through the outbox, and are of the node and its pods", func(c call) bool { return c.resource == "events" }},
		{"cloudcore holds the Lease as long as the link lives, and no kubelet deletes it", func(c call) bool {
			return c.resource == "leases" && c.verb == "delete" && c.whose == own
		}},
		{"what a device holds by an interest it does not ask for again", func(c call) bool {
			return (c.resource == "servicecidrs" || c.resource == "ingresses") && (c.verb == "get" || c.verb == "list") || c.resource == "podcertificaterequests" && c.verb == "list"
		}},
	}
}

// call is one cell of the matrix.
type call struct {
	verb, group, version, resource, sub string
	whose                               string // own, another or "none"
	method, path, query, contentType    string
	body                                []byte
}

func (c call) String() string {
	resource := c.resource
	if c.sub != "" {
		resource += "/" + c.sub
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s.%s of %s: %s %s?%s", c.verb, resource, c.group, c.whose, c.method, c.path, c.query))
}

// requests: every verb x every kind that kube-apiserver serves x a thing of the device's own node,
// one of another's and one that is not there. Each call is made twice: by the link, and directly at
// kube-apiserver with the certificate of the node. Exactly the calls allowed there are allowed
// here. The writes are dry runs, which kube-apiserver authorises and admits like others.
func requests(t *testing.T, device *hostile.Device, ns string) {
	verdicts := judge(t, device, matrix(t, ns))
	kinds, allowed, refused := map[string]bool{}, 0, 0
	reasons, fewer := narrower(), map[string]int{}
	for _, v := range verdicts {
		kinds[v.group+"/"+v.resource] = true
		switch here, there := permitted(v.here), permitted(v.there); {
		case here && there && v.here != v.there:
			t.Errorf("%s: %d here, %d directly: %.300s", v.call, v.here, v.there, v.text)
		case here && !there:
			t.Errorf("%s: allowed here (%d), and refused to a kubelet (%d)", v.call, v.here, v.there)
		case there && !here:
			i := slices.IndexFunc(reasons, func(l less) bool { return l.holds(v.call) })
			if i < 0 {
				t.Errorf("%s: refused here (%d), and allowed to a kubelet (%d): %.300s", v.call, v.here, v.there, v.text)
				continue
			}
			fewer[reasons[i].why]++
		case here:
			allowed++
		default:
			refused++
		}
	}
	for _, r := range reasons {
		if fewer[r.why] == 0 {
			t.Errorf("nothing is refused for this reason any more: %s", r.why)
		}
	}
	if allowed < 50 || refused < 500 || len(kinds) < 50 {
		t.Errorf("%d calls of %d kinds are allowed and %d refused: that shows nothing", allowed, len(kinds), refused)
	}
	t.Logf("%d calls about %d kinds: %d allowed by both, %d refused by both, less than a kubelet's: %v", len(verdicts), len(kinds), allowed, refused, fewer)
}

// verdict is how a call was answered by the link, and directly.
type verdict struct {
	call
	here, there int
	text        string // of the answer by the link
}

func judge(t *testing.T, device *hostile.Device, calls []call) []verdict {
	t.Helper()
	direct, err := rest.HTTPClientFor(plane.Node(t, own))
	if err != nil {
		t.Fatal(err)
	}
	verdicts := make([]verdict, len(calls))
	var g errgroup.Group
	g.SetLimit(8) // a node may have 16 on the way
	for i, c := range calls {
		g.Go(func() error {
			there, err := ask(t.Context(), direct, c)
			if err != nil {
				return fmt.Errorf("%s: %w", c, err)
			}
			a, err := device.Ask(t.Context(), &topicpb.APIRequest{
				Method: c.method, Path: c.path, Query: c.query, Accept: "application/json", ContentType: c.contentType, Body: c.body,
			})
			if err != nil {
				return fmt.Errorf("%s: %w", c, err)
			}
			verdicts[i] = verdict{c, int(a.GetCode()), there, string(a.GetBody())}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	return verdicts
}

// permitted reports whether an answer is other than a refusal: by rights, by the method, or by the
// form that all such calls have.
func permitted(code int) bool {
	switch code {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusBadRequest:
		return false
	}
	return true
}

func ask(ctx context.Context, client *http.Client, c call) (int, error) {
	r, err := http.NewRequestWithContext(ctx, c.method, plane.Server+c.path+"?"+c.query, bytes.NewReader(c.body))
	if err != nil {
		return 0, err
	}
	r.Header.Set("Accept", "application/json")
	if c.contentType != "" {
		r.Header.Set("Content-Type", c.contentType)
	}
	a, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	defer a.Body.Close()
	_, err = io.Copy(io.Discard, a.Body)
	return a.StatusCode, err
}

// things makes the objects of the matrix: two nodes, and of each the objects that a node has or
// refers to.
func things(t *testing.T) (namespace string) {
	t.Helper()
	admin := plane.Client()
	ns := plane.Namespace(t)
	sweep := func() { // leftovers of other tests too
		for _, node := range []string{own, another} {
			for _, err := range []error{
				admin.StorageV1().CSINodes().Delete(context.Background(), node, metav1.DeleteOptions{}),
				admin.CoordinationV1().Leases("kube-node-lease").Delete(context.Background(), node, metav1.DeleteOptions{}),
			} {
				if err != nil && !apierrors.IsNotFound(err) {
					t.Error(err)
				}
			}
		}
	}
	sweep()
	t.Cleanup(sweep)
	create := metav1.CreateOptions{}
	for node, name := range map[string]string{own: "mine", another: "theirs"} {
		client := plane.AddNode(t, node)
		meta := metav1.ObjectMeta{Name: name, Namespace: ns}
		made(t)(admin.CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{ObjectMeta: meta}, create))
		made(t)(admin.CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: meta}, create))
		made(t)(admin.CoreV1().ServiceAccounts(ns).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: meta}, create))
		made(t)(admin.CoreV1().Services(ns).Create(t.Context(), &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, create))
		made(t)(admin.CoreV1().PersistentVolumeClaims(ns).Create(t.Context(), &corev1.PersistentVolumeClaim{
			ObjectMeta: meta, Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: new(""), VolumeName: ns + "-" + name,
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: quantity(t)}},
			},
		}, create))
		made(t)(admin.CoreV1().Pods(ns).Create(t.Context(), podOf(meta, node), create))
		made(t)(client.StorageV1().CSINodes().Create(t.Context(), &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node}}, create))
		made(t)(client.CoordinationV1().Leases("kube-node-lease").Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: node}}, create))
		made(t)(client.CoreV1().Events(ns).Create(t.Context(), &corev1.Event{
			ObjectMeta: meta, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: ns, Name: name}, Reason: "Test", Type: "Normal",
		}, create))
		made(t)(client.CertificatesV1().CertificateSigningRequests().Create(t.Context(), requestOf(t, node, ns+"-"+name), create))
		operation := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "skerry.io/v1alpha1", "kind": "NodeOperation", "metadata": map[string]any{"name": ns + "-" + name},
			"spec": map[string]any{"nodeName": node, "operation": "Drain"},
		}}
		operations := dynamic.NewForConfigOrDie(plane.Admin()).Resource(v1alpha1.Resource(v1alpha1.NodeOperations))
		cluster.Eventually(t, "a NodeOperation, which a policy changes once kube-apiserver knows its schema", func(ctx context.Context) error {
			_, err := operations.Create(ctx, operation, create)
			return err
		})
	}
	node := kubernetes.NewForConfigOrDie(plane.Node(t, own))
	cluster.Eventually(t, "kube-apiserver knows what the node's pod needs", func(ctx context.Context) error {
		_, err := node.CoreV1().Secrets(ns).Get(ctx, "mine", metav1.GetOptions{})
		return err
	})
	return ns
}

func made(t *testing.T) func(any, error) {
	return func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
}

func podOf(meta metav1.ObjectMeta, node string) *corev1.Pod {
	ref := corev1.LocalObjectReference{Name: meta.Name}
	return &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{
		NodeName: node, ServiceAccountName: meta.Name,
		Containers: []corev1.Container{{Name: "c", Image: "example.test/none:1", EnvFrom: []corev1.EnvFromSource{
			{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: ref}}, {ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref}},
		}}},
		Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: meta.Name}}}},
	}}
}

func requestOf(t *testing.T, node, name string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	request, err := pki.NewNodeCSR(key, types.NodeName(node))
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: request, SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}
}

// matrix is all calls, by kube-apiserver's discovery.
func matrix(t *testing.T, ns string) (calls []call) {
	t.Helper()
	_, lists, err := plane.Client().Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	admin := dynamic.NewForConfigOrDie(plane.Admin())
	for _, list := range lists {
		for _, r := range list.APIResources {
			calls = append(calls, callsFor(t, admin, ns, list.GroupVersion, r)...)
		}
	}
	return calls
}

// callsFor is the calls about one resource or subresource.
func callsFor(t *testing.T, admin dynamic.Interface, ns, groupVersion string, r metav1.APIResource) (calls []call) {
	t.Helper()
	group, version := "", groupVersion
	prefix := "/api/" + groupVersion
	if g, v, ok := strings.Cut(groupVersion, "/"); ok {
		group, version, prefix = g, v, "/apis/"+groupVersion
	}
	resource, sub, _ := strings.Cut(r.Name, "/")
	if r.Namespaced {
		in := ns
		if resource == "leases" {
			in = "kube-node-lease"
		}
		prefix += "/namespaces/" + in
	}
	collection := prefix + "/" + resource
	const dry = "dryRun=All"
	for _, whose := range []string{own, another, "none"} {
		name := nameOf(resource, ns, whose, r.Namespaced)
		at := collection + "/" + name
		if sub != "" {
			at += "/" + sub
		}
		add := func(verb, method, path, query, contentType string, body any) {
			raw, ok := body.([]byte)
			if !ok && body != nil {
				var err error
				if raw, err = json.Marshal(body); err != nil {
					t.Fatal(err)
				}
			}
			calls = append(calls, call{verb, group, version, resource, sub, whose, method, path, query, contentType, raw})
		}
		object := bodyFor(t, admin, groupVersion, r, resource, ns, whose, name)
		for _, verb := range r.Verbs {
			switch verb {
			case "get":
				add(verb, http.MethodGet, at, "", "", nil)
			case "list":
				add(verb, http.MethodGet, collection, "", "", nil)
				for _, field := range []string{"metadata.name=" + name, "spec.nodeName=" + nameOf("nodes", ns, whose, false)} {
					add(verb, http.MethodGet, collection, "fieldSelector="+url.QueryEscape(field), "", nil)
				}
			case "watch":
				add(verb, http.MethodGet, collection, "watch=true&timeoutSeconds=1&fieldSelector="+url.QueryEscape("metadata.name="+name), "", nil)
			case "create":
				path := collection
				if sub != "" {
					path = at
				}
				add(verb, http.MethodPost, path, dry, "application/json", object)
			case "update":
				add(verb, http.MethodPut, at, dry, "application/json", object)
			case "patch":
				add(verb, http.MethodPatch, at, dry, string(types.MergePatchType), []byte(`{"metadata":{"annotations":{"example.com/x":"y"}}}`))
			case "delete":
				add(verb, http.MethodDelete, at, dry, "", nil)
			case "deletecollection":
				add(verb, http.MethodDelete, collection, dry+"&fieldSelector="+url.QueryEscape("metadata.name="+name), "", nil)
			default:
				t.Errorf("the matrix knows no verb %s of %s", verb, r.Name)
			}
		}
	}
	return calls
}

// nameOf is the name of a node's thing.
func nameOf(resource, ns, whose string, namespaced bool) string {
	switch {
	case whose == "none":
		return "none"
	case resource == "nodes" || resource == "leases" || resource == "csinodes":
		return whose
	case namespaced && whose == own:
		return "mine"
	case namespaced:
		return "theirs"
	case whose == own:
		return ns + "-mine"
	}
	return ns + "-theirs"
}

// bodyFor is the body of a create or update of a thing: the thing itself where it is there, or the
// minimum.
func bodyFor(t *testing.T, admin dynamic.Interface, groupVersion string, r metav1.APIResource, resource, ns, whose, name string) any {
	t.Helper()
	gv := groupVersion
	if r.Version != "" {
		gv = r.Version
	}
	if r.Group != "" {
		gv = r.Group + "/" + r.Version
	}
	metadata := map[string]any{"name": name}
	if r.Namespaced {
		metadata["namespace"] = ns
	}
	least := map[string]any{"apiVersion": gv, "kind": r.Kind, "metadata": metadata}
	switch r.Name {
	case "serviceaccounts/token":
		least["spec"] = map[string]any{"boundObjectRef": map[string]any{"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uidOf(t, admin, ns, name)}}
		return least
	case "certificatesigningrequests":
		csr := requestOf(t, nameOf("nodes", ns, whose, false), name+"-new")
		csr.APIVersion, csr.Kind = "certificates.k8s.io/v1", "CertificateSigningRequest"
		return csr
	case "nodeoperations":
		metadata["name"] = name + "-new"
		least["spec"] = map[string]any{"nodeName": nameOf("nodes", ns, whose, false), "operation": "Drain"}
		return least
	}
	if strings.Contains(r.Name, "/") && r.Kind != kindOf(resource) || whose == "none" || !slices.Contains(r.Verbs, "get") {
		return least
	}
	group, version, ok := strings.Cut(groupVersion, "/")
	if !ok {
		group, version = "", groupVersion
	}
	var client dynamic.ResourceInterface = admin.Resource(gvr(group, version, resource))
	if r.Namespaced {
		in := ns
		if resource == "leases" {
			in = "kube-node-lease"
		}
		client = admin.Resource(gvr(group, version, resource)).Namespace(in)
	}
	have, err := client.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return least
	}
	object := maps.Clone(have.Object)
	return object
}

// kindOf is the kind of those resources whose subresources are written as the whole object.
func kindOf(resource string) string {
	return map[string]string{
		"pods": "Pod", "nodes": "Node", "persistentvolumeclaims": "PersistentVolumeClaim", "services": "Service", "nodeoperations": "NodeOperation",
	}[resource]
}

func gvr(group, version, resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: version, Resource: resource}
}

// uidOf is the uid of a pod, or an unused one without such a pod.
func uidOf(t *testing.T, admin dynamic.Interface, ns, pod string) string {
	t.Helper()
	p, err := admin.Resource(gvr("", "v1", "pods")).Namespace(ns).Get(t.Context(), pod, metav1.GetOptions{})
	if err != nil {
		return "none"
	}
	return string(p.GetUID())
}

func quantity(t *testing.T) resource.Quantity {
	t.Helper()
	q, err := resource.ParseQuantity("1Mi")
	if err != nil {
		t.Fatal(err)
	}
	return q
}
