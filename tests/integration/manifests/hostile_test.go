package manifests_test

import (
	"context"
	"fmt"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/edges"
)

// attempt is one thing that is tried at kube-apiserver.
type attempt struct {
	what    string
	try     func(context.Context) error
	allowed bool
}

// judge shows that each attempt is either allowed or forbidden. The forbidden ones are tried once
// the allowed ones have been, so that rights and policies have reached kube-apiserver's own copies.
func judge(t *testing.T, attempts []attempt) {
	t.Helper()
	for _, a := range attempts {
		if a.allowed {
			t.Run(a.what, func(t *testing.T) { cluster.Eventually(t, a.what, a.try) })
		}
	}
	for _, a := range attempts {
		if !a.allowed {
			t.Run(a.what, func(t *testing.T) {
				if err := a.try(t.Context()); !apierrors.IsForbidden(err) {
					t.Errorf("want Forbidden, got %v", err)
				}
			})
		}
	}
}

// request is a certificate request without a decision.
func request(t *testing.T, client kubernetes.Interface, node, signer string) (*certificatesv1.CertificateSigningRequest, error) {
	t.Helper()
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	pem, err := pki.NewNodeCSR(key, types.NodeName(node))
	if err != nil {
		t.Fatal(err)
	}
	return client.CertificatesV1().CertificateSigningRequests().Create(t.Context(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "stolen-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pem, SignerName: signer, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
}

func approve(csr *certificatesv1.CertificateSigningRequest) *certificatesv1.CertificateSigningRequest {
	csr = csr.DeepCopy()
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Stolen",
	})
	return csr
}

// loadBalancer is a Service of a class that has an address already.
func loadBalancer(t *testing.T, ns, name string, class *string) *corev1.Service {
	t.Helper()
	plane := cluster.Shared(t)
	services := plane.Client().CoreV1().Services(ns)
	s, err := services.Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: class, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.9"}}
	if s, err = services.UpdateStatus(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestHostile_08_StolenTokenActsForEdgeNodesOnly: an attacker with cloudcore's token tries requests
// with it, at kube-apiserver itself, that would give more rights than the edge nodes have. The
// first lines show that the token works.
func TestHostile_08_StolenTokenActsForEdgeNodesOnly(t *testing.T) {
	plane := cluster.Shared(t)
	ns, cfg := scene(t) // edge1 and edge2 are edge nodes
	admin := plane.Client()
	for _, name := range []string{"control-plane-1", "worker-1"} {
		plane.AddOrdinaryNode(t, name)
		if _, err := admin.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{NodeName: name, Containers: []corev1.Container{{Name: "c", Image: "none:1", EnvFrom: []corev1.EnvFromSource{{
				SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "other"}},
			}}}}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	self := kubernetes.NewForConfigOrDie(cfg)
	edge := impersonating(cfg, "system:node:edge1")
	get, create, update := metav1.GetOptions{}, metav1.CreateOptions{}, metav1.UpdateOptions{}
	ours := "skerry.io/vip"
	mine, other, foreign := loadBalancer(t, ns, "ours", &ours), loadBalancer(t, ns, "none", nil), loadBalancer(t, ns, "foreign", new("example.com/lb"))
	status := func(ctx context.Context, s *corev1.Service, ingress ...corev1.LoadBalancerIngress) error {
		s = s.DeepCopy()
		s.ResourceVersion = "" // the newest
		s.Status.LoadBalancer.Ingress = ingress
		return ignore(self.CoreV1().Services(ns).UpdateStatus(ctx, s, update))
	}
	taken := corev1.LoadBalancerIngress{IP: "203.0.113.66"}
	// A policy is in force from some moment after it was applied.
	cluster.Eventually(t, "the policy about Services' statuses is in force", func(ctx context.Context) error {
		s := other.DeepCopy()
		s.ResourceVersion, s.Status.LoadBalancer.Ingress = "", []corev1.LoadBalancerIngress{taken}
		_, err := self.CoreV1().Services(ns).UpdateStatus(ctx, s, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		if !apierrors.IsForbidden(err) {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
	attempts := []attempt{
		{"itself: reads the CA of its side", func(ctx context.Context) error {
			err := ignore(self.CoreV1().Secrets("skerry-system").Get(ctx, "skerry-ca", get))
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		}, true},
		{"as an edge node: reads its pod's Secret", func(ctx context.Context) error { return ignore(edge.CoreV1().Secrets(ns).Get(ctx, "needed", get)) }, true},
		{"the status of a Service of its class", func(ctx context.Context) error { return status(ctx, mine, taken) }, true},
		{"the status of a Service of no class", func(ctx context.Context) error { return status(ctx, other, taken) }, false},
		{"the status of a Service of another class", func(ctx context.Context) error { return status(ctx, foreign, taken) }, false},
		{"takes the address of a Service of another class", func(ctx context.Context) error { return status(ctx, foreign) }, false},
		{"adds a node to those it may act as", func(ctx context.Context) error {
			return ignore(self.RbacV1().ClusterRoles().Patch(ctx, "skerry:cloudcore-edges", types.MergePatchType, []byte(`{"rules":[]}`), metav1.PatchOptions{}))
		}, false},
		{"binds itself to a role", func(ctx context.Context) error {
			return ignore(self.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "stolen-"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			}, create))
		}, false},
		{"a token of the approver", func(ctx context.Context) error {
			return ignore(self.CoreV1().ServiceAccounts("skerry-system").CreateToken(ctx, "cloudcore-approver", &authenticationv1.TokenRequest{}, create))
		}, false},
		{"a join token", func(ctx context.Context) error {
			return ignore(self.CoreV1().Secrets("kube-system").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: "bootstrap-token-"}}, create))
		}, false},
		{"more uses of a join token, or a certificate off the list of revoked ones", func(ctx context.Context) error {
			return ignore(self.CoreV1().ConfigMaps("skerry-system").Patch(ctx, "skerry-revoked", types.MergePatchType, []byte(`{"data":null}`), metav1.PatchOptions{}))
		}, false},
		{"the Lease of the approver", func(ctx context.Context) error {
			return ignore(self.CoordinationV1().Leases("skerry-system").Patch(ctx, "cloudcore-approver", types.MergePatchType,
				[]byte(`{"spec":{"holderIdentity":"thief"}}`), metav1.PatchOptions{}))
		}, false},
	}
	for _, name := range []string{"control-plane-1", "worker-1", "never-joined"} {
		attempts = append(attempts, asOrdinary(t, impersonating(cfg, "system:node:"+name), ns, name)...)
		attempts = append(attempts, attempt{"in the old way as " + name, func(ctx context.Context) error {
			return ignore(impersonating(cfg, "system:node:"+name, "system:nodes").CoreV1().Secrets(ns).Get(ctx, "other", get))
		}, false})
	}
	for what, asker := range map[string]kubernetes.Interface{
		"of a device that joins":   kubernetes.NewForConfigOrDie(plane.User(t, "system:bootstrap:abcdef", "system:bootstrappers", "system:bootstrappers:skerry")),
		"of kubeadm's kubelet":     kubernetes.NewForConfigOrDie(plane.User(t, "system:bootstrap:fedcba", "system:bootstrappers", "system:bootstrappers:skerry", "system:bootstrappers:kubeadm")),
		"of the edge that it acts": edge,
	} {
		node := "control-plane-1"
		if asker == edge {
			node = "edge1"
		}
		csr, err := request(t, asker, node, certificatesv1.KubeAPIServerClientKubeletSignerName)
		if err != nil {
			t.Fatal(err)
		}
		attempts = append(attempts, attempt{"approves the request " + what, func(ctx context.Context) error {
			return ignore(self.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, approve(csr), update))
		}, false}, attempt{"signs the request " + what, func(ctx context.Context) error {
			signed := approve(csr)
			signed.Status.Certificate = []byte("forged")
			return ignore(self.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, signed, update))
		}, false})
	}
	judge(t, attempts)
}

// asOrdinary are the rights that a node that is no edge must not lend to cloudcore.
func asOrdinary(t *testing.T, node kubernetes.Interface, ns, name string) []attempt {
	get, create := metav1.GetOptions{}, metav1.CreateOptions{}
	return []attempt{
		{"as " + name + ": reads its pod's Secret", func(ctx context.Context) error { return ignore(node.CoreV1().Secrets(ns).Get(ctx, "other", get)) }, false},
		{"as " + name + ": lists its pods", func(ctx context.Context) error {
			return ignore(node.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + name}))
		}, false},
		{"as " + name + ": deletes its pod", func(ctx context.Context) error {
			return node.CoreV1().Pods(ns).Delete(ctx, name, metav1.DeleteOptions{})
		}, false},
		{"as " + name + ": its status", func(ctx context.Context) error {
			return ignore(node.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType,
				[]byte(`{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.66"}]}}`), metav1.PatchOptions{}, "status"))
		}, false},
		{"as " + name + ": its Lease", func(ctx context.Context) error {
			return ignore(node.CoordinationV1().Leases("kube-node-lease").Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}, create))
		}, false},
		{"as " + name + ": a token of its pod's account", func(ctx context.Context) error {
			return ignore(node.CoreV1().ServiceAccounts(ns).CreateToken(ctx, "default", &authenticationv1.TokenRequest{}, create))
		}, false},
		{"as " + name + ": a client certificate", func(context.Context) error {
			return ignore(request(t, node, name, certificatesv1.KubeAPIServerClientKubeletSignerName))
		}, false},
		{"as " + name + ": a serving certificate", func(context.Context) error {
			return ignore(request(t, node, name, certificatesv1.KubeletServingSignerName))
		}, false},
	}
}

// TestHostile_12_NodeCannotLabelItselfIntoAPool: a node labels itself into a pool, or as
// autonomous, in every way that Kubernetes gives it to write its own Node; and tries to be an edge
// no more, or an ordinary node to be one.
func TestHostile_12_NodeCannotLabelItselfIntoAPool(t *testing.T) {
	plane := cluster.Shared(t)
	plane.Apply(t, "manifests/crds")
	plane.Apply(t, "manifests/cloudcore")
	plane.Apply(t, "manifests/autonomy")
	pools := dynamic.NewForConfigOrDie(plane.Admin()).Resource(schema.GroupVersionResource{Group: "skerry.io", Version: "v1alpha1", Resource: "nodepools"})
	cluster.Eventually(t, "a pool that chooses by a label", func(ctx context.Context) error {
		_, err := pools.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "skerry.io/v1alpha1", "kind": "NodePool", "metadata": map[string]any{"name": "by-label"},
			"spec": map[string]any{"nodeSelector": map[string]any{
				"matchLabels":      map[string]any{"example.com/line": "a"},
				"matchExpressions": []any{map[string]any{"key": "example.com/zone", "operator": "In", "values": []any{"north"}}},
			}},
		}}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	t.Cleanup(func() {
		if err := pools.Delete(context.Background(), "by-label", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	edge, ordinary := kubernetes.NewForConfigOrDie(plane.Node(t, "edge-labels")), plane.AddOrdinaryNode(t, "worker-labels")
	if _, err := edge.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "edge-labels", Labels: map[string]string{"skerry.io/edge": ""},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	set := func(client kubernetes.Interface, node, key string, value any, sub ...string) func(context.Context) error {
		patch, err := (&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"labels": map[string]any{key: value}},
		}}).MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		return func(ctx context.Context) error {
			return ignore(client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}, sub...))
		}
	}
	admin := plane.Client()
	attempts := []attempt{
		{"a node: a label of its own", set(edge, "edge-labels", "example.com/colour", "red"), true},
		{"an administrator: the pool", set(admin, "worker-labels", "skerry.io/node-pool", "hall"), true},
		{"an administrator: autonomy", set(admin, "worker-labels", "skerry.io/autonomy", "true"), true},
		{"leaves the pool that it was put in", set(ordinary, "worker-labels", "skerry.io/node-pool", nil), false},
		{"gives up its autonomy", set(ordinary, "worker-labels", "skerry.io/autonomy", "false"), false},
		{"an ordinary node makes itself an edge", set(ordinary, "worker-labels", "skerry.io/edge", ""), false},
		{"an edge is none any more", set(edge, "edge-labels", "skerry.io/edge", nil), false},
		{"an edge is none any more, by its status", set(edge, "edge-labels", "skerry.io/edge", nil, "status"), false},
	}
	for i, key := range []string{"skerry.io/node-pool", "apps.openyurt.io/nodepool", "skerry.io/autonomy", "example.com/line", "example.com/zone"} {
		late := fmt.Sprintf("edge-late-%d", i)
		newcomer := kubernetes.NewForConfigOrDie(plane.Node(t, late))
		attempts = append(attempts,
			attempt{key + ": a patch", set(edge, "edge-labels", key, "a"), false},
			attempt{key + ": a patch of its status", set(edge, "edge-labels", key, "a", "status"), false},
			attempt{key + ": an update", func(ctx context.Context) error {
				n, err := admin.CoreV1().Nodes().Get(ctx, "edge-labels", metav1.GetOptions{})
				if err != nil {
					return err
				}
				n.Labels[key] = "a"
				return ignore(edge.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{}))
			}, false},
			attempt{key + ": an apply", func(ctx context.Context) error {
				return ignore(edge.CoreV1().Nodes().Patch(ctx, "edge-labels", types.ApplyPatchType,
					fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Node","metadata":{"name":"edge-labels","labels":{%q:"a"}}}`, key),
					metav1.PatchOptions{FieldManager: "kubelet", Force: new(true)}))
			}, false},
			attempt{key + ": as it registers", func(ctx context.Context) error {
				return ignore(newcomer.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
					Name: late, Labels: map[string]string{"skerry.io/edge": "", key: "a"},
				}}, metav1.CreateOptions{}))
			}, false},
		)
	}
	// The policies are in force from some moment after they were applied.
	for _, key := range []string{"skerry.io/node-pool", "example.com/line"} {
		cluster.Eventually(t, "a node that registers with "+key+" is refused", func(ctx context.Context) error {
			newcomer := kubernetes.NewForConfigOrDie(plane.Node(t, "edge-dry"))
			_, err := newcomer.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
				Name: "edge-dry", Labels: map[string]string{key: "a"},
			}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if !apierrors.IsForbidden(err) {
				return fmt.Errorf("got %v", err)
			}
			return nil
		})
	}
	judge(t, attempts)
}

// TestClaims_08_PoolByHostNameIsNotJoined: a NodePool chooses a device by kubernetes.io/hostname,
// which NodeRestriction lets each node set. Another device does not call itself so, neither later
// nor when it registers; each may write its own name.
func TestClaims_08_PoolByHostNameIsNotJoined(t *testing.T) {
	plane := cluster.Shared(t)
	plane.Apply(t, "manifests/crds")
	plane.Apply(t, "manifests/cloudcore")
	pools := dynamic.NewForConfigOrDie(plane.Admin()).Resource(schema.GroupVersionResource{Group: "skerry.io", Version: "v1alpha1", Resource: "nodepools"})
	cluster.Eventually(t, "a pool that chooses by the host name", func(ctx context.Context) error {
		_, err := pools.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "skerry.io/v1alpha1", "kind": "NodePool", "metadata": map[string]any{"name": "by-host"},
			"spec": map[string]any{"nodeSelector": map[string]any{"matchLabels": map[string]any{corev1.LabelHostname: "edge-chosen", corev1.LabelArchStable: "amd64"}}},
		}}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	t.Cleanup(func() {
		if err := pools.Delete(context.Background(), "by-host", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	register := func(node, host string, options metav1.CreateOptions) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := kubernetes.NewForConfigOrDie(plane.Node(t, node)).CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
				Name: node, Labels: map[string]string{"skerry.io/edge": "", corev1.LabelHostname: host, corev1.LabelArchStable: "amd64"},
			}}, options)
			return err
		}
	}
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	// The policy is in force from some moment after it was applied.
	cluster.Eventually(t, "a device that registers as another one is refused", func(ctx context.Context) error {
		if err := register("edge-thief", "edge-chosen", dry)(ctx); !apierrors.IsForbidden(err) {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
	if err := register("edge-thief", "edge-thief", metav1.CreateOptions{})(t.Context()); err != nil {
		t.Fatal(err)
	}
	thief := kubernetes.NewForConfigOrDie(plane.Node(t, "edge-thief"))
	label := func(key, value string, sub ...string) func(context.Context) error {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, key, value)
		return func(ctx context.Context) error {
			return ignore(thief.CoreV1().Nodes().Patch(ctx, "edge-thief", types.MergePatchType, patch, metav1.PatchOptions{}, sub...))
		}
	}
	judge(t, []attempt{
		{"its own name, as it registers", register("edge-chosen", "edge-chosen", dry), true},
		{"its own name", label(corev1.LabelHostname, "edge-thief"), true},
		{"another device's name", label(corev1.LabelHostname, "edge-chosen"), false},
		{"another device's name, by its status", label(corev1.LabelHostname, "edge-chosen", "status"), false},
		{"another architecture", label(corev1.LabelArchStable, "arm64"), false},
	})
}

// TestClaims_03_DeviceRegistersAsAnEdge: a device whose Node has no label skerry.io/edge would be
// taken for a node of the cloud, whose addresses and ranges are trusted more.
func TestClaims_03_DeviceRegistersAsAnEdge(t *testing.T) {
	plane := cluster.Shared(t)
	plane.Apply(t, "manifests/crds")
	plane.Apply(t, "manifests/cloudcore")
	if err := edges.Rights(t.Context(), plane.Client(), "edge-hidden"); err != nil { // as joining does
		t.Fatal(err)
	}
	device := kubernetes.NewForConfigOrDie(plane.Node(t, "edge-hidden"))
	register := func(labels map[string]string) func(context.Context) error {
		return func(ctx context.Context) error {
			return ignore(device.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "edge-hidden", Labels: labels}},
				metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}))
		}
	}
	cluster.Eventually(t, "a device without the label is refused", func(ctx context.Context) error {
		if err := register(nil)(ctx); !apierrors.IsForbidden(err) {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
	worker := plane.AddOrdinaryNode(t, "worker-plain")
	judge(t, []attempt{
		{"a device with the label", register(map[string]string{"skerry.io/edge": ""}), true},
		{"a node of the cloud without it", func(ctx context.Context) error {
			if err := plane.Client().CoreV1().Nodes().Delete(ctx, "worker-plain", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
			return ignore(worker.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-plain"}}, metav1.CreateOptions{}))
		}, true},
		{"a device with others", register(map[string]string{"kubernetes.io/hostname": "edge-hidden"}), false},
	})
}
