package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// TestTraps_25_27_SameAnswersWithoutLinkOrAPIServer: whether the link is gone or kube-apiserver is,
// the device's API gives the same answers. Traps_25: a pod's GET by name of a Pod that the device
// holds, and root's `get pods` of a namespace and of all. Traps_27: a pod finds the issuer's keys
// by the discovery document, and its own token holds by them; it does so with everything whole,
// too.
func TestTraps_25_27_SameAnswersWithoutLinkOrAPIServer(t *testing.T) {
	s := newSystem(t)
	ns, pod := s.followerPod()
	round := func(name string) {
		t.Helper()
		s.Check(os.WriteFile(s.path("edge1", "/var/lib/follower-state/round.new"), []byte(name), 0o644))
		s.Check(os.Rename(s.path("edge1", "/var/lib/follower-state/round.new"), s.path("edge1", "/var/lib/follower-state/round")))
		s.waitLog("edge1", ns, pod, "pod "+name+" "+pod, "issuer "+name+" verified")
	}
	round("whole")
	// Names alone: ages change, and a column may.
	pods := func(linked bool) (one, all string) {
		t.Helper()
		d, err := s.deviceStatus(t.Context(), "edge1")
		s.Check(err)
		if d.Link.Linked != linked {
			t.Fatalf("linked: %t", d.Link.Linked)
		}
		return s.EdgeKubectl("edge1", "get", "pods", "-n", ns, "-o", "name"), s.EdgeKubectl("edge1", "get", "pods", "-A", "-o", "name")
	}
	// Only a read of an object that the device does not hold shows whether kube-apiserver can be
	// asked.
	device := s.device("edge1")
	away := func(ctx context.Context) error {
		err := device.CoreV1().RESTClient().Get().MaxRetries(0).AbsPath("/api/v1/namespaces/" + ns + "/pods/no-such-pod").Do(ctx).Error()
		if apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err) || apierrors.IsInternalError(err) {
			return nil
		}
		return fmt.Errorf("asking for a pod that is nowhere: %w", err)
	}

	s.Kill(trial.Cloud, "kubeplane")
	s.WaitFor("kube-apiserver to be away", away)
	one, all := pods(true)
	if one != "pod/"+pod+"\n" || !strings.Contains(all, one) || all == one {
		t.Errorf("linked, without kube-apiserver: %q, and in all namespaces %q", one, all)
	}
	round("linked")

	s.Cut("edge1")
	s.waitUnlinked("edge1")
	if offOne, offAll := pods(false); offOne != one || offAll != all {
		t.Errorf("without a link: %q, and in all namespaces %q; with one, without kube-apiserver: %q, %q", offOne, offAll, one, all)
	}
	round("offline")

	s.Start(trial.Cloud, "kubeplane")
	s.Heal("edge1")
	s.waitLinked("edge1")
}

// TestTraps_24_FullDiskAndARestartStillServes: edgecore starts on a disk without room, serves from
// its store, and reports the fault wherever a person looks: `status`, `status -o json`, /readyz,
// and a condition of the Node.
func TestTraps_24_FullDiskAndARestartStillServes(t *testing.T) {
	s := newSystem(t)
	s.smallDisk("edge1", 8)
	s.fill("edge1")
	s.Kill("edge1", "edgecore")
	s.fill("edge1") // the files that the killed one had open are free now
	s.Start("edge1", "edgecore")

	sample := s.WaitPods("sample", "app=sample", "edge1", 1)[0].Name
	s.WaitFor("the device's API to answer", func(ctx context.Context) error {
		out, err := s.TryEdgeKubectl(ctx, "edge1", "get", "pods", "-n", "sample", "-l", "app=sample", "-o", "name")
		if err == nil && out != "pod/"+sample+"\n" {
			err = fmt.Errorf("it is %q", out)
		}
		return err
	})
	s.fill("edge1")
	d, err := s.deviceStatus(t.Context(), "edge1")
	s.Check(err)
	if !d.Running || !strings.Contains(d.Disk.Problem, "the disk of "+dataDir+" is full") {
		t.Errorf("status -o json: running %t, disk %q", d.Running, d.Disk.Problem)
	}
	// Exit code 1, as it is not well.
	var out strings.Builder
	_, err = s.Trial.Exec(t.Context(), "edge1", trial.Streams{Out: &out, Err: &out}, nil, filepath.Join(s.Root, "bin", "edgecore"), "status")
	s.Check(err)
	if !strings.Contains(out.String(), "the disk of "+dataDir+" is full") {
		t.Errorf("status:\n%s", out.String())
	}
	if code, body := s.readyz("edge1"); code != http.StatusServiceUnavailable || !strings.Contains(body, "the disk of "+dataDir+" is full") {
		t.Errorf("/readyz: %d %s", code, body)
	}
	s.waitCondition("edge1", "SkerryDataDiskFull", corev1.ConditionTrue)
	s.makeRoom("edge1")
	s.waitCondition("edge1", "SkerryDataDiskFull", corev1.ConditionFalse)
	if d, err = s.deviceStatus(t.Context(), "edge1"); err != nil || d.Disk.Problem != "" {
		t.Errorf("with room: %q, %v", d.Disk.Problem, err)
	}
}

// readyz asks a device whether it is ready, as soon as it answers: that is after all
// modules have started.
func (s *system) readyz(node string) (code int, body string) {
	s.T.Helper()
	h, err := s.Trial.Host(node)
	s.Check(err)
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: h.Dial}}
	s.WaitFor("/readyz of "+node+" to answer", func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:10551/readyz", http.NoBody)
		if err != nil {
			return err
		}
		res, err := client.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		raw, err := io.ReadAll(res.Body)
		code, body = res.StatusCode, string(raw)
		return err
	})
	return code, body
}

// waitCondition waits until the cluster sees a condition of a node.
func (s *system) waitCondition(node string, kind corev1.NodeConditionType, want corev1.ConditionStatus) {
	s.T.Helper()
	s.WaitFor(fmt.Sprintf("%s of %s to be %s", kind, node, want), func(ctx context.Context) error {
		n, err := s.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == kind && c.Status == want {
				return nil
			}
		}
		return errors.New("it is not")
	})
}
