package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/process"
	"github.com/skerry-io/skerry/tests/cluster/suite"
	"github.com/skerry-io/skerry/tests/cluster/wrongclock"
)

// A wrongClock runs edgecore so that it sees another time of day than the machine's.
type wrongClock struct {
	s                  *system
	launcher, edgecore string
	offset             time.Duration
}

// wrongClock prepares an edgecore whose clock shows at for the present time.
func (s *system) wrongClock(at time.Time) *wrongClock {
	s.T.Helper()
	dir := s.T.TempDir()
	w := &wrongClock{s: s, launcher: filepath.Join(dir, "wrongclock"), edgecore: filepath.Join(dir, "edgecore"), offset: time.Until(at).Round(time.Second)}
	s.Check(binary.BuildStatic(s.T.Context(), s.Root, w.launcher, "./tests/cmd/wrongclock"))
	s.Check(wrongclock.Copy(w.edgecore, filepath.Join(s.Root, "bin", "edgecore")))
	return w
}

// year is the year that edgecore believes in.
func (w *wrongClock) year() string { return time.Now().Add(w.offset).UTC().Format("2006") }

func (w *wrongClock) args(args ...string) []string {
	return append([]string{fmt.Sprint(int64(w.offset / time.Second)), w.edgecore}, args...)
}

// start starts edgecore on a node, where it must not run; stop ends it as a crash would.
func (w *wrongClock) start(node string) (stop func()) {
	w.s.T.Helper()
	h, err := w.s.Trial.Host(node)
	w.s.Check(err)
	child, err := h.Start(process.Spec{
		Path: w.launcher, Args: w.args("--config", "/etc/skerry/edgecore.yaml"), Dir: "/", Log: w.s.Trial.LogPath(node, "edgecore"),
	})
	w.s.Check(err)
	stop = func() {
		w.s.T.Helper()
		if err := child.Kill(context.Background()); err != nil {
			w.s.T.Error(err)
		}
	}
	w.s.T.Cleanup(stop)
	return stop
}

// TestIsland_16: a device boots with its clock at 1970. It starts offline with its pods, links when
// it can, runs a new pod with a token, and can join; events that happened before, then and
// afterwards are all there with the times they were given. Then the clock is right again.
func TestIsland_16_ClockAt1970RunsPodsAndLosesNoEvent(t *testing.T) {
	s := newSystem(t)
	s.reportEvents("edge1", true)
	ns := s.Namespace()
	pod := s.pod(ns, "dusk", "edge1")
	before := s.Containers("edge1")
	f := s.flood(pod)
	w := s.wrongClock(time.Unix(0, 0))

	s.Cut("edge1")
	s.Check(f.write(t.Context(), 100))
	s.Kill("edge1", "edgecore")
	stop := w.start("edge1")
	s.WaitFor("the device's own API", func(ctx context.Context) error {
		out, err := s.TryEdgeKubectl(ctx, "edge1", "get", "pod", "-n", ns, "dusk", "-o", "jsonpath={.status.phase}")
		if err == nil && out != "Running" {
			err = fmt.Errorf("its phase is %q", out)
		}
		return err
	})
	s.Check(f.write(t.Context(), 100))
	s.Check(s.same("edge1", before))
	s.Heal("edge1")
	s.waitLinked("edge1")
	f.waitArrived()
	s.WaitReady("edge1", true)
	s.Check(s.same("edge1", before))

	dawn := s.pod(ns, "dawn", "edge1")
	s.WaitFor("a token of now in the new pod", func(ctx context.Context) error {
		page, err := s.Page(ctx, *dawn)
		if err == nil && !strings.Contains(page, "token: system:serviceaccount:"+ns+":default until 2") { // of this millennium
			err = errors.New(page)
		}
		return err
	})

	// Another device, of the same clock, joins from this one's network.
	raw, err := exec.CommandContext(t.Context(), filepath.Join(s.Root, "bin", "cloudcore"), "token", "create", "--kubeconfig", s.Trial.Kubeconfig(), "--ttl", "10m").Output()
	s.Check(err)
	token := strings.TrimSpace(string(raw))
	config := "/etc/skerry/late.yaml"
	own, err := os.ReadFile(s.path("edge1", "/etc/skerry/edgecore.yaml"))
	s.Check(err)
	s.Check(os.WriteFile(s.path("edge1", config), append(own, "dataDir: /var/lib/late\n"...), 0o600))
	out := s.onHost("edge1", w.launcher, w.args("join", "--config", config, "--token", token, "--node-name", "late", lab.Cloud().String())...)
	if _, err := os.Stat(s.path("edge1", "/var/lib/late/identity")); err != nil {
		t.Errorf("nothing came of the join: %v\n%s", err, out)
	}
	s.Check(errors.Join(os.RemoveAll(s.path("edge1", "/var/lib/late")), os.Remove(s.path("edge1", config))))

	stop()
	s.Start("edge1", "edgecore")
	s.waitLinked("edge1")
	s.Check(f.write(t.Context(), 100))
	f.waitArrived()
	s.WaitReady("edge1", true)
	for _, name := range []string{"dusk", "dawn"} {
		p, err := s.Client.CoreV1().Pods(ns).Get(t.Context(), name, metav1.GetOptions{})
		s.Check(err)
		if !suite.PodReady(*p) || p.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("pod %s: ready %t, restarts %d", name, suite.PodReady(*p), p.Status.ContainerStatuses[0].RestartCount)
		}
	}
}

// TestHostile_16: an attacker sets a device's clock: ten years ahead, by which the cloud's
// certificates have expired, then thirty, by which its CA has. Its pods run on and its own API
// serves, offline and with a cable; no link is opened by a certificate that its clock calls
// expired, and the device reports that its clock may be wrong. All of it is over once the clock is
// right.
func TestHostile_16_ClockAfterTheCAOpensNoLinkAndStopsNoPod(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.pod(ns, "patient", "edge1")
	before := s.Containers("edge1")
	for _, years := range []int{10, 30} {
		w := s.wrongClock(time.Now().AddDate(years, 0, 0))
		s.Cut("edge1")
		s.Kill("edge1", "edgecore")
		stop := w.start("edge1")
		serves := func(what string) {
			t.Helper()
			s.WaitFor(fmt.Sprintf("the device's own API, %d years ahead, %s", years, what), func(ctx context.Context) error {
				out, err := s.TryEdgeKubectl(ctx, "edge1", "get", "pod", "-n", ns, "patient", "-o", "jsonpath={.status.phase}")
				if err == nil && out != "Running" {
					err = fmt.Errorf("its phase is %q", out)
				}
				return err
			})
			s.Check(s.same("edge1", before))
		}
		serves("offline")
		s.Heal("edge1")
		s.WaitFor("the device to say what is wrong", func(ctx context.Context) error {
			d, err := s.deviceStatus(ctx, "edge1")
			if err != nil {
				return err
			}
			// By both transports, and by both pairs of ports, with the time that the
			// device believes in.
			if n := strings.Count(d.Link.LastError, "certificate has expired or is not yet valid: current time "+w.year()); d.Link.Linked || n < 2 {
				return fmt.Errorf("linked: %t; %s", d.Link.Linked, d.Link.LastError)
			}
			return nil
		})
		serves("with a cable")
		stop()
		s.Start("edge1", "edgecore")
		s.waitLinked("edge1")
		s.WaitReady("edge1", true)
		s.Check(s.same("edge1", before))
	}
}
