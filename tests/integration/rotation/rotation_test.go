// Package rotation_test shows that a node outlives its certificates: a whole trial whose cloud
// signs them for a minute. The device's side and the approver have tests of their own; here they
// meet, through a real link.
package rotation_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/poll"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

const (
	life = time.Minute
	node = "edge1"
	// A rotation comes within one life; a busy machine may take some.
	patience = 4 * life
)

// A system is the trial, with the client of an administrator.
type system struct {
	*trial.Trial
	client   kubernetes.Interface
	edgecore string
}

func up(t *testing.T) *system {
	t.Helper()
	if testing.Short() {
		t.Skip("-short leaves out what needs a trial")
	}
	if os.Getuid() != 0 {
		t.Skip("needs root: namespaces, containers")
	}
	root, err := binary.Root()
	check(t, err)
	_, err = binary.Build(t.Context(), root, "kubeplane", "cloudcore", "edgecore", "trial")
	check(t, err)
	all, err := trial.Open(root, filepath.Join(root, ".trial-rotation"), os.Stderr)
	check(t, err)
	check(t, all.Down(t.Context())) // leftovers of a killed run
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := all.Down(ctx); err != nil {
			t.Error(err)
		}
	})
	options := trial.DefaultOptions()
	options.Edges, options.CertificateLife = 1, life
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	check(t, all.Up(ctx, options))
	cfg, err := all.Admin()
	check(t, err)
	client, err := kubernetes.NewForConfig(cfg)
	check(t, err)
	return &system{Trial: all, client: client, edgecore: filepath.Join(root, "bin", "edgecore")}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// status has the fields of `edgecore status -o json` that are read here.
type status struct {
	Identity struct {
		Fingerprint, LastError string
		NotAfter               time.Time
	}
	Link struct{ Linked bool }
}

func (s *system) status(ctx context.Context) (status, error) {
	var out, errs bytes.Buffer
	if code, err := s.Exec(ctx, node, trial.Streams{Out: &out, Err: &errs}, nil, s.edgecore, "status", "-o", "json"); err != nil || code != 0 {
		return status{}, fmt.Errorf("edgecore status: %d, %w: %s", code, err, errs.String())
	}
	var v status
	if err := json.Unmarshal(out.Bytes(), &v); err != nil {
		return status{}, fmt.Errorf("edgecore status: %w", err)
	}
	return v, nil
}

// until waits for a status, and returns it.
func (s *system) until(t *testing.T, what string, is func(status) bool) status {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var v status
	err := poll.Until(ctx, time.Second, func(ctx context.Context) (err error) {
		if v, err = s.status(ctx); err == nil && !is(v) {
			err = fmt.Errorf("still %+v", v)
		}
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	return v
}

// pod is the one of the sample application: a rotation that touched it would show.
func (s *system) pod(t *testing.T) (uid string, restarts int32) {
	t.Helper()
	pods, err := s.client.CoreV1().Pods("sample").List(t.Context(), metav1.ListOptions{LabelSelector: "app=sample", FieldSelector: "spec.nodeName=" + node})
	check(t, err)
	if len(pods.Items) != 1 || len(pods.Items[0].Status.ContainerStatuses) == 0 {
		t.Fatalf("the sample has %d pods", len(pods.Items))
	}
	return string(pods.Items[0].UID), pods.Items[0].Status.ContainerStatuses[0].RestartCount
}

func TestRotation(t *testing.T) {
	s := up(t)
	uid, restarts := s.pod(t)
	first := s.until(t, "a certificate", func(v status) bool { return v.Identity.Fingerprint != "" })
	second := s.until(t, "a second certificate", func(v status) bool { return v.Identity.Fingerprint != first.Identity.Fingerprint })
	third := s.until(t, "a third certificate", func(v status) bool { return v.Identity.Fingerprint != second.Identity.Fingerprint })
	if !third.Identity.NotAfter.After(second.Identity.NotAfter) || !second.Identity.NotAfter.After(first.Identity.NotAfter) {
		t.Errorf("the certificates end at %v, %v, %v", first.Identity.NotAfter, second.Identity.NotAfter, third.Identity.NotAfter)
	}

	// The first certificate has ended by now. The next link can't use it, nor anything in the
	// memory of an edgecore process.
	check(t, s.Kill(t.Context(), trial.Cloud, "cloudcore"))
	check(t, s.Start(t.Context(), trial.Cloud, "cloudcore"))
	s.until(t, "a link with a renewed certificate", func(v status) bool { return v.Link.Linked })
	check(t, s.Kill(t.Context(), node, "edgecore"))
	check(t, s.Start(t.Context(), node, "edgecore"))
	s.until(t, "a link of the next process", func(v status) bool { return v.Link.Linked })
	cluster.Eventually(t, "the node is Ready", func(ctx context.Context) error {
		n, err := s.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("conditions %+v", n.Status.Conditions)
	})
	if u, r := s.pod(t); u != uid || r != restarts {
		t.Errorf("the sample is %s with %d restarts; it was %s with %d", u, r, uid, restarts)
	}
}

// TestClaims_37_EndedCertificateIsRenewed: a device is cut off until its certificate has ended.
// When it comes back it gets another one and a link, without anybody's help, and its pods are as
// they were.
func TestClaims_37_EndedCertificateIsRenewed(t *testing.T) {
	s := up(t)
	uid, restarts := s.pod(t)
	first := s.until(t, "a link", func(v status) bool { return v.Link.Linked })
	check(t, s.Cut(t.Context(), node, lab.Carrier))
	s.until(t, "the end of the certificate, without a link", func(v status) bool {
		return !v.Link.Linked && time.Now().After(v.Identity.NotAfter.Add(5*time.Second))
	})
	check(t, s.Heal(t.Context(), node))
	s.until(t, "another certificate and a link", func(v status) bool {
		return v.Link.Linked && v.Identity.Fingerprint != first.Identity.Fingerprint && time.Now().Before(v.Identity.NotAfter)
	})
	if u, r := s.pod(t); u != uid || r != restarts {
		t.Errorf("the sample is %s with %d restarts; it was %s with %d", u, r, uid, restarts)
	}
}
