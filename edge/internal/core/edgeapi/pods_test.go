package edgeapi_test

import (
	"context"
	"crypto/x509"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/edge/internal/core/edgeapi"
)

// The kubelet gets the device's authority together with the cluster's, in every kind of read; no
// other client does, and no other object is changed.
func TestPods_KubeletHandsOutTheAuthority(t *testing.T) {
	const cluster = "-----BEGIN CERTIFICATE-----\ncluster\n-----END CERTIFICATE-----\n"
	root := &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kube-root-ca.crt", UID: types.UID("root")},
		Data:       map[string]string{"ca.crt": cluster},
	}
	for name, test := range map[string]struct {
		pods     string
		identity edgeapi.Identity
		want     bool
	}{
		"the kubelet":               {"127.0.0.1:0", edgeapi.Identity{Kubelet: true}, true},
		"the kubelet, switched off": {"", edgeapi.Identity{Kubelet: true}, false},
		"edgecore's other modules":  {"127.0.0.1:0", edgeapi.Identity{}, false},
		"root of the device":        {"127.0.0.1:0", edgeapi.Identity{Device: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFakeBackend(t)
			b.sync(configMaps)
			b.set(configMaps, root)
			b.set(configMaps, configMap("kube-root-ca"))
			s := edgeapi.New(edgeapi.Config{NodeName: node, Backend: b, DataDir: t.TempDir(), Pods: test.pods})
			for way, config := range reach(t, s, test.identity) {
				c := client(t, config).CoreV1().ConfigMaps("default")
				check := func(how string, m *corev1.ConfigMap) {
					t.Helper()
					if m.Name == root.Name {
						if text, more := strings.CutPrefix(m.Data["ca.crt"], cluster); !more || strings.Contains(text, "BEGIN CERTIFICATE") != test.want {
							t.Errorf("%s, %s: %q", way, how, m.Data["ca.crt"])
						}
					} else if strings.Contains(m.Data["key"], "CERTIFICATE") {
						t.Errorf("%s, %s: another one: %q", way, how, m.Data["key"])
					}
				}
				got, err := c.Get(t.Context(), root.Name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				check("get", got)
				list, err := c.List(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
				if err != nil || len(list.Items) != 2 {
					t.Fatalf("%v, %v", list, err)
				}
				for i := range list.Items {
					check("list", &list.Items[i])
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				w, err := c.Watch(ctx, metav1.ListOptions{ResourceVersion: "0"})
				if err != nil {
					t.Fatal(err)
				}
				for range 2 {
					m, ok := (<-w.ResultChan()).Object.(*corev1.ConfigMap)
					if !ok {
						t.Fatal("the watch has ended")
					}
					check("watch", m)
				}
				w.Stop()
				cancel()
			}
		})
	}
}

// Pods are served at their address of the API server, with a certificate that the kubelet's bundle
// verifies, and only by their tokens.
func TestPods_Listener(t *testing.T) {
	b := newFakeBackend(t)
	b.sync(configMaps)
	b.set(configMaps, &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kube-root-ca.crt", UID: "root"},
		Data: map[string]string{"ca.crt": "# the cluster's\n"},
	})
	dir := t.TempDir()
	const at = "127.0.0.1:23987"
	s := edgeapi.New(edgeapi.Config{NodeName: node, Backend: b, DataDir: dir, Pods: at})
	servePods(t, s)
	kubelet := client(t, s.ClientConfig(edgeapi.Identity{Kubelet: true}))
	root, err := kubelet.CoreV1().ConfigMaps("default").Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bundle := []byte(root.Data["ca.crt"])
	if !x509.NewCertPool().AppendCertsFromPEM(bundle) {
		t.Fatalf("no certificate in %q", bundle)
	}
	if err := s.ServePods([]netip.Addr{netip.MustParseAddr("10.96.0.1")}); err != nil {
		t.Fatal(err)
	}
	heard := func(err error) bool { // TLS succeeded, and the token was checked
		return apierrors.IsUnauthorized(err) && strings.Contains(err.Error(), "not a ServiceAccount token")
	}
	for name, test := range map[string]struct {
		server, token string
		want          func(error) bool
	}{
		"by address":        {"10.96.0.1", "a.b.c", heard},
		"by name":           {"kubernetes.default.svc", "a.b.c", heard},
		"without a token":   {"10.96.0.1", "", apierrors.IsUnauthorized},
		"an address unlike": {"10.96.0.2", "a.b.c", func(err error) bool { return err != nil && strings.Contains(err.Error(), "certificate") }},
	} {
		t.Run(name, func(t *testing.T) {
			config := &rest.Config{Host: "https://" + at, BearerToken: test.token, TLSClientConfig: rest.TLSClientConfig{CAData: bundle, ServerName: test.server}}
			_, err := client(t, config).CoreV1().ConfigMaps("default").Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
			if !test.want(err) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// servePods runs the listeners for the length of the test.
func servePods(t *testing.T, s *edgeapi.Server) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- s.Serve(ctx, func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		done <- nil
		t.Fatal(err)
	}
}
