package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/cluster/faultproxy"
	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/suite"
)

// servingReplica is the replica of cloudcore that holds a device's link.
func (s *system) servingReplica(ctx context.Context, node string) (string, error) {
	d, err := s.deviceStatus(ctx, node)
	if err != nil {
		return "", err
	}
	if !d.Link.Linked {
		return "", errors.New("there is no link")
	}
	for _, replica := range options().Replicas() {
		if strings.HasPrefix(d.Link.Instance, replica+"-") {
			return replica, nil
		}
	}
	return "", fmt.Errorf("no replica is called %q", d.Link.Instance)
}

// leaseHolder is the epoch and the instance that a node's Lease names.
func (s *system) leaseHolder(ctx context.Context, node string) (epoch, instance string, err error) {
	l, err := s.Client.CoordinationV1().Leases("kube-node-lease").Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return "", "", err
	}
	return l.Annotations["skerry.io/epoch"], l.Annotations["skerry.io/cloudcore"], nil
}

// TestIsland_11_AStaleSessionWritesNothing: the replica that serves the node is stopped (SIGSTOP)
// with events and a status under way, the edge moves over and continues; then the first wakes up
// and still believes in its session. It must not write for the node any more: the Lease stays the
// newer session's, and so does the pod's status; every event is there once, as it was reported.
func TestIsland_11_AStaleSessionWritesNothing(t *testing.T) {
	s := newSystem(t)
	s.reportEvents("edge1", true)
	ns := s.Namespace()
	s.Apply(ns, islander("moves", "edge1")+"    readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, failureThreshold: 1}\n")
	pod := &s.WaitPods(ns, "app=moves", "edge1", 1)[0]
	ready := func(ctx context.Context) error {
		p, err := s.Client.CoreV1().Pods(ns).Get(ctx, pod.Name, metav1.GetOptions{})
		if err == nil && !suite.PodReady(*p) {
			err = errors.New("the cluster has it not ready")
		}
		return err
	}
	s.waitLinked("edge1")
	first, err := s.servingReplica(t.Context(), "edge1")
	s.Check(err)
	f := s.flood(pod)
	wait := f.in(600)
	f.waitFor(100)
	s.post(pod, "/fail") // a status that is under way when the replica stops
	s.onHost(first, "pkill", "-STOP", "-x", "cloudcore")
	awake := false
	wake := func() {
		if !awake {
			awake = true
			s.onHost(first, "pkill", "-CONT", "-x", "cloudcore")
		}
	}
	t.Cleanup(wake)
	s.WaitFor("the edge to move over", func(ctx context.Context) error {
		if now, err := s.servingReplica(ctx, "edge1"); err != nil || now == first {
			return fmt.Errorf("served by %q: %w", now, err)
		}
		return nil
	})
	wait()
	s.post(pod, "/heal")
	s.WaitFor("the newer session's status", ready)
	s.WaitFor("the Lease to name the newer session", func(ctx context.Context) error {
		d, err := s.deviceStatus(ctx, "edge1")
		if err != nil {
			return err
		}
		epoch, instance, err := s.leaseHolder(ctx, "edge1")
		if err == nil && (epoch != fmt.Sprint(d.Link.Epoch) || instance != d.Link.Instance) {
			err = fmt.Errorf("it names %s of %s", epoch, instance)
		}
		return err
	})
	epoch, instance, err := s.leaseHolder(t.Context(), "edge1")
	s.Check(err)
	wake()
	s.Check(f.write(t.Context(), 100))
	s.lasts("the Lease stays the newer session's", minutes(t, 2), func() error {
		e, i, err := s.leaseHolder(t.Context(), "edge1")
		if err == nil && (e != epoch || i != instance) {
			err = fmt.Errorf("it names %s of %s, not %s of %s", e, i, epoch, instance)
		}
		return errors.Join(err, ready(t.Context()))
	})
	f.waitArrived()
	s.WaitReady("edge1", true)
}

// TestIsland_Conflicts: kube-apiserver answers every other update and patch for a node with 409, as
// it does when another client writes the same object. No write is given up for that: the Lease is
// renewed, states arrive, and so do repeats of events.
func TestIsland_Conflicts(t *testing.T) {
	s := newSystem(t)
	s.reportEvents("edge1", true)
	ns := s.Namespace()
	pod := s.pod(ns, "crashes", "edge1")
	proxy := s.faultProxy()
	s.waitLinked("edge1")
	var asked, met atomic.Int64
	// Every third: the repeat of an event is a read and a write, both PATCH, of which every second
	// one would hit the same for ever.
	proxy.Set(func(r *http.Request) faultproxy.Fault {
		if r.Header.Get("Impersonate-User") == "" || r.Method != http.MethodPut && r.Method != http.MethodPatch || asked.Add(1)%3 != 0 {
			return faultproxy.Fault{}
		}
		met.Add(1)
		return faultproxy.Fault{Code: http.StatusConflict}
	})
	before := s.Containers("edge1")
	s.post(pod, "/crash")
	s.WaitFor("the crashed container to run again", func(context.Context) error { return s.replaced("edge1", before) })
	f := s.flood(pod)
	s.Check(f.write(t.Context(), 100))
	f.waitArrived()
	s.WaitFor("the restart to be reported to the cloud", func(ctx context.Context) error {
		p, err := s.Client.CoreV1().Pods(ns).Get(ctx, pod.Name, metav1.GetOptions{})
		if err == nil && (len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].RestartCount == 0) {
			err = errors.New("no restart")
		}
		return err
	})
	began := time.Now()
	s.WaitFor("the Lease to be renewed in spite of conflicts", func(ctx context.Context) error {
		l, err := s.Client.CoordinationV1().Leases("kube-node-lease").Get(ctx, "edge1", metav1.GetOptions{})
		if err == nil && (l.Spec.RenewTime == nil || l.Spec.RenewTime.Before(&metav1.MicroTime{Time: began})) {
			err = errors.New("not renewed")
		}
		return err
	})
	proxy.Set(nil)
	t.Logf("%d of %d updates met a conflict", met.Load(), asked.Load())
	if met.Load() == 0 {
		t.Error("none met a conflict: the test shows nothing")
	}
}

// TestEvents_03_AThousandOverAThinLink: 1,000 events over a link of 256 kbit/s that loses every
// twentieth packet, with a cut in the middle: all of them, once, and the link lives.
func TestEvents_03_AThousandOverAThinLink(t *testing.T) {
	s := newSystem(t)
	s.reportEvents("edge1", true)
	pod := s.pod(s.Namespace(), "talks", "edge1")
	s.waitLinked("edge1")
	s.Check(s.Trial.Shape(t.Context(), "edge1", lab.Shape{Rate: 256_000, Loss: 0.05}))
	f := s.flood(pod)
	s.Check(f.write(t.Context(), 500))
	s.Cut("edge1")
	s.Check(f.write(t.Context(), 500))
	s.Heal("edge1")
	f.waitArrived()
	s.WaitReady("edge1", true)
}
