package e2e_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// A static pod of the device's own kubelet stays through a drain, with the container that it had.
func TestDrain_05_StaticPodKeepsItsContainer(t *testing.T) {
	s := newSystem(t)
	ns := s.drains()
	file := s.path("edge1", "/etc/skerry/manifests/static.yaml")
	s.Check(os.MkdirAll(s.path("edge1", "/etc/skerry/manifests"), 0o755))
	s.Check(os.WriteFile(file, []byte(fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: static, namespace: %s, labels: {app: static}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: sample, image: "skerry.local/sample:1", imagePullPolicy: IfNotPresent}]
`, ns)), 0o600))
	t.Cleanup(func() {
		s.Check(os.Remove(file))
		s.WaitForIn(context.Background(), "the static pod to go", func(ctx context.Context) error {
			list, err := s.Client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: "app=static"})
			if err == nil && len(list.Items) > 0 {
				err = errors.New("it is there")
			}
			return err
		})
	})
	before := s.WaitPods(ns, "app=static", "edge1", 1)[0]
	if before.Annotations[corev1.MirrorPodAnnotationKey] == "" {
		t.Fatalf("no mirror pod: %v", before.Annotations)
	}
	s.Apply(ns, samplePod("bare", "edge1"))
	s.WaitPods(ns, "app=bare", "edge1", 1)
	s.Apply(ns, nodeOperation("one", "edge1", "Drain", ""))
	s.waitOperation("one", "done", isDone("Drained"))
	if list, err := s.Client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{LabelSelector: "app=bare"}); err != nil || len(list.Items) > 0 {
		t.Errorf("the bare pod: %v, %v", list, err)
	}
	after := s.WaitPods(ns, "app=static", "edge1", 1)[0]
	if after.UID != before.UID || after.Status.ContainerStatuses[0].ContainerID != before.Status.ContainerStatuses[0].ContainerID {
		t.Errorf("the static pod was %s with %s, is %s with %s", before.UID, before.Status.ContainerStatuses[0].ContainerID, after.UID, after.Status.ContainerStatuses[0].ContainerID)
	}
}

// An invalid image causes no cordon. A valid one is on the device before the first cordon; a second
// requester joins the drain, and one boot ends both.
func TestDrain_06_ImageIsThereBeforeTheCordon(t *testing.T) {
	s := newSystem(t)
	ns := s.drains()
	const image = "/var/lib/skerry/os-2.img"
	content := []byte(strings.Repeat("the second image\n", 1000))
	s.Check(os.WriteFile(s.path("edge1", image), content, 0o600))
	s.Check(os.WriteFile(s.path("edge1", "/var/lib/skerry/image.current"), []byte("the first image"), 0o600))
	ref := func(of []byte) string { return fmt.Sprintf(`, image: "%s@%x"`, image, sha256.Sum256(of)) }
	versions := func() string {
		t.Helper()
		n, err := s.Client.CoreV1().Nodes().Get(t.Context(), "edge1", metav1.GetOptions{})
		s.Check(err)
		for _, m := range n.ManagedFields {
			if m.Manager == "edgecore-drain" {
				return m.Time.String() // when the drain last wrote the Node
			}
		}
		return ""
	}
	drained := versions()
	s.Apply(ns, nodeOperation("bad", "edge1", "ImageUpdate", ref([]byte("another"))))
	o := s.waitOperation("bad", "failed", isDone("PrefetchFailed"))
	if !strings.Contains(o.Status.Output, "FAILED") || o.Status.ExitCode == nil || *o.Status.ExitCode == 0 {
		t.Errorf("its status: %+v", o.Status)
	}
	if now := versions(); now != drained {
		t.Error("the node was cordoned for an image that is none")
	}

	s.web(ns, "edge1", 1)
	s.WaitPods(ns, "app=web", "edge1", 1)
	s.Apply(ns, nodeOperation("update", "edge1", "ImageUpdate", ref(content)))
	s.waitOperation("update", "held", isHeld)
	if next, err := os.ReadFile(s.path("edge1", "/var/lib/skerry/image.next")); err != nil || string(next) != string(content) {
		t.Errorf("while the node is being drained, the image on the device has %d bytes, %v", len(next), err)
	}
	s.edgecore("edge1", "operation", "reboot", "--name", "reboot")
	s.waitOperation("reboot", "joined", isHeld)
	s.loosen(ns)
	s.waitAsked("edge1")
	for _, name := range []string{"update", "reboot"} {
		if o := s.waitOperation(name, "running", isDone("Running")); o.Status.Attempts != 1 || o.Status.Phase != v1alpha1.DrainComplete {
			t.Errorf("%s: %d attempts, phase %s", name, o.Status.Attempts, o.Status.Phase)
		}
	}
	s.Reboot("edge1", false)
	for _, name := range []string{"update", "reboot"} {
		if st := s.waitOperation(name, "done", isDone("Booted")).Status; st.BootIDBefore == st.BootIDAfter {
			t.Errorf("%s: boots %s and %s", name, st.BootIDBefore, st.BootIDAfter)
		}
	}
	if now, err := os.ReadFile(s.path("edge1", "/var/lib/skerry/image.current")); err != nil || string(now) != string(content) {
		t.Errorf("after the boot the device has %.20q, %v", now, err)
	}
	s.waitCordon("edge1", false, "")
	_ = os.Remove(s.path("edge1", rebootMark)) // the second hook's
}

// A client that can reach the loopback address reads no metrics; one that can read root's files
// does.
func TestTraps_26_MetricsNeedAToken(t *testing.T) {
	s := newSystem(t)
	h, err := s.Trial.Host("edge1")
	s.Check(err)
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: h.Dial}}
	for path, want := range map[string]int{"/metrics": http.StatusUnauthorized, "/healthz": http.StatusOK} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:10551"+path, http.NoBody)
		s.Check(err)
		res, err := client.Do(req)
		s.Check(err)
		s.Check(res.Body.Close())
		if res.StatusCode != want {
			t.Errorf("%s without a token: %d, want %d", path, res.StatusCode, want)
		}
	}
	if s.metric("edge1", "skerry_drain_duration_seconds_count") == "" {
		t.Error("with the token there are no metrics")
	}
	i, err := os.Stat(s.path("edge1", "/var/lib/skerry/metrics.token"))
	if err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("the token's file: %v, %v", i, err)
	}
}
