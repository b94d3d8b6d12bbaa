package join_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/tests/cluster"
)

// reportsVersion is the real kube-apiserver, except that it returns the given version while one is
// set.
func reportsVersion(t *testing.T, version *atomic.Pointer[string]) func(*rest.Config) {
	t.Helper()
	plane := cluster.Shared(t)
	target, err := url.Parse(plane.Server)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(plane.CA())
	certificate, err := tls.LoadX509KeyPair(filepath.Join(plane.Dir, "pki", "apiserver.crt"), filepath.Join(plane.Dir, "pki", "apiserver.key"))
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots}, DisableCompression: true},
		FlushInterval: -1,
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ModifyResponse: func(r *http.Response) error {
			says := version.Load()
			if r.Request.URL.Path != "/version" || says == nil || *says == "" {
				return nil
			}
			body, err := io.ReadAll(r.Body)
			r.Body.Close()
			body = bytes.ReplaceAll(body, []byte(realVersion(body)), []byte(*says))
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			r.Header.Set("Content-Length", strconv.Itoa(len(body)))
			return err
		},
	})
	proxy.TLS = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate}}
	proxy.StartTLS()
	t.Cleanup(proxy.Close)
	return func(c *rest.Config) { c.Host = proxy.URL }
}

func realVersion(body []byte) string {
	_, rest, _ := strings.Cut(string(body), `"gitVersion": "`)
	version, _, _ := strings.Cut(rest, `"`)
	return version
}

// TestShip_20_KubeletNewerThanTheClusterIsRefused: a device whose kubelet is newer than
// kube-apiserver does not join, and is told the version to install. Where the cluster becomes older
// than a device that has joined, or a device is upgraded too early, the Node has a condition for
// it, its pods run on, and it goes when they fit again. The kube-apiserver is real except for its
// version.
func TestShip_20_KubeletNewerThanTheClusterIsRefused(t *testing.T) {
	plane := cluster.Shared(t)
	var says atomic.Pointer[string]
	old, same := "v1.36.4", ""
	says.Store(&old)
	s := newSystem(t, reportsVersion(t, &says))
	programs, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	const what = "install a package skerry-edgecore with Kubernetes 1.33 to 1.36"
	d := newDevice(t)
	d.configure(t, s.websocket)
	cluster.Eventually(t, "the join to be refused", func(context.Context) error {
		_, errs, code := s.edge(t, d.config, s.token(t), "edge-new", s.join)
		if code != 2 || !strings.Contains(errs, what) {
			return fmt.Errorf("exit code %d: %s", code, errs)
		}
		return nil
	})
	if _, err := os.Stat(filepath.Join(d.dir, "data", "identity", "node.pem")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an identity was left behind (%v)", err)
	}

	// The cluster is as new as the device when that joins, and older when it links again.
	says.Store(&same)
	fits := newSystem(t, reportsVersion(t, &says))
	d.configure(t, fits.websocket)
	if _, errs, code := fits.edge(t, d.config, fits.token(t), "edge-new", fits.join); code != 0 {
		t.Fatalf("edgecore join: %d: %s", code, errs)
	}
	stop := d.work(t, programs)
	d.gives(t, fits, "edge-new", "before")
	stop()
	condition := func(want corev1.ConditionStatus, message string) {
		t.Helper()
		cluster.Eventually(t, "the Node's condition to be "+string(want), func(ctx context.Context) error {
			n, err := plane.Client().CoreV1().Nodes().Get(ctx, "edge-new", metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, c := range n.Status.Conditions {
				if c.Type == "SkerryVersionSkew" && c.Status == want && strings.Contains(c.Message, message) {
					return nil
				}
			}
			return fmt.Errorf("conditions: %+v", n.Status.Conditions)
		})
	}
	says.Store(&old)
	stop = d.work(t, programs)
	condition(corev1.ConditionTrue, what)
	pods, err := d.kubelet.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=edge-new"})
	if err != nil || len(pods.Items) != 1 || pods.Items[0].Name != "pod-before" || pods.Items[0].DeletionTimestamp != nil {
		t.Errorf("its pods: %v, %v", pods, err)
	}
	stop()
	says.Store(&same)
	defer d.work(t, programs)()
	condition(corev1.ConditionFalse, "fits")
}
