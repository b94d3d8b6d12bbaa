package e2e_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// verbosity sets that of every edgecore and cloudcore, by their commands.
func (s *system) verbosity(v string) {
	s.T.Helper()
	for _, edge := range []string{"edge1", "edge2"} {
		s.onHost(edge, filepath.Join(s.Root, "bin", "edgecore"), "log", v)
	}
	for _, cloud := range options().Replicas() {
		s.onHost(cloud, filepath.Join(s.Root, "bin", "cloudcore"), "log", v)
	}
}

// written are the logs of all edgecores and cloudcores, from the places on that are given.
func (s *system) written(from map[string]int64) map[string]string {
	s.T.Helper()
	logs := map[string]string{}
	for _, program := range []string{"edgecore", "cloudcore"} {
		paths, err := filepath.Glob(filepath.Join(s.Dir, "hosts", "*", "log", program+".log"))
		s.Check(err)
		for _, path := range paths {
			raw, err := os.ReadFile(path)
			s.Check(err)
			logs[path] = string(raw[min(from[path], int64(len(raw))):])
		}
	}
	return logs
}

// At the highest verbosity of edgecore and cloudcore a pod gets a Secret, which is changed, and
// tokens; the device is cut and linked again. No log, status, metric, event or record has the
// Secret, a token or a key.
func TestOperate_12_LogsStatusAndMetricsHaveNoSecret(t *testing.T) {
	s := newSystem(t)
	s.plugin()
	ns := s.Namespace()
	from := map[string]int64{}
	for path, log := range s.written(nil) {
		from[path] = int64(len(log))
	}
	s.verbosity("10")
	t.Cleanup(func() { // not by verbosity, which ends the test where it fails
		for _, edge := range []string{"edge1", "edge2"} {
			_, _ = s.Trial.Exec(context.WithoutCancel(t.Context()), edge, trial.Streams{}, nil, filepath.Join(s.Root, "bin", "edgecore"), "log", "2")
		}
		for _, cloud := range options().Replicas() {
			_, _ = s.Trial.Exec(context.WithoutCancel(t.Context()), cloud, trial.Streams{}, nil, filepath.Join(s.Root, "bin", "cloudcore"), "log", "2")
		}
	})
	const first, second = "s3cret-of-the-Secret", "s3cret-that-is-newer"
	secret := func(value string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: seeded}\nstringData: {password: %s}\n", value)
	}
	s.Apply(ns, secret(first))
	s.Apply(ns, samplePod("seeded", "edge1")+`    env: [{name: FROM, valueFrom: {secretKeyRef: {name: seeded, key: password}}}]
    volumeMounts: [{name: v, mountPath: /v}]
  volumes: [{name: v, secret: {secretName: seeded}}]
`)
	s.WaitPods(ns, "app=seeded", "edge1", 1)
	s.Apply(ns, secret(second))
	s.WaitFor("the device to have the newer Secret", func(ctx context.Context) error {
		out, err := s.TryEdgeKubectl(ctx, "edge1", "get", "secret", "-n", ns, "seeded", "-o", "jsonpath={.data.password}")
		if err == nil && out != base64.StdEncoding.EncodeToString([]byte(second)) {
			err = fmt.Errorf("it has %q", out)
		}
		return err
	})
	s.Cut("edge1")
	s.waitUnlinked("edge1")
	s.Heal("edge1")
	s.waitLinked("edge1") // everything was sent once more

	shown := s.written(from)
	for path, log := range shown {
		if !strings.Contains(log, "Body") && strings.Contains(path, "edge1") { // client-go's, from 8 on
			t.Errorf("%s: the verbosity did not change", path)
		}
	}
	for _, args := range [][]string{{"status"}, {"status", "-o", "json"}, {"events"}, {"recorder", "-o", "json"}, {"rehearse"}} {
		out, errs, _ := s.onDevice(t.Context(), "edge1", os.Environ(), nil, args...) // rehearse may end with 1
		shown["edgecore "+strings.Join(args, " ")] = out + errs
	}
	for _, args := range [][]string{{"skerry", "status", "-o", "json"}, {"skerry", "node", "edge1"}, {"skerry", "recorder", "edge1"}, {"get", "node", "edge1", "-o", "yaml"}, {"get", "events", "-A", "-o", "yaml"}} {
		out, _ := s.Run(t.Context(), append([]string{"kubectl"}, args...)...) // status may end with 1
		shown["kubectl "+strings.Join(args, " ")] = out
	}
	for _, cloud := range options().Replicas() {
		metrics, err := s.scrape(t.Context(), cloud)
		s.Check(err)
		shown["metrics of "+cloud] = metrics
	}
	secrets := []string{"PRIVATE KEY", "eyJhbGciOi", s.metricsToken("edge1")}
	for _, value := range []string{first, second} {
		secrets = append(secrets, value, base64.StdEncoding.EncodeToString([]byte(value)))
	}
	for of, text := range shown {
		if text == "" {
			t.Errorf("%s is empty", of)
		}
		for _, secret := range secrets {
			if at := strings.Index(text, secret); at >= 0 {
				t.Errorf("%s has a secret: ...%s...", of, text[max(0, at-200):min(len(text), at+len(secret)+20)])
			}
		}
	}
}
