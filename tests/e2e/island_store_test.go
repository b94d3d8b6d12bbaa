package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestIsland_07: a device that has never received anything from the cloud starts without a link,
// while containers run: it waits, reports that, answers no empty list, and kills no container. With
// a link it continues.
func TestIsland_07_FirstBootWithoutALinkWaits(t *testing.T) {
	s := newSystem(t)
	before := s.Containers("edge2")
	s.Cut("edge2")
	s.Kill("edge2", "edgecore")
	s.Check(os.Remove(s.path("edge2", storeFile)))
	s.Start("edge2", "edgecore")
	s.WaitFor("edgecore to say that it waits", func(ctx context.Context) error {
		d, err := s.deviceStatus(ctx, "edge2")
		if err != nil {
			return err
		}
		for _, i := range d.Data.Interests {
			if i.Synced {
				return fmt.Errorf("%q is said to be there", i.Set)
			}
		}
		if !d.Running || d.Link.Linked || d.Link.LastError == "" {
			return fmt.Errorf("running %t, linked %t, last error %q", d.Running, d.Link.Linked, d.Link.LastError)
		}
		return nil
	})
	device := s.device("edge2")
	// Once, and with a bound for the server alone: a client would try again by itself, as the
	// answer asks it to.
	err := device.CoreV1().RESTClient().Get().MaxRetries(0).AbsPath("/api/v1/pods").Param("resourceVersion", "0").
		Param("fieldSelector", "spec.nodeName=edge2").Param("timeout", "2s").Do(t.Context()).Error()
	if !apierrors.IsServiceUnavailable(err) && !apierrors.IsTimeout(err) {
		t.Errorf("the answer to a list of pods that never came: %v", err)
	}
	s.lasts("nothing is killed", minutes(t, 2), func() error { return s.same("edge2", before) })
	s.Heal("edge2")
	s.WaitReady("edge2", true)
	s.WaitPods("sample", "app=sample", "edge2", 1)
	s.waitKept("edge2")
	s.Check(s.same("edge2", before))
}

// damageStore overwrites half of the store of a node, whose edgecore must not run.
func (s *system) damageStore(node string) {
	s.T.Helper()
	file, err := os.OpenFile(s.path(node, storeFile), os.O_RDWR, 0)
	s.Check(err)
	info, err := file.Stat()
	s.Check(err)
	noise := make([]byte, info.Size()/2)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	_, err = file.WriteAt(noise, 0)
	s.Check(errors.Join(err, file.Close()))
}

// TestIsland_08: the store is damaged while the link is cut: it is set aside and named, pods stay;
// with a link it is rebuilt, and pods stay again.
func TestIsland_08_DamagedStoreIsRebuiltAndPodsStay(t *testing.T) {
	s := newSystem(t)
	before := s.Containers("edge1")
	s.Cut("edge1")
	s.Kill("edge1", "edgecore")
	s.damageStore("edge1")
	s.Start("edge1", "edgecore")
	var aside string
	s.WaitFor("the damaged file to be named", func(ctx context.Context) error {
		d, err := s.deviceStatus(ctx, "edge1")
		if aside = d.Data.DamagedStore; err == nil && aside == "" {
			err = errors.New("nothing is said of a damaged store")
		}
		return err
	})
	if _, err := os.Stat(s.path("edge1", aside)); err != nil {
		t.Error(err)
	}
	s.lasts("pods stay", minutes(t, 2), func() error { return s.same("edge1", before) })
	s.Heal("edge1")
	s.WaitReady("edge1", true)
	s.waitLinked("edge1")
	s.WaitPods("sample", "app=sample", "edge1", 1)
	s.waitKept("edge1")
	s.Check(s.same("edge1", before))
	// Rebuilt: it serves the same again, also without a link.
	s.Cut("edge1")
	if out := s.EdgeKubectl("edge1", "get", "pods", "-n", "sample", "-l", "app=sample", "-o", "jsonpath={.items[*].status.phase}"); out != "Running" {
		t.Errorf("phases: %q", out)
	}
	s.Check(os.Remove(s.path("edge1", aside)))
}

// TestIsland_09: the disk is full when the cloud changes something and edgecore starts again: pods
// stay, the error is reported, and everything follows when there is room.
func TestIsland_09_FullDiskIsReportedAndPodsStay(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	stays := s.pod(ns, "stays", "edge1")
	goes := s.pod(ns, "goes", "edge1")
	s.smallDisk("edge1", 8)
	before := s.Containers("edge1")
	s.fill("edge1")
	// More than the free pages inside of the store can take.
	for i := range 8 {
		s.Apply(ns, fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: big%d}\ndata: {v: %s}\n", i, strings.Repeat("x", 200_000)))
	}
	pod := samplePod("new", "edge1") + "    volumeMounts: [{name: all, mountPath: /config}]\n  volumes:\n  - name: all\n    projected:\n      sources:\n"
	for i := range 8 {
		pod += fmt.Sprintf("      - configMap: {name: big%d, items: [{key: v, path: v%d}]}\n", i, i)
	}
	s.Apply(ns, pod)
	s.Check(s.Client.CoreV1().Pods(ns).Delete(t.Context(), goes.Name, metav1.DeleteOptions{}))
	s.WaitFor("the error to be reported", func(ctx context.Context) error {
		s.fill("edge1")
		d, err := s.deviceStatus(ctx, "edge1")
		if err == nil && d.Data.Failed == 0 {
			err = errors.New("no failure is counted")
		}
		return err
	})
	log, err := os.ReadFile(s.Trial.LogPath("edge1", "edgecore"))
	s.Check(err)
	if !strings.Contains(string(log), "no space left on device") {
		t.Error("edgecore's log does not name the cause")
	}
	id := strings.TrimPrefix(stays.Status.ContainerStatuses[0].ContainerID, "containerd://")
	there := func() error {
		for _, c := range s.Containers("edge1") {
			if c == id {
				return nil
			}
		}
		return fmt.Errorf("container %s is gone", id)
	}
	s.Kill("edge1", "edgecore")
	s.Start("edge1", "edgecore")
	s.lasts("the other pod stays", minutes(t, 1), there)
	if len(before) == 0 {
		t.Error("nothing ran before")
	}
	s.makeRoom("edge1")
	s.WaitPods(ns, "app=new", "edge1", 1)
	s.WaitFor("the deleted pod to go", func(ctx context.Context) error {
		_, err := s.Client.CoreV1().Pods(ns).Get(ctx, goes.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("it is there"))
	})
	s.WaitReady("edge1", true)
	s.Check(there())
}

// TestIsland_17: edgecore is killed at random moments, with events and patches flowing and the link
// coming and going: no acknowledged write is missing. The store's own test with this number has two
// hundred kills; these ten are of the whole.
func TestIsland_17_KilledUnderLoadLosesNothingAcknowledged(t *testing.T) {
	s := newSystem(t)
	s.reportEvents("edge1", true)
	ns := s.Namespace()
	pod := s.pod(ns, "loaded", "edge1")
	before := s.Containers("edge1")
	f := s.flood(pod)
	wait := f.in(3000)
	seed := time.Now().UnixNano()
	t.Logf("the random moments' seed is %d", seed)
	r := rand.New(rand.NewPCG(uint64(seed), 0))
	for i := range 10 {
		select { // any moment is right
		case <-time.After(time.Duration(r.IntN(400)) * time.Millisecond):
		case <-t.Context().Done():
		}
		switch i % 4 {
		case 0:
			s.Cut("edge1")
		case 2:
			s.Heal("edge1")
		}
		_, err := s.Client.CoreV1().Pods(ns).Patch(t.Context(), pod.Name, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{"kill":"n%d"}}}`, i), metav1.PatchOptions{})
		s.Check(err)
		s.Kill("edge1", "edgecore")
		s.Start("edge1", "edgecore")
	}
	wait()
	s.Heal("edge1")
	f.waitArrived()
	s.WaitFor("the last label at the device", func(ctx context.Context) error {
		out, err := s.TryEdgeKubectl(ctx, "edge1", "get", "pod", "-n", ns, pod.Name, "-o", "jsonpath={.metadata.labels.kill}")
		if err == nil && out != "n9" {
			err = fmt.Errorf("it is %q", out)
		}
		return err
	})
	s.Check(s.same("edge1", before))
}
