package e2e_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// rehearsed is `edgecore rehearse -o json`, with the reasons by namespace and name.
func (s *system) rehearsed(ctx context.Context) (reasons map[string][]string, pods int, err error) {
	s.T.Helper()
	out, errs, code := s.onDevice(ctx, "edge1", os.Environ(), nil, "rehearse", "-o", "json")
	var r struct {
		Device []struct{ Reason, Message string }
		Pods   []struct {
			Namespace, Name string
			Causes          []struct{ Reason, Action string }
		}
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return nil, 0, fmt.Errorf("edgecore rehearse: %d: %s: %w", code, errs, err)
	}
	reasons = map[string][]string{}
	for _, c := range r.Device {
		reasons["device"] = append(reasons["device"], c.Reason+" "+c.Message)
	}
	for _, p := range r.Pods {
		for _, c := range p.Causes {
			if c.Action == "" {
				return nil, 0, fmt.Errorf("%s has no remedy", c.Reason)
			}
			reasons[p.Namespace+"/"+p.Name] = append(reasons[p.Namespace+"/"+p.Name], c.Reason)
		}
	}
	if (code == 0) != (len(reasons) == 0) {
		return nil, 0, fmt.Errorf("the exit code is %d with %v", code, reasons)
	}
	return reasons, len(r.Pods), nil
}

// Causes are put into pods; the rehearsal names each of them and no other pod; then the device
// boots without a link, and exactly those pods don't run.
func TestOperate_10_RehearsalPredictsAnOfflineReboot(t *testing.T) {
	s := newSystem(t)
	s.plugin()
	ns := s.Namespace()
	healthy := 8
	if os.Getenv("SKERRY_LONG") != "" {
		healthy = 50
	}
	gone := "skerry.local/sample:gone"
	s.onHost("edge1", "ctr", "--namespace=k8s.io", "images", "tag", "--force", "skerry.local/sample:1", gone)
	for n := range healthy {
		s.Apply(ns, rehearsalPod(fmt.Sprintf("well-%d", n), `image: "skerry.local/sample:1", imagePullPolicy: IfNotPresent, envFrom: [{configMapRef: {name: settings, optional: true}}]`, ""))
	}
	s.Apply(ns, `
apiVersion: v1
kind: ConfigMap
metadata: {name: needed}
data: {a: b}
`)
	s.Apply(ns, rehearsalPod("image", `image: "`+gone+`", imagePullPolicy: IfNotPresent`, ""))
	s.Apply(ns, rehearsalPod("object", `image: "skerry.local/sample:1", imagePullPolicy: IfNotPresent, envFrom: [{configMapRef: {name: needed}}]`, ""))
	s.Apply(ns, rehearsalPod("credentials", `image: "skerry.local/pause:1", imagePullPolicy: IfNotPresent`, ""))
	s.Apply(ns, rehearsalPod("singleton", `image: "skerry.local/sample:1", imagePullPolicy: IfNotPresent`, `, annotations: {skerry.io/held-at-boot: "true"}`))
	s.Apply(ns, rehearsalPod("always", `image: "skerry.local/sample:1", imagePullPolicy: Always`, ""))
	want := map[string]string{"image": "ImageNotHeld", "object": "ObjectNotHeld", "credentials": "ImageCredentialsUnverified", "singleton": "WaitsForCloudAtBoot", "always": "ImagePullPolicyAlways"}
	pods := s.WaitPods(ns, "rehearsal!=always", "edge1", healthy+4)

	// The seeds: an image that is gone, an object that is gone, and an image that was pulled with
	// another pod's credentials.
	s.onHost("edge1", "ctr", "--namespace=k8s.io", "images", "rm", gone)
	s.Kubectl("delete", "configmap", "-n", ns, "needed")
	at := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Name == "credentials" })
	id := pods[at].Status.ContainerStatuses[0].ImageID
	id = id[strings.LastIndex(id, "sha256:"):]
	record := fmt.Sprintf(`{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1","lastUpdatedTime":"2026-01-01T00:00:00Z","imageRef":%q,"credentialMapping":`+
		`{"skerry.local/pause":{"kubernetesSecrets":[{"uid":"another","namespace":"x","name":"y","credentialHash":"z"}]}}}`, id)
	file := s.path("edge1", filepath.Join("/var/lib/kubelet/image_manager/pulled", fmt.Sprintf("sha256-%x", sha256.Sum256([]byte(id)))))
	s.Check(os.WriteFile(file, []byte(record), 0o600))
	t.Cleanup(func() { _ = os.Remove(file) })

	s.WaitFor("the rehearsal to predict all of it and nothing else", func(ctx context.Context) error {
		got, _, err := s.rehearsed(ctx)
		if err != nil {
			return err
		}
		return predicts(got, ns, want)
	})
	if out, err := s.Run(t.Context(), "kubectl", "skerry", "rehearse", "edge1"); err == nil || !strings.Contains(out, ns+"/image ") || !strings.Contains(out, "-> crictl pull "+gone) {
		t.Errorf("through the link: %v: %s", err, out)
	}

	s.Cut("edge1")
	got, _, err := s.rehearsed(t.Context())
	if err = errors.Join(err, predicts(got, ns, want)); err != nil {
		t.Errorf("without a link: %v", err)
	}
	s.Reboot("edge1", true)
	for _, p := range pods {
		if want[p.Name] == "" {
			s.waitRunsAgain("edge1", p)
		}
	}
	for name, reason := range want {
		if s.containerRuns("edge1", ns, name) {
			t.Errorf("%s runs although the rehearsal has a cause: %s", name, reason)
		}
	}
	s.Heal("edge1")
}

// predicts compares the reasons of the pods of a namespace with those that were seeded; all other
// pods of the device are fine.
func predicts(got map[string][]string, ns string, want map[string]string) error {
	var wrong []error
	for name, reason := range want {
		if r := got[ns+"/"+name]; !slices.Equal(r, []string{reason}) {
			wrong = append(wrong, fmt.Errorf("%s: %v, want %s", name, r, reason))
		}
	}
	for name, reasons := range got {
		if in, pod, _ := strings.Cut(name, "/"); in != ns || want[pod] == "" {
			wrong = append(wrong, fmt.Errorf("a false alarm: %s: %v", name, reasons))
		}
	}
	return errors.Join(wrong...)
}

func rehearsalPod(name, container, metadata string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {rehearsal: %[1]s}%[3]s}
spec:
  nodeName: edge1
  tolerations: [{operator: Exists}]
  terminationGracePeriodSeconds: 1
  containers: [{name: c, %[2]s}]
`, name, container, metadata)
}

// containerRuns reports whether a container of a pod runs, by the container runtime; its sandbox
// does not count.
func (s *system) containerRuns(node, namespace, pod string) bool {
	s.T.Helper()
	filter := fmt.Sprintf(`labels."io.kubernetes.pod.name"==%q,labels."io.kubernetes.pod.namespace"==%q,labels."io.cri-containerd.kind"==container`, pod, namespace)
	running := s.Containers(node)
	return slices.ContainsFunc(strings.Fields(s.onHost(node, "ctr", "--namespace=k8s.io", "containers", "list", "-q", filter)), func(id string) bool {
		return slices.Contains(running, id)
	})
}
