package e2e_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestEveryday_27: a device plugin does not answer Allocate. The kubelet, which waits for it in its
// only loop, is freed after a minute: other pods start, the device names the plugin, and once it
// answers again its pod runs.
func TestEveryday_27_DevicePluginHangs(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.driver(ns, "plugin")
	hangs := s.path("edge1", "/var/lib/kubelet/devices.example.hangs")
	s.Check(os.WriteFile(hangs, nil, 0o600))
	t.Cleanup(func() { _ = os.Remove(hangs) })
	s.Apply(ns, deviceUser("resources: {limits: {devices.example/thing: 1}}", ""))
	s.Apply(ns, samplePod("other", "edge1"))
	s.WaitPods(ns, "app=other", "edge1", 1)
	s.WaitFor("the status to name the plugin", func(ctx context.Context) error {
		var d struct{ KubeletNotes []string }
		if err := s.EdgeStatus(ctx, "edge1", &d); err != nil {
			return err
		}
		if notes := strings.Join(d.KubeletNotes, "\n"); !strings.Contains(notes, "devices.example.sock") {
			return fmt.Errorf("the notes: %q", notes)
		}
		return nil
	})
	s.Check(os.Remove(hangs))
	// The kubelet rejects its pods until the plugin has registered again; controllers replace them.
	s.WaitFor("the plugin's pod to run", func(ctx context.Context) error {
		p, err := s.Client.CoreV1().Pods(ns).Get(ctx, "user", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if p.Status.Phase == corev1.PodFailed {
			s.Kubectl("delete", "pod", "-n", ns, "user")
			s.Apply(ns, deviceUser("resources: {limits: {devices.example/thing: 1}}", ""))
		}
		if p.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("it is %s: %s", p.Status.Phase, p.Status.Message)
		}
		return nil
	})
}
