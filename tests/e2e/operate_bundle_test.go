package e2e_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// unpacked are the files of a bundle.
func (s *system) unpacked(path string) map[string]string {
	s.T.Helper()
	raw, err := os.ReadFile(path)
	s.Check(err)
	z, err := gzip.NewReader(bytes.NewReader(raw))
	s.Check(err)
	files := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		s.Check(err)
		content, err := io.ReadAll(r)
		s.Check(err)
		files[strings.TrimPrefix(h.Name, "skerry-bundle-edge1/")] = string(content)
	}
}

// isBundle checks that a bundle has all that support needs, and no secret.
func (s *system) isBundle(of, path string, secrets ...string) {
	s.T.Helper()
	files := s.unpacked(path)
	for name, part := range map[string]string{
		"version.txt": "edgecore ", "status.txt": "edge1", "status.json": `"node":"edge1"`, "edgecore.yaml": "dataDir:", "events.json": "Started",
		"recorder.jsonl": `"kind":"Start"`, "kernel/addresses.txt": "lo:", "kernel/routes.txt": "dev ", "kernel/iptables.txt": "SKERRY",
		"logs/edgecore.log": "pulling with password", "objects/nodes.json": "edge1", "objects/pods.json": "seeded", "objects/services.json": "seeded", "objects/endpointslices.json": "seeded",
	} {
		if !strings.Contains(files[name], part) {
			s.T.Errorf("%s: %s lacks %q: %.300q (the files are %v)", of, name, part, files[name], keysOf(files))
		}
	}
	for name, content := range files {
		for _, secret := range secrets {
			if strings.Contains(content, secret) {
				at := strings.Index(content, secret)
				s.T.Errorf("%s: %s has a secret: ...%s...", of, name, content[max(0, at-80):min(len(content), at+len(secret)+20)])
			}
		}
	}
}

func keysOf(files map[string]string) (names []string) {
	for name, content := range files {
		names = append(names, fmt.Sprintf("%s (%d)", name, len(content)))
	}
	return names
}

// The bundle of a device that runs, over the link, and with edgecore dead and the link down;
// secrets that were put into every place that it reads are in no file.
func TestOperate_12_BundleWithEdgecoreDeadHasNoSecret(t *testing.T) {
	s := newSystem(t)
	s.plugin()
	ns := s.Namespace()
	const inSecret, inEnv, inArgs, inAnnotation, key = "s3cret-of-the-Secret", "s3cret-in-the-environment", "s3cret-in-an-argument", "s3cret-in-an-annotation", "s3cret-of-a-registry"
	s.Apply(ns, fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: seeded}
stringData: {password: %s, token.json: '{"auth": "%s"}'}
---
apiVersion: v1
kind: Service
metadata: {name: seeded, annotations: {note: %[3]s, example.com/note: %[3]s}}
spec: {selector: {app: seeded}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: seeded, labels: {app: seeded}, annotations: {note: %[3]s}}
spec:
  nodeName: edge1
  terminationGracePeriodSeconds: 1
  volumes: [{name: v, secret: {secretName: seeded}}]
  containers:
  - name: c
    image: skerry.local/sample:1
    imagePullPolicy: Never
    env: [{name: DB, value: %[4]s}, {name: FROM, valueFrom: {secretKeyRef: {name: seeded, key: password}}}]
    volumeMounts: [{name: v, mountPath: /v}]
  initContainers: [{name: i, image: "skerry.local/sample:1", imagePullPolicy: Never, args: [note, %[5]s]}]
`, inSecret, key, inAnnotation, inEnv, inArgs))
	s.WaitPods(ns, "app=seeded", "edge1", 1)
	// A program that logs a password, in edgecore's log.
	log, err := os.OpenFile(s.path("edge1", "/var/log/edgecore.log"), os.O_APPEND|os.O_WRONLY, 0)
	s.Check(err)
	_, err = fmt.Fprintf(log, "E1127 pulling with password %s, that is %s; Authorization: Bearer abcdefgh12345678\n", inSecret, base64.StdEncoding.EncodeToString([]byte(inSecret)))
	s.Check(errors.Join(err, log.Close()))
	identity, err := filepath.Glob(s.path("edge1", "/var/lib/skerry/identity/*"))
	s.Check(err)
	secrets := []string{inSecret, base64.StdEncoding.EncodeToString([]byte(inSecret)), inEnv, inArgs, inAnnotation, key, "abcdefgh12345678", "PRIVATE KEY", s.metricsToken("edge1")}
	for _, path := range identity {
		raw, err := os.ReadFile(path)
		s.Check(err)
		for line := range strings.Lines(string(raw)) {
			if strings.Contains(string(raw), "PRIVATE KEY") && len(line) > 40 && !strings.Contains(line, "CERTIFICATE") && !strings.HasPrefix(line, "-----") {
				secrets = append(secrets, strings.TrimSpace(line))
				break
			}
		}
	}

	dir := t.TempDir()
	pack := func(name string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		out, errs, code := s.onDevice(t.Context(), "edge1", os.Environ(), nil, "bundle", "-o", path)
		if code != 0 {
			t.Fatalf("edgecore bundle: %d: %s%s", code, out, errs)
		}
		return path
	}
	s.isBundle("running", pack("running"), secrets...)
	linked := filepath.Join(dir, "linked")
	s.Kubectl("skerry", "bundle", "edge1", "-o", linked)
	s.isBundle("over the link", linked, secrets...)

	s.Cut("edge1")
	s.Check(s.Trial.Stop(t.Context(), "edge1", "edgecore"))
	s.isBundle("stopped", pack("stopped"), secrets...)
	s.Start("edge1", "edgecore")
	s.Kill("edge1", "edgecore")
	killed := pack("killed")
	s.isBundle("killed", killed, secrets...)
	dead := s.unpacked(killed)
	if !strings.Contains(dead["status.txt"], "not running") {
		t.Errorf("the status of a dead edgecore: %s", dead["status.txt"])
	}
	s.WaitFor("the plugin to report why there is none", func(ctx context.Context) error {
		_, err := s.Run(ctx, "kubectl", "skerry", "bundle", "edge1", "-o", filepath.Join(dir, "none"))
		if err == nil || !strings.Contains(err.Error(), "edge1") || !strings.Contains(err.Error(), "link") {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
	if _, err := os.Stat(filepath.Join(dir, "none")); err == nil {
		t.Error("half a bundle is left")
	}
	s.Start("edge1", "edgecore")
	s.Heal("edge1")
}
