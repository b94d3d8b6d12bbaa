package apps_test

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/tests/cluster/ca"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// TestClaims_07_DeletedNodeStartsNoSecondCopy: the Node of a device that is cut off is deleted, and
// with it, by Kubernetes, the pod of a singleton. No second copy starts before the device is back.
func TestClaims_07_DeletedNodeStartsNoSecondCopy(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.create(ns, appYAML("single", "edge1", "  singleton: true"))
	before := s.waitOn(ns, "single", "edge1")
	s.Cut("edge1")
	s.WaitReady("edge1", false)
	s.Check(s.Client.CoreV1().Nodes().Delete(t.Context(), "edge1", metav1.DeleteOptions{}))
	// As Kubernetes' garbage collector of pods, which a test would wait 40 s for.
	now := int64(0)
	s.Check(s.Client.CoreV1().Pods(ns).Delete(t.Context(), before.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
	s.waitApp(ns, "single", "to say that a removed copy may run", func(a *v1alpha1.EdgeApp) bool {
		c := is(a, v1alpha1.AppAwaitingFencing)
		return c != nil && c.Reason == "NodeDeleted"
	})
	s.lasts("one copy, on the island, though its Node is gone", 10*time.Second, func() error {
		for _, p := range s.pods(ns, "single") {
			if p.Spec.NodeName != "" {
				return fmt.Errorf("a second copy %s is on %s", p.Name, p.Spec.NodeName)
			}
		}
		if got := s.copies(before); !slices.Equal(got, []string{"edge1"}) {
			return fmt.Errorf("the container runs on %v", got)
		}
		return nil
	})
	s.Heal("edge1")
	s.WaitFor("edge1 to register again", func(ctx context.Context) error {
		_, err := s.Client.CoreV1().Nodes().Get(ctx, "edge1", metav1.GetOptions{})
		return err
	})
	s.WaitReady("edge1", true)
	app := s.waitApp(ns, "single", "to run", func(a *v1alpha1.EdgeApp) bool { return a.Status.Phase == v1alpha1.PhaseRunning })
	pods := s.pods(ns, "single")
	if got := s.copies(append(pods, before)...); !slices.Equal(got, []string{app.Status.ActiveNode}) {
		t.Errorf("copies run on %v, the active node is %s", got, app.Status.ActiveNode)
	}
}

// as asks the status server of edge1 from edge3, with a certificate of the cluster's CA.
func (s *system) as(ctx context.Context, certificate tls.Certificate) (int, error) {
	from, err := s.Trial.Host("edge3")
	if err != nil {
		return 0, err
	}
	client := &http.Client{Timeout: 15 * time.Second, Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, Certificates: []tls.Certificate{certificate}},
		DisableKeepAlives: true, DialContext: from.Dial,
	}}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+statusAddress(1)+"/app/", http.NoBody)
	if err != nil {
		return 0, err
	}
	answer, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	return answer.StatusCode, answer.Body.Close()
}

// TestClaims_11_StatusServerShowsStrangersNothing: with a certificate of the cluster's CA a device
// of the site reads pages of another one. One of no site does not, and neither does the first once
// it was revoked, also when there is a Node of its name in the site again.
func TestClaims_11_StatusServerShowsStrangersNothing(t *testing.T) {
	s := newSystem(t)
	s.serveStatus()
	h, err := s.Trial.Host(trial.Cloud)
	s.Check(err)
	authority := filepath.Join(h.Root(), "/var/lib/kubeplane/pki/ca")
	certificate := func(node string) tls.Certificate {
		t.Helper()
		cert, key, err := ca.Client(authority+".crt", authority+".key", pkix.Name{CommonName: pki.NodeUserPrefix + node, Organization: []string{pki.NodesGroup}})
		s.Check(err)
		pair, err := tls.X509KeyPair(cert, key)
		s.Check(err)
		return pair
	}
	register := func(node, pool string) {
		t.Helper()
		labels := map[string]string{v1alpha1.EdgeOwnLabel: ""}
		if pool != "" {
			labels[v1alpha1.NodePoolLabel] = pool
		}
		_, err := s.Client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: labels}}, metav1.CreateOptions{})
		s.Check(err)
		t.Cleanup(func() { _ = s.Client.CoreV1().Nodes().Delete(context.Background(), node, metav1.DeleteOptions{}) })
	}
	reads := func(who string, with tls.Certificate, want bool) {
		t.Helper()
		s.WaitFor(fmt.Sprintf("%s to read pages of edge1: %v", who, want), func(ctx context.Context) error {
			code, err := s.as(ctx, with)
			if read := err == nil && code == http.StatusOK; read != want {
				return errors.Join(err, fmt.Errorf("it got %d", code))
			}
			return nil
		})
	}
	guest, stranger := certificate("guest"), certificate("stranger")
	register("guest", trial.Pool)
	register("stranger", "")
	reads("a device of the site", guest, true)
	reads("a device of no site", stranger, false)
	out, err := exec.CommandContext(t.Context(), filepath.Join(s.Root, "bin", "cloudcore"), "node", "revoke", "guest", "--kubeconfig", s.Trial.Kubeconfig()).CombinedOutput()
	if err != nil {
		t.Fatalf("cloudcore node revoke: %v: %s", err, out)
	}
	reads("a device that was revoked", guest, false)
	register("guest", trial.Pool)
	register("later", trial.Pool)
	reads("a device of the site that came after that", certificate("later"), true)
	if code, err := s.as(t.Context(), guest); err == nil && code == http.StatusOK {
		t.Error("a device that was revoked, and whose name is in the site again, reads pages of edge1")
	}
}
