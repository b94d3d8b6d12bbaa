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
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/cluster/lab"
)

// rehearsed is `edgecore rehearse -o json` of a node, with the reasons by namespace and name.
func (s *system) rehearsed(ctx context.Context, node string) (reasons map[string][]string, pods int, err error) {
	s.T.Helper()
	out, errs, code := s.onDevice(ctx, node, os.Environ(), nil, "rehearse", "-o", "json")
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

// waitKept waits until a node whose store is new holds again what the pods of the sample need for a
// reboot without a link: the cloud sees them Ready all along.
func (s *system) waitKept(node string) {
	s.T.Helper()
	s.WaitFor(node+" to keep what its pods need", func(ctx context.Context) error {
		reasons, pods, err := s.rehearsed(ctx, node)
		if err == nil && pods == 0 {
			err = errors.New("it has no pods")
		}
		for pod, why := range reasons {
			if strings.HasPrefix(pod, "sample/") {
				err = fmt.Errorf("%s: %v", pod, why)
			}
		}
		return err
	})
}

// A rehearsed pod of edge1; reason is its cause, "": it is healthy.
type rehearsedPod struct {
	name, reason string
	container    string // further fields
	spec         string // further lines
	metadata     string
	waits        bool // it does not start: its cause was there before it
}

const (
	rehearsedImage = `image: "skerry.local/sample:1", imagePullPolicy: IfNotPresent`
	goneImage      = "skerry.local/sample:gone"
	mountedVolume  = rehearsedImage + `, volumeMounts: [{name: v, mountPath: /v}]`
)

// rehearsedPods are those with a cause, and healthy ones that are not far from one.
func rehearsedPods(healthy int) (all []rehearsedPod) {
	volume := func(source string) string { return "volumes: [{name: v, " + source + "}]" }
	for n := range healthy {
		all = append(all, rehearsedPod{name: fmt.Sprintf("well-%d", n), container: rehearsedImage + `, envFrom: [{configMapRef: {name: settings, optional: true}}]`})
	}
	return append(all,
		rehearsedPod{name: "unmounted", container: rehearsedImage, spec: `volumes: [{name: c, persistentVolumeClaim: {claimName: nosuch}}, {name: s, secret: {secretName: nosuch}},
    {name: i, image: {reference: "skerry.local/nosuch:1", pullPolicy: Never}}]`},

		rehearsedPod{name: "image", reason: "ImageNotHeld", container: `image: "` + goneImage + `", imagePullPolicy: IfNotPresent`},
		rehearsedPod{name: "credentials", reason: "ImageCredentialsUnverified", container: `image: "skerry.local/pause:1", imagePullPolicy: Never`},
		rehearsedPod{name: "object", reason: "ObjectNotHeld", container: rehearsedImage + `, envFrom: [{configMapRef: {name: needed}}]`},
		rehearsedPod{name: "secret", reason: "ObjectNotHeld", container: rehearsedImage + `, envFrom: [{secretRef: {name: needed}}]`},
		rehearsedPod{name: "key", reason: "ObjectNotHeld", container: rehearsedImage + `, env: [{name: A, valueFrom: {configMapKeyRef: {name: keys, key: a}}}]`},
		rehearsedPod{name: "plugin", reason: "DevicePluginMissing", container: rehearsedImage + `, resources: {limits: {devices.example/thing: 1}}`},
		rehearsedPod{name: "singleton", reason: "WaitsForCloudAtBoot", container: rehearsedImage, metadata: `, annotations: {skerry.io/held-at-boot: "true"}`},
		rehearsedPod{name: "once", reason: "RestartPolicyNever", container: rehearsedImage, spec: "restartPolicy: Never"},

		rehearsedPod{name: "always", reason: "ImagePullPolicyAlways", container: `image: "skerry.local/sample:1", imagePullPolicy: Always`, waits: true},
		rehearsedPod{name: "volume", reason: "ImageNotHeld", container: mountedVolume, spec: volume(`image: {reference: "skerry.local/nosuch:1", pullPolicy: Never}`), waits: true},
		rehearsedPod{name: "pvc", reason: "ObjectNotHeld", container: mountedVolume, spec: volume("persistentVolumeClaim: {claimName: nosuch}"), waits: true},
		rehearsedPod{name: "unbound", reason: "VolumeNotBound", container: mountedVolume, spec: volume("persistentVolumeClaim: {claimName: unbound}"), waits: true},
		rehearsedPod{name: "attachment", reason: "VolumeNotAttached", container: mountedVolume, spec: volume("persistentVolumeClaim: {claimName: detached}"), waits: true},
		rehearsedPod{name: "claim", reason: "ResourceClaimUnallocated", container: rehearsedImage, spec: "resourceClaims: [{name: card, resourceClaimName: unallocated}]", waits: true},
		rehearsedPod{name: "certificate", reason: "PodCertificate", container: mountedVolume, waits: true,
			spec: volume("projected: {sources: [{podCertificate: {signerName: example.com/nobody, keyType: ED25519, credentialBundlePath: bundle.pem}}]}")},
		rehearsedPod{name: "token", reason: "TokenNotHeld", container: rehearsedImage, spec: "schedulerName: nobody\n  serviceAccountName: leaves", waits: true},
		rehearsedPod{name: "ended", reason: "PodHasEnded", container: rehearsedImage, spec: "activeDeadlineSeconds: 1", waits: true},

		// These run without a default route, too: the Node keeps its address.
		rehearsedPod{name: "host", container: rehearsedImage + `, env: [{name: LISTEN, value: ":18091"}]`, spec: "hostNetwork: true"},
		rehearsedPod{name: "address", container: rehearsedImage + `, env: [{name: A, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}]`},
	)
}

func (p rehearsedPod) yaml() string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {starts: "%[2]t"}%[3]s}
spec:
  %[4]s
  tolerations: [{operator: Exists}]
  terminationGracePeriodSeconds: 1
  containers: [{name: c, %[5]s}]
  %[6]s
---
`, p.name, !p.waits, p.metadata, map[bool]string{true: "", false: "nodeName: edge1"}[p.name == "token"], p.container, p.spec)
}

// startRehearsed makes the pods, and waits for those that start.
func (s *system) startRehearsed(ns string, all []rehearsedPod) []corev1.Pod {
	s.T.Helper()
	s.driver(ns, "plugin")
	s.WaitFor("the Node to have its device", func(ctx context.Context) error {
		n, err := s.Client.CoreV1().Nodes().Get(ctx, "edge1", metav1.GetOptions{})
		if err == nil && n.Status.Allocatable.Name("devices.example/thing", resource.DecimalSI).IsZero() {
			err = fmt.Errorf("%v", n.Status.Allocatable)
		}
		return err
	})
	s.onHost("edge1", "ctr", "--namespace=k8s.io", "images", "tag", "--force", "skerry.local/sample:1", goneImage)
	s.Apply(ns, fmt.Sprintf(`
apiVersion: v1
kind: ConfigMap
metadata: {name: needed}
data: {a: b}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: keys}
data: {a: b}
---
apiVersion: v1
kind: Secret
metadata: {name: needed}
stringData: {a: b}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: leaves}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: detached-%[1]s}
spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], storageClassName: "", claimRef: {namespace: %[1]s, name: detached}, csi: {driver: nosuch.example, volumeHandle: %[1]s}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: detached}
spec: {accessModes: [ReadWriteOnce], storageClassName: "", volumeName: detached-%[1]s, resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: unbound}
spec: {accessModes: [ReadWriteOnce], storageClassName: "", resources: {requests: {storage: 1Gi}}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: unallocated}
spec: {devices: {requests: [{name: card, exactly: {deviceClassName: nosuch}}]}}
`, ns))
	s.T.Cleanup(func() {
		_ = s.Client.CoreV1().PersistentVolumes().Delete(context.WithoutCancel(s.T.Context()), "detached-"+ns, metav1.DeleteOptions{})
	})
	var text strings.Builder
	starts := 0
	for _, p := range all {
		text.WriteString(p.yaml())
		if !p.waits {
			starts++
		}
	}
	s.Apply(ns, text.String())
	// Its account goes before a node may ask for a token.
	s.Kubectl("delete", "serviceaccount", "-n", ns, "leaves")
	s.Check(s.Client.CoreV1().Pods(ns).Bind(s.T.Context(), &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "token"}, Target: corev1.ObjectReference{Kind: "Node", Name: "edge1"}}, metav1.CreateOptions{}))
	return s.WaitPods(ns, "starts=true", "edge1", starts)
}

// seedCauses removes things that pods started with: an image, objects and a key, the credentials of
// an image, and a device plugin.
func (s *system) seedCauses(ns string, pods []corev1.Pod) {
	s.T.Helper()
	s.onHost("edge1", "ctr", "--namespace=k8s.io", "images", "rm", goneImage)
	s.Kubectl("delete", "-n", ns, "configmap/needed", "secret/needed", "daemonset/plugin")
	s.Kubectl("patch", "configmap", "-n", ns, "keys", "--type=merge", "-p", `{"data":{"a":null,"b":"c"}}`)
	at := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Name == "credentials" })
	id := pods[at].Status.ContainerStatuses[0].ImageID
	id = id[strings.LastIndex(id, "sha256:"):]
	record := fmt.Sprintf(`{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1","lastUpdatedTime":"2026-01-01T00:00:00Z","imageRef":%q,"credentialMapping":`+
		`{"skerry.local/pause":{"kubernetesSecrets":[{"uid":"another","namespace":"x","name":"y","credentialHash":"z"}]}}}`, id)
	file := func() string { // a boot changes the path
		return s.path("edge1", filepath.Join("/var/lib/kubelet/image_manager/pulled", fmt.Sprintf("sha256-%x", sha256.Sum256([]byte(id)))))
	}
	s.Check(os.WriteFile(file(), []byte(record), 0o600))
	s.T.Cleanup(func() { _ = os.Remove(file()) })
}

// Causes are put into pods; the rehearsal names each of them and no other pod; then the device
// boots without a link, and exactly those pods don't run; two of them are withheld from the
// kubelet. Then the image of sandboxes is gone, and no pod runs after a boot; containerd is down,
// which is no cause of a single pod; and the store is lost, so that the device does not know its
// pods.
func TestOperate_10_RehearsalPredictsAnOfflineReboot(t *testing.T) {
	s := newSystem(t)
	s.plugin()
	ns := s.Namespace()
	healthy := 8
	if os.Getenv("SKERRY_LONG") != "" {
		healthy = 50
	}
	all, want := rehearsedPods(healthy), map[string]string{}
	for _, p := range all {
		if p.reason != "" {
			want[p.name] = p.reason
		}
	}
	pods := s.startRehearsed(ns, all)
	s.seedCauses(ns, pods)
	s.WaitFor("the rehearsal to predict all of it and nothing else", func(ctx context.Context) error {
		got, _, err := s.rehearsed(ctx, "edge1")
		if err != nil {
			return err
		}
		return predicts(got, ns, want)
	})
	if out, err := s.Run(t.Context(), "kubectl", "skerry", "rehearse", "edge1"); err == nil || !strings.Contains(out, ns+"/image ") || !strings.Contains(out, "-> crictl pull "+goneImage) {
		t.Errorf("through the link: %v: %s", err, out)
	}

	s.Cut("edge1")
	s.lease("edge1", lab.Lease{NoRoute: true})
	got, _, err := s.rehearsed(t.Context(), "edge1")
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
	got, _, err = s.rehearsed(t.Context(), "edge1")
	s.Check(err)
	for _, name := range []string{"plugin", "singleton"} {
		if !slices.Contains(got[ns+"/"+name], "PodWithheld") {
			t.Errorf("%s waits after the boot, and its causes are %v", name, got[ns+"/"+name])
		}
	}
	s.withoutSandboxes(ns, pods[slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Name == "well-0" })])

	s.Check(s.Trial.Stop(t.Context(), "edge1", "containerd"))
	t.Cleanup(func() { _ = s.Trial.Start(context.Background(), "edge1", "containerd") }) // it runs, unless the test failed
	s.waitDeviceCause("NotKnown the container runtime's images can't be read")
	s.Start("edge1", "containerd")
	s.Kill("edge1", "edgecore")
	store := s.path("edge1", storeFile)
	s.Check(os.Rename(store, store+".away"))
	t.Cleanup(func() { _ = os.Remove(store + ".away") })
	s.Start("edge1", "edgecore")
	s.waitDeviceCause("NotKnown the pods of this device can't be read: ")

	s.Check(s.Trial.Lease(t.Context(), "edge1", lab.Lease{}))
	s.Heal("edge1")
	s.waitLinked("edge1")
	s.WaitFor("the rehearsal to know all again", func(ctx context.Context) error {
		got, _, err := s.rehearsed(ctx, "edge1")
		if err == nil && len(got["device"]) > 0 {
			err = fmt.Errorf("%q", got["device"])
		}
		return err
	})
}

// waitDeviceCause waits until the rehearsal has a cause for all pods of edge1 that begins so.
func (s *system) waitDeviceCause(want string) {
	s.T.Helper()
	s.WaitFor("the rehearsal to report "+want, func(ctx context.Context) error {
		got, _, err := s.rehearsed(ctx, "edge1")
		if err == nil && !slices.ContainsFunc(got["device"], func(c string) bool { return strings.HasPrefix(c, want) }) {
			err = fmt.Errorf("%q", got["device"])
		}
		return err
	})
}

// withoutSandboxes boots edge1 without the image of sandboxes, and then with it.
func (s *system) withoutSandboxes(ns string, healthy corev1.Pod) {
	s.T.Helper()
	const setting = "modules.edged.sandboxImageArchive="
	file, err := os.ReadFile(s.path("edge1", "/etc/skerry/edgecore.yaml"))
	s.Check(err)
	_, archive, _ := strings.Cut(string(file), "sandboxImageArchive: ")
	archive, _, _ = strings.Cut(archive, "\n")
	giveBack := sync.OnceFunc(func() {
		s.Check(s.Trial.Set(context.WithoutCancel(s.T.Context()), "edge1", []string{setting + archive}))
	})
	s.T.Cleanup(giveBack)
	s.Check(s.Trial.Set(s.T.Context(), "edge1", []string{setting + "/var/lib/none.tar"}))
	s.onHost("edge1", "ctr", "--namespace=k8s.io", "images", "rm", "--sync", "skerry.local/pause:1")
	s.WaitFor("the rehearsal to miss the image of sandboxes", func(ctx context.Context) error {
		got, _, err := s.rehearsed(ctx, "edge1")
		if err == nil && (len(got["device"]) != 1 || !strings.HasPrefix(got["device"][0], "SandboxImageMissing ")) {
			err = fmt.Errorf("%v", got["device"])
		}
		return err
	})
	s.Reboot("edge1", true)
	s.WaitFor("the kubelet to try to start a pod", func(ctx context.Context) error {
		out, err := s.TryEdgeKubectl(ctx, "edge1", "get", "events", "-n", ns, "--field-selector", "involvedObject.name="+healthy.Name+",reason=FailedCreatePodSandBox", "-o", "jsonpath={.items[*].message}")
		if err == nil && !strings.Contains(out, "skerry.local/pause:1") {
			err = fmt.Errorf("no event: %s", out)
		}
		return err
	})
	if running := s.Containers("edge1"); len(running) > 0 {
		s.T.Errorf("%d containers run without the image of sandboxes", len(running))
	}
	giveBack()
	s.waitRunsAgain("edge1", healthy)
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
