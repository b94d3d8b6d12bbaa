package lan_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// contact is a device's state of another one: its status, "" where it is not in the site, and how
// many connections were refused.
func (s *system) contact(ctx context.Context, node, of string) (status string, refused uint64, err error) {
	out, err := s.shell(ctx, node, filepath.Join(s.Root, "bin", "edgecore")+" status -o json")
	if err != nil {
		return "", 0, err
	}
	var said struct {
		Site struct {
			Peers   []struct{ Node, Status string }
			Refused uint64
		}
	}
	if err := json.Unmarshal([]byte(out), &said); err != nil {
		return "", 0, err
	}
	for _, p := range said.Site.Peers {
		if p.Node == of {
			status = p.Status
		}
	}
	return status, said.Site.Refused, nil
}

// cloudcore runs a command of cloudcore as the administrator.
func (s *system) cloudcore(args ...string) string {
	s.T.Helper()
	out, err := exec.CommandContext(s.T.Context(), filepath.Join(s.Root, "bin", "cloudcore"), append(args, "--kubeconfig", s.Trial.Kubeconfig())...).CombinedOutput()
	if err != nil {
		s.T.Fatalf("cloudcore %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// joinAgain has a device forget its cluster and join it with a new token, into the pool.
func (s *system) joinAgain(node string) {
	s.T.Helper()
	const file = "/etc/skerry/edgecore.yaml"
	edgecore := filepath.Join(s.Root, "bin", "edgecore")
	run := func(line string) { s.T.Helper(); s.Must(s.shell(s.T.Context(), node, line)) }
	h, err := s.Trial.Host(node)
	s.Check(err)
	config, err := os.ReadFile(filepath.Join(h.Root(), file))
	s.Check(err)
	s.Kill(node, "edgecore")
	run(edgecore + " reset --config " + file + " --yes")
	s.cloudcore("node", "revoke", node)
	s.Check(os.WriteFile(filepath.Join(h.Root(), file), config, 0o640))
	s.Check(os.WriteFile(filepath.Join(h.Root(), "/run/join-token"), []byte(s.cloudcore("token", "create", "--ttl", "10m")+"\n"), 0o600))
	run(fmt.Sprintf("%s join --config %s --token-file /run/join-token --node-name %s %s; code=$?; rm /run/join-token; exit $code", edgecore, file, node, lab.Cloud()))
	s.Start(node, "edgecore")
	s.WaitFor(node+" to be in the pool", func(ctx context.Context) error {
		_, err := s.Run(ctx, "kubectl", "label", "node", node, v1alpha1.NodePoolLabel+"="+trial.Pool, "--overwrite")
		return err
	})
	s.WaitReady(node, true)
}

// An administrator revokes a device that stays on the LAN, with its key and with edgecore running,
// by `cloudcore node revoke`. The others end the connection with it and refuse each further one:
// also when there is a Node of its name in the pool again, so that it is of the site and only the
// revocation speaks against its certificate. It dials them at a falling rate. Joined with a new
// token, it is one of them again.
func TestSite_18_Claims_38_RevokedDeviceIsCutByItsPeers(t *testing.T) {
	s := newSystem(t)
	const thief = "edge1" // it is the one that opens the connections, being the first by name
	others := []string{"edge2", "edge3"}
	waitMet := func(when string) {
		t.Helper()
		for _, o := range others {
			s.WaitFor(fmt.Sprintf("%s to have met %s %s", o, thief, when), func(ctx context.Context) error {
				status, _, err := s.contact(ctx, o, thief)
				if err == nil && status != "Met" {
					err = fmt.Errorf("it is %q", status)
				}
				return err
			})
		}
	}
	waitMet("at first")
	defer func() { // not a Cleanup, which comes when the test's context has ended
		s.joinAgain(thief)
		waitMet("once it has joined again")
	}()

	s.cloudcore("node", "revoke", thief)
	s.refuses(others, thief, "after it was revoked", false)
	_, err := s.Client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: thief, Labels: map[string]string{v1alpha1.EdgeLabel: "", v1alpha1.EdgeOwnLabel: "", v1alpha1.NodePoolLabel: trial.Pool},
	}}, metav1.CreateOptions{})
	s.Check(err)
	s.refuses(others, thief, "while a Node of its name is in the pool", true)
	began, first := time.Now(), map[string]uint64{}
	for _, o := range others {
		_, n, err := s.contact(t.Context(), o, thief)
		s.Check(err)
		first[o] = n
	}
	for _, o := range others { // they count at the same time
		more := uint64(0)
		s.WaitFor(o+" to refuse further connections", func(ctx context.Context) error {
			_, now, err := s.contact(ctx, o, thief)
			if more = now - first[o]; err == nil && more < 2 {
				err = fmt.Errorf("%d were refused since", more)
			}
			return err
		})
		if rate := float64(more) / time.Since(began).Seconds(); rate > 5 { // 24 without a pause
			t.Errorf("%s dials %s %.0f times a second", thief, o, rate)
		}
	}
	if _, err := s.shell(t.Context(), thief, "pgrep -x edgecore"); err != nil {
		t.Errorf("edgecore does not run on the revoked device, so nothing was refused to it: %v", err)
	}
}

// refuses waits until each device has refused two more connections of a device, has no contact with
// it, and has it in its site or not. They count at the same time: the pause between two attempts
// grows to 30 s.
func (s *system) refuses(nodes []string, thief, when string, inSite bool) {
	s.T.Helper()
	before := map[string]uint64{}
	s.WaitFor(fmt.Sprintf("%v to refuse %s %s", nodes, thief, when), func(ctx context.Context) error {
		var missing error
		for _, node := range nodes {
			status, refused, err := s.contact(ctx, node, thief)
			first, known := before[node]
			switch {
			case err != nil:
			case status == "Met" || (status != "") != inSite:
				delete(before, node)
				err = fmt.Errorf("it is %q", status)
			case !known:
				before[node] = refused
				err = errors.New("the number of refused connections was unknown until now")
			case refused < first+2:
				err = fmt.Errorf("%d connections were refused since", refused-first)
			}
			if err != nil {
				missing = errors.Join(missing, fmt.Errorf("%s: %w", node, err))
			}
		}
		return missing
	})
}
