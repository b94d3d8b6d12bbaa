package e2e_test

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestEveryday_18: a pod that was resized in place is as large after a reboot without a link. Pods
// that need optional features of the container runtime, an image volume and a user namespace, run
// again too, or the device names them with the reason. So does one with a certificate of its own,
// which a cluster issues after each boot: it runs again with the link.
func TestEveryday_18_ResizedPodsAndWhatCantComeBack(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	pod := func(name, spec string) string {
		return `
apiVersion: v1
kind: Pod
metadata: {name: ` + name + `}
spec:
  nodeName: edge1
  tolerations: [{operator: Exists}]
  ` + spec + "\n---\n"
	}
	const signer = "example.com/devices"
	s.signPods(ns, signer)
	const container = `{name: c, image: "skerry.local/sample:1", imagePullPolicy: IfNotPresent, resources: {requests: {cpu: 50m}, limits: {cpu: 100m}}`
	s.Apply(ns, pod("resized", "containers: ["+container+"}]")+
		pod("image", "containers: ["+container+`, volumeMounts: [{name: v, mountPath: /data}]}]
  volumes: [{name: v, image: {reference: "skerry.local/sample:1", pullPolicy: IfNotPresent}}]`)+
		pod("users", "hostUsers: false\n  containers: ["+container+"}]")+
		pod("certified", "containers: ["+container+`, volumeMounts: [{name: v, mountPath: /certificate}]}]
  volumes: [{name: v, projected: {sources: [{podCertificate: {signerName: `+signer+`, keyType: ED25519, credentialBundlePath: bundle.pem}}]}}]`))
	s.waitDevice("edge1", ns, "resized", func(p *corev1.Pod) error {
		if !running(p) {
			return fmt.Errorf("%+v", p.Status)
		}
		return nil
	})
	s.waitDevice("edge1", ns, "certified", func(p *corev1.Pod) error {
		if !running(p) {
			return fmt.Errorf("%+v", p.Status)
		}
		return nil
	})
	certified, err := s.Client.CoreV1().Pods(ns).Get(t.Context(), "certified", metav1.GetOptions{})
	s.Check(err)
	resized, err := s.Client.CoreV1().Pods(ns).Get(t.Context(), "resized", metav1.GetOptions{})
	s.Check(err)
	const want = "200m"
	resized.Spec.Containers[0].Resources.Limits[corev1.ResourceCPU] = resource.MustParse(want)
	resized, err = s.Client.CoreV1().Pods(ns).UpdateResize(t.Context(), "resized", resized, metav1.UpdateOptions{})
	s.Check(err)
	large := func(p *corev1.Pod) error {
		if !running(p) || p.UID != resized.UID {
			return fmt.Errorf("%s, %+v", p.UID, p.Status)
		}
		if r := p.Status.ContainerStatuses[0].Resources; r == nil || r.Limits.Cpu().String() != want {
			return fmt.Errorf("its resources are %+v", r)
		}
		return nil
	}
	s.waitDevice("edge1", ns, "resized", large)

	s.Reboot("edge1", true)
	s.waitRunsAgain("edge1", *resized)
	s.waitDevice("edge1", ns, "resized", large)
	device := s.device("edge1")
	s.WaitFor("every other pod to run, or to be named", func(ctx context.Context) error {
		var d struct {
			Pods struct {
				NotRunning []struct{ Namespace, Name, Reason, Message string }
			}
		}
		if err := s.EdgeStatus(ctx, "edge1", &d); err != nil {
			return err
		}
		reasons := map[string]string{}
		for _, p := range d.Pods.NotRunning {
			if p.Namespace == ns {
				reasons[p.Name] = p.Message
			}
		}
		for _, name := range []string{"image", "users", "certified"} {
			p, err := device.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if !running(p) && reasons[name] == "" {
				return fmt.Errorf("%s does not run and is not named with a reason: %+v", name, d.Pods.NotRunning)
			}
		}
		t.Logf("named: %+v", d.Pods.NotRunning)
		return nil
	})
	s.Heal("edge1")
	s.WaitReady("edge1", true)
	s.waitRunsAgain("edge1", *certified)
}
