package e2e_test

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/artefactrepo"
	"github.com/skerry-io/skerry/tests/cluster/registry"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// supervised starts a program again when it ends, as systemd does, until it is told to end.
const supervised = `trap 'kill $c 2>/dev/null; wait $c; exit' TERM; while :; do "$@" & c=$!; wait $c; sleep 0.2; done`

const (
	slotsDir = "/var/lib/skerry/bin"
	requires = "/etc/skerry/check/required.d"
)

// fleet is edge1 as a package runs it, by skerry-launch under a supervisor, and a repository of
// versions of edgecore that it trusts.
type fleet struct {
	*system
	repo    *artefactrepo.Repository
	program []byte // edgecore as it was built
}

// fleet gives a test edge1, and further devices, with the package's program, which they have again
// afterwards.
func (s *system) fleet(further ...string) *fleet {
	s.T.Helper()
	f := &fleet{system: s}
	nodes := append([]string{"edge1"}, further...)
	var err error
	f.repo, err = artefactrepo.New(s.T.TempDir())
	s.Check(err)
	bin := filepath.Join(s.Root, "bin")
	f.program, err = os.ReadFile(filepath.Join(bin, "edgecore"))
	s.Check(err)
	root, err := os.ReadFile(f.repo.Root())
	s.Check(err)
	for _, node := range nodes {
		keys := s.path(node, "/etc/skerry/keys.d")
		s.Check(os.MkdirAll(keys, 0o755))
		s.Check(os.WriteFile(filepath.Join(keys, "root.json"), root, 0o644))
	}
	launched := []string{"/bin/sh", "-c", supervised, "supervisor", filepath.Join(bin, "skerry-launch"), "--dir", slotsDir, "--version-file", "", "--", filepath.Join(bin, "edgecore")}
	s.T.Cleanup(func() {
		ctx := context.Background()
		s.Mend(ctx)
		s.Must(s.Run(ctx, "kubectl", "delete", "nodeoperationsets,nodeoperations", "--all"))
		for _, node := range nodes {
			s.Check(s.Trial.Replace(ctx, node, "edgecore", nil))
			s.Check(s.Trial.Stop(ctx, node, "edgecore"))
			for _, dir := range []string{slotsDir, "/var/lib/skerry/artefacts", "/etc/skerry/keys.d", "/etc/skerry/check"} {
				s.Check(os.RemoveAll(s.path(node, dir)))
			}
		}
		for _, host := range options().Replicas() {
			s.Check(os.RemoveAll(s.path(host, trial.ArtefactsDir)))
		}
		for _, node := range nodes {
			s.Check(s.Trial.Start(ctx, node, "edgecore")) // the next test waits for it
		}
	})
	for _, node := range nodes {
		s.Check(s.Trial.Replace(s.T.Context(), node, "edgecore", launched))
		s.Check(s.Trial.Stop(s.T.Context(), node, "edgecore"))
		s.Start(node, "edgecore")
	}
	for _, node := range nodes {
		s.WaitReady(node, true)
	}
	return f
}

// add publishes a version on every replica of cloudcore.
func (f *fleet) add(version string, program []byte, change func(*artefactrepo.Target)) artefactrepo.Target {
	f.T.Helper()
	t, err := f.repo.Add(version, runtime.GOARCH, program, change)
	f.Check(err)
	for _, host := range options().Replicas() {
		f.Check(trial.CopyArtefacts(f.path(host, "/"), f.repo.Dir))
	}
	return t
}

// another is a version that works: the same program, with other bytes behind it.
func (f *fleet) another(version string) []byte { return append(slices.Clone(f.program), version...) }

// script is a version that is a shell script.
func script(text string) []byte { return []byte("#!/bin/sh\n" + text + "\n") }

// upgrade asks for a version.
func (f *fleet) upgrade(name, version, more string) {
	f.T.Helper()
	f.Apply("default", nodeOperation(name, "edge1", "Upgrade", fmt.Sprintf(", upgrade: {version: %q}%s", version, more)))
}

// slots is the state of skerry-launch on edge1, empty before its first trial.
func (f *fleet) slots() slots { return f.slotsOf("edge1") }

type slots struct {
	Confirmed, Trial struct{ Slot, Version, Digest string }
	Former           struct{ Crashes int }
	Rejected         []string
}

func (f *fleet) slotsOf(node string) (s slots) {
	f.T.Helper()
	raw, err := os.ReadFile(f.path(node, slotsDir+"/state.0"))
	if errors.Is(err, fs.ErrNotExist) {
		return s // no version was tried
	}
	f.Check(err)
	f.Check(json.Unmarshal(raw[strings.Index(string(raw), "\n{"):], &s))
	return s
}

// longestGap is the longest time that edge1 was seen without a link, by its own status, until stop
// is called.
func (f *fleet) longestGap() (stop func() time.Duration) {
	ctx, cancel := context.WithCancel(f.T.Context())
	gap := make(chan time.Duration, 1)
	go func() {
		last, longest := time.Now(), time.Duration(0)
		for ctx.Err() == nil {
			var status struct{ Link struct{ Linked bool } }
			if err := f.AskSocket(ctx, "edge1", &status); err == nil && status.Link.Linked {
				longest, last = max(longest, time.Since(last)), time.Now()
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
		gap <- longest
	}()
	return func() time.Duration {
		cancel()
		return <-gap
	}
}

// containers are the container IDs of pods, by the pod's name.
func containers(pods []corev1.Pod) map[string]string {
	all := map[string]string{}
	for _, p := range pods {
		all[p.Name] = p.Status.ContainerStatuses[0].ContainerID
	}
	return all
}

// A device with ten pods gets another version: its containers are the same, and the link is away
// for at most 5 s.
func TestFleet_04_UpgradeRestartsNoContainer(t *testing.T) {
	f := newSystem(t).fleet()
	ns := f.Namespace()
	const pods = 10
	for i := range pods {
		f.Apply(ns, strings.Replace(samplePod(fmt.Sprintf("pod-%d", i), "edge1"), "labels: {", "labels: {of: fleet, ", 1))
	}
	before := containers(f.WaitPods(ns, "of=fleet", "edge1", pods))
	target := f.add("v9.0.0", f.another("v9.0.0"), nil)
	gap := f.longestGap()
	f.upgrade("up", "v9.0.0", "")
	o := f.waitOperation("up", "confirmed", ended)
	away := gap()
	if !isDone(v1alpha1.OperationConfirmed)(o) {
		t.Fatalf("the operation ended with %+v", o.Status)
	}
	if s := f.slots(); s.Confirmed.Digest != target.Digest || s.Confirmed.Slot == "" {
		t.Errorf("the confirmed program is %+v", s.Confirmed)
	}
	after := containers(f.WaitPods(ns, "of=fleet", "edge1", pods))
	for name, id := range before {
		if after[name] != id {
			t.Errorf("%s had container %s, has %s", name, id, after[name])
		}
	}
	t.Logf("the link was away for %v; %d bytes were fetched for a program of %d", away.Round(100*time.Millisecond), target.Length, target.Size)
	if away > 5*time.Second {
		t.Errorf("the link was away for %v", away)
	}
	if u := o.Status.Upgrade; u == nil || u.Digest != target.Digest || u.Fetched != target.Length || u.Starts != 1 {
		t.Errorf("the status says %+v", u)
	}
	f.upgrade("again", "v9.0.0", "")
	if o := f.waitOperation("again", "ended", ended); !isDone(v1alpha1.OperationUnchanged)(o) {
		t.Errorf("the same version again: %+v", o.Status.Conditions)
	}
}

func ended(o *v1alpha1.NodeOperation) bool { return o.Status.CompletedAt != nil }

// A configuration changes by an overlay: a hook is refused and named, a port that leads nowhere
// goes back, a good change stays over a reboot.
func TestFleet_14_ConfigurationIsTried(t *testing.T) {
	f := newSystem(t).fleet()
	configure := func(name, patch, more string) *v1alpha1.NodeOperation {
		t.Helper()
		f.Apply("default", nodeOperation(name, "edge1", "Config", fmt.Sprintf(", config: {patch: %q}%s", patch, more)))
		return f.waitOperation(name, "ended", ended)
	}
	o := configure("hook", "modules: {drain: {hooks: {reboot: touch /tmp/owned}}, edgeHub: {servers: [192.0.2.1]}}", "")
	if text := o.Status.Conditions[0].Message; !isDone(v1alpha1.OperationRefused)(o) || !strings.Contains(text, "modules.drain.hooks.reboot") || !strings.Contains(text, "modules.edgeHub.servers") {
		t.Errorf("a hook and a server: %+v", o.Status.Conditions)
	}
	if o := configure("unknown", "log: {verbosity: many}", ""); !isDone(v1alpha1.OperationRefused)(o) || !strings.Contains(o.Status.Conditions[0].Message, "log.verbosity") {
		t.Errorf("a value that is none: %+v", o.Status.Conditions)
	}
	before, err := os.ReadFile(f.path("edge1", "/etc/skerry/edgecore.yaml"))
	f.Check(err)
	if o := configure("port", "modules: {edgeHub: {websocket: {port: 9}, quic: {port: 9}}}", ", healthTimeout: 20s"); !isDone(v1alpha1.OperationRolledBack)(o) {
		t.Errorf("a port that leads nowhere: %+v", o.Status.Conditions)
	}
	if o := configure("good", "log: {verbosity: 3}", ""); !isDone(v1alpha1.OperationConfirmed)(o) {
		t.Fatalf("a good change: %+v", o.Status.Conditions)
	}
	f.Reboot("edge1", false)
	f.WaitReady("edge1", true)
	if o := configure("same", "log: {verbosity: 3}", ""); !isDone(v1alpha1.OperationUnchanged)(o) {
		t.Errorf("after a reboot: %+v", o.Status.Conditions)
	}
	if after, err := os.ReadFile(f.path("edge1", "/etc/skerry/edgecore.yaml")); err != nil || string(after) != string(before) {
		t.Errorf("the file in /etc was written: %v", err)
	}
}

// bundle packs the repository as an operator carries it.
func (f *fleet) bundle(file string) {
	f.T.Helper()
	out, err := os.Create(file)
	f.Check(err)
	w := tar.NewWriter(out)
	f.Check(w.AddFS(os.DirFS(f.repo.Dir)))
	f.Check(errors.Join(w.Close(), out.Close()))
}

// A device without a link is upgraded from a file, whose metadata have expired. The cloud sees it
// later.
func TestFleet_11_UpgradeFromAFileOffline(t *testing.T) {
	f := newSystem(t).fleet()
	f.repo.Expires = time.Now().Add(-time.Hour)
	target := f.add("v9.3.0", f.another("v9.3.0"), nil)
	f.bundle(f.path("edge1", "/var/lib/skerry/bundle.tar"))
	f.Cut("edge1")
	f.waitUnlinked("edge1") // a link that is only silent would be a part of the trial's health
	out, code, complaint := f.edgecore("edge1", "operation", "upgrade", "/var/lib/skerry/bundle.tar", "-o", "json")
	if code != 0 {
		t.Fatalf("code %d: %s", code, complaint)
	}
	var made struct{ Name string }
	f.Check(json.Unmarshal([]byte(out), &made))
	f.WaitFor("the version to be confirmed", func(context.Context) error {
		out, _, complaint := f.edgecore("edge1", "operation", "list")
		if s := f.slots(); s.Confirmed.Digest != target.Digest {
			return fmt.Errorf("%+v: %s%s", s, out, complaint)
		}
		return nil
	})
	f.Heal("edge1")
	if o := f.waitOperation(made.Name, "confirmed", ended); !isDone(v1alpha1.OperationConfirmed)(o) || o.Status.RequestedBy != v1alpha1.RequestedOnDevice || !strings.HasPrefix(o.Status.Conditions[0].Message, "its metadata expired on ") {
		t.Errorf("the cloud sees %+v", o.Status)
	}
}

// Images are pulled before they are needed, with a Secret that a pod of the device refers to, and
// kept: the kubelet may not collect them. A pull that is interrupted by a crash while the link is
// cut is repeated.
func TestFleet_15_ImagesArePulled(t *testing.T) {
	f := newSystem(t).fleet()
	ns := f.Namespace()
	r := f.newRegistry("./tests/images/devices")
	r.Password = "open sesame"
	r.Slow(func() time.Duration { return 10 * time.Minute })
	f.serve("edge1", r)
	const image = registry.Address + "/release/devices:2"
	t.Cleanup(func() {
		f.onHostIn(context.WithoutCancel(t.Context()), "edge1", "ctr", "--namespace=k8s.io", "images", "rm", image)
	})
	f.Apply(ns, `apiVersion: v1
kind: Secret
metadata: {name: registry}
type: kubernetes.io/dockerconfigjson
stringData: {.dockerconfigjson: '{"auths": {"`+registry.Address+`": {"username": "pod", "password": "open sesame"}}}'}
`)
	pull := func(name string) {
		t.Helper()
		f.Apply("default", nodeOperation(name, "edge1", "ImagePull", fmt.Sprintf(`, imagePull: {images: [%q], pullSecret: {namespace: %s, name: registry}}`, image, ns)))
	}
	pull("foreign")
	if o := f.waitOperation("foreign", "refused", ended); !isDone(v1alpha1.OperationRefused)(o) {
		t.Errorf("with a Secret that no pod refers to: %+v", o.Status)
	}
	f.Apply(ns, strings.Replace(islander("refers", "edge1"), "  dnsPolicy", "  imagePullSecrets: [{name: registry}]\n  dnsPolicy", 1))
	refers := f.WaitPods(ns, "app=refers", "edge1", 1)[0]

	pull("pull")
	f.WaitFor("a pull to be under way", func(context.Context) error {
		if begun, _, _ := r.Counts(); begun < 2 { // its manifest, and a blob
			return fmt.Errorf("%d blobs were begun", begun)
		}
		return nil
	})
	f.Cut("edge1")
	r.Slow(nil)
	f.onHost("edge1", "pkill", "-KILL", "-x", "edgecore")
	f.WaitFor("the image to be kept", func(ctx context.Context) error {
		names, err := f.pinned(ctx, "edge1")
		if err == nil && !slices.Contains(names, image) {
			err = fmt.Errorf("the kubelet may collect it: %q", names)
		}
		return err
	})
	f.collectImages("edge1")
	f.Check(f.missing("edge1", image, sandboxImage, "skerry.local/sample:1"))
	f.waitRunningHere("edge1", refers)
	f.Heal("edge1")
	o := f.waitOperation("pull", "pulled", ended)
	if i := o.Status.Images; !isDone(v1alpha1.OperationPulled)(o) || len(i) != 1 || !i[0].Pulled || !i[0].Kept {
		t.Errorf("%+v", o.Status)
	}
	begun, _, _ := r.Counts()
	pull("again")
	if o := f.waitOperation("again", "pulled", ended); !isDone(v1alpha1.OperationPulled)(o) {
		t.Errorf("an image that is there: %+v", o.Status)
	}
	if now, _, _ := r.Counts(); now != begun {
		t.Errorf("%d more blobs were pulled of an image that is there", now-begun)
	}
}
