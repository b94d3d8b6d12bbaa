// Package manifests_test shows in a real kube-apiserver that cloudcore's rights are enough for its
// work and for no more.
package manifests_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/manifest"
)

// impersonating is cloudcore acting as another user: by constrained impersonation, which takes the
// user alone, or, with groups, by the classic one.
func impersonating(cfg *rest.Config, user string, groups ...string) kubernetes.Interface {
	c := rest.CopyConfig(cfg)
	c.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
	return kubernetes.NewForConfigOrDie(c)
}

// scene is a namespace with a pod bound to edge1 that needs a Secret, and a Secret that no pod
// needs.
func scene(t *testing.T) (namespace string, cloudcore *rest.Config) {
	t.Helper()
	plane := cluster.Shared(t)
	plane.Apply(t, "manifests/cloudcore")
	ns := plane.Namespace(t)
	plane.AddNode(t, "edge1")
	plane.AddNode(t, "edge2")
	client := plane.Client().CoreV1()
	for _, name := range []string{"needed", "other"} {
		if _, err := client.Secrets(ns).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod"},
		Spec: corev1.PodSpec{
			NodeName:   "edge1",
			Containers: []corev1.Container{{Name: "c", Image: "none:1", EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "needed"}}}}}},
		},
	}
	if _, err := client.Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return ns, plane.ServiceAccount(t, "skerry-system", "cloudcore")
}

// TestRights: each line is something cloudcore, or cloudcore as a node, tries.
func TestRights(t *testing.T) {
	ns, cfg := scene(t)
	self := kubernetes.NewForConfigOrDie(cfg)
	edge1, edge2 := impersonating(cfg, "system:node:edge1"), impersonating(cfg, "system:node:edge2")
	get, list, create, del := metav1.GetOptions{}, metav1.ListOptions{}, metav1.CreateOptions{}, metav1.DeleteOptions{}
	second := func(_ any, err error) error { return err }
	event := func() *corev1.Event {
		return &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{GenerateName: "e-", Namespace: ns},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: ns, Name: "pod"}, Reason: "Test", Message: "m", Type: "Normal",
		}
	}
	for _, c := range []struct {
		what    string
		try     func(context.Context) error
		allowed bool
	}{
		{"itself: lists all pods", func(ctx context.Context) error { return second(self.CoreV1().Pods("").List(ctx, list)) }, true},
		{"itself: lists nodes", func(ctx context.Context) error { return second(self.CoreV1().Nodes().List(ctx, list)) }, true},
		{"itself: asks what a node may", func(ctx context.Context) error {
			return second(self.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: "system:node:edge1", Groups: []string{"system:nodes"}, ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods"},
			}}, create))
		}, true},
		{"itself: lists Secrets", func(ctx context.Context) error { return second(self.CoreV1().Secrets(ns).List(ctx, list)) }, false},
		{"itself: reads a Secret", func(ctx context.Context) error { return second(self.CoreV1().Secrets(ns).Get(ctx, "needed", get)) }, false},
		{"itself: reads a ConfigMap", func(ctx context.Context) error {
			return second(self.CoreV1().ConfigMaps(ns).Get(ctx, "kube-root-ca.crt", get))
		}, false},
		{"itself: says how many sessions it has", func(ctx context.Context) error {
			leases := self.CoordinationV1().Leases("skerry-system")
			if _, err := leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "cloudcore-replicas"}}, create); err != nil && !apierrors.IsAlreadyExists(err) {
				return err
			}
			return second(leases.Patch(ctx, "cloudcore-replicas", types.MergePatchType, []byte(`{"metadata":{"annotations":{"replicas.skerry.io/a":"{}"}}}`), metav1.PatchOptions{}))
		}, true},
		{"itself: deletes a pod", func(ctx context.Context) error { return self.CoreV1().Pods(ns).Delete(ctx, "pod", del) }, false},
		{"itself: changes a node", func(ctx context.Context) error {
			return second(self.CoreV1().Nodes().Patch(ctx, "edge1", types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}}}`), metav1.PatchOptions{}))
		}, false},
		{"itself: makes a join token", func(ctx context.Context) error {
			return second(self.CoreV1().Secrets("kube-system").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: "bootstrap-token-"}}, create))
		}, false},
		{"itself: lists CSRs, to answer the kubelets that wait for theirs", func(ctx context.Context) error {
			return second(self.CertificatesV1().CertificateSigningRequests().List(ctx, list))
		}, true},
		{"itself: deletes a CSR", func(ctx context.Context) error {
			return self.CertificatesV1().CertificateSigningRequests().Delete(ctx, "none", del)
		}, false},

		{"as the node: reads its pod", func(ctx context.Context) error { return second(edge1.CoreV1().Pods(ns).Get(ctx, "pod", get)) }, true},
		{"as the node: reads its pod's Secret", func(ctx context.Context) error { return second(edge1.CoreV1().Secrets(ns).Get(ctx, "needed", get)) }, true},
		{"as the node: watches its pod's Secret", func(ctx context.Context) error {
			w, err := edge1.CoreV1().Secrets(ns).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=needed"})
			if err == nil {
				w.Stop()
			}
			return err
		}, true},
		{"as the node: reads another Secret", func(ctx context.Context) error { return second(edge1.CoreV1().Secrets(ns).Get(ctx, "other", get)) }, false},
		{"as the node: writes an event", func(ctx context.Context) error { return second(edge1.CoreV1().Events(ns).Create(ctx, event(), create)) }, true},
		{"as the node: its pod's status", func(ctx context.Context) error {
			return second(edge1.CoreV1().Pods(ns).Patch(ctx, "pod", types.StrategicMergePatchType, []byte(`{"status":{"phase":"Pending"}}`), metav1.PatchOptions{}, "status"))
		}, true},
		{"as the node: its Lease", func(ctx context.Context) error {
			return second(edge1.CoordinationV1().Leases("kube-node-lease").Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "edge1"}}, create))
		}, true},
		{"as the node: reads the token keys", func(ctx context.Context) error {
			return second(edge1.Discovery().RESTClient().Get().AbsPath("/openid/v1/jwks").DoRaw(ctx))
		}, true},
		{"as the node: deletes itself", func(ctx context.Context) error { return edge1.CoreV1().Nodes().Delete(ctx, "edge1", del) }, false},
		{"as the node: writes a Secret", func(ctx context.Context) error {
			return second(edge1.CoreV1().Secrets(ns).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, create))
		}, false},

		{"as another node: reads the pod's Secret", func(ctx context.Context) error { return second(edge2.CoreV1().Secrets(ns).Get(ctx, "needed", get)) }, false},
		{"as another node: its pod's status", func(ctx context.Context) error {
			return second(edge2.CoreV1().Pods(ns).Patch(ctx, "pod", types.StrategicMergePatchType, []byte(`{"status":{"phase":"Failed"}}`), metav1.PatchOptions{}, "status"))
		}, false},
		{"as another node: its Lease", func(ctx context.Context) error {
			return second(edge2.CoordinationV1().Leases("kube-node-lease").Patch(ctx, "edge1", types.MergePatchType, []byte(`{"spec":{"holderIdentity":"edge2"}}`), metav1.PatchOptions{}))
		}, false},

		{"as an administrator", func(ctx context.Context) error {
			return second(impersonating(cfg, "kubernetes-admin").CoreV1().Pods(ns).Get(ctx, "pod", get))
		}, false},
		{"as the masters' group", func(ctx context.Context) error {
			return second(impersonating(cfg, "system:node:edge1", "system:masters").CoreV1().Pods(ns).Get(ctx, "pod", get))
		}, false},
		{"as a ServiceAccount", func(ctx context.Context) error {
			return second(impersonating(cfg, "system:serviceaccount:kube-system:generic-garbage-collector").CoreV1().Pods(ns).Get(ctx, "pod", get))
		}, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			if !c.allowed {
				// Admission policies reach kube-apiserver by watches, too.
				cluster.Eventually(t, c.what+" to be forbidden", func(ctx context.Context) error {
					if err := c.try(ctx); !apierrors.IsForbidden(err) {
						return fmt.Errorf("want Forbidden, got %w", errors.Join(err, errors.New("no refusal")))
					}
					return nil
				})
				return
			}
			// The rights, and which pod needs which Secret, reach the authorizers by watches.
			cluster.Eventually(t, c.what, c.try)
		})
	}
}

// TestBootstrapper: the holder of a join token may ask for a certificate, and has no other rights.
func TestBootstrapper(t *testing.T) {
	plane := cluster.Shared(t)
	ns, _ := scene(t)
	device := kubernetes.NewForConfigOrDie(plane.User(t, "system:bootstrap:abcdef", "system:bootstrappers", "system:bootstrappers:skerry"))
	csrs := device.CertificatesV1().CertificateSigningRequests()
	cluster.Eventually(t, "a CSR to be accepted for reading", func(ctx context.Context) error {
		// A dry run with a request that is no PEM: a client that may create gets a validation
		// error.
		_, err := csrs.Create(ctx, &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: "device"},
			Spec:       certificatesv1.CertificateSigningRequestSpec{Request: []byte("none"), SignerName: "kubernetes.io/kube-apiserver-client-kubelet", Usages: []certificatesv1.KeyUsage{"client auth"}},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if apierrors.IsInvalid(err) {
			return nil
		}
		return fmt.Errorf("want Invalid: %w", errors.Join(err, errors.New("not refused")))
	})
	for what, err := range map[string]error{
		"lists CSRs":  ignore(csrs.List(t.Context(), metav1.ListOptions{})),
		"reads pods":  ignore(device.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})),
		"reads nodes": ignore(device.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: want Forbidden, got %v", what, err)
		}
	}
}

func ignore[T any](_ T, err error) error { return err }

// TestDeployment: everything for cloudcore in the cluster is accepted by it, and its pods fit the
// namespace's pod security level.
func TestDeployment(t *testing.T) {
	plane := cluster.Shared(t)
	plane.Apply(t, "manifests/deployment")
	t.Cleanup(func() {
		if err := plane.Client().AppsV1().Deployments("skerry-system").Delete(context.Background(), "cloudcore", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	cluster.Eventually(t, "cloudcore's pods", func(ctx context.Context) error {
		pods, err := plane.Client().CoreV1().Pods("skerry-system").List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=cloudcore"})
		if err == nil && len(pods.Items) != 2 {
			err = fmt.Errorf("%d pods", len(pods.Items))
		}
		return err
	})
}

// TestExamples: every example builds and is accepted.
func TestExamples(t *testing.T) {
	plane := cluster.Shared(t)
	plane.Apply(t, "manifests/examples/sample")
}

func build(dir string) ([]*unstructured.Unstructured, error) {
	root, err := binary.Root()
	if err != nil {
		return nil, err
	}
	return manifest.Build(filepath.Join(root, dir))
}
