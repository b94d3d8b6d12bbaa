package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestEveryday_08: a pod with a device of a device plugin, which is a pod itself, runs again after
// reboots without a link and with one, and the kubelet never rejects it. Where the plugin does not
// come, the pod is named, and runs once it has.
func TestEveryday_08_PodsOfDevicePluginsComeBack(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.driver(ns, "plugin")
	s.Apply(ns, deviceUser("resources: {limits: {devices.example/thing: 1}}", ""))
	user := s.WaitPods(ns, "app=user", "edge1", 1)[0]
	seen := s.watchEnds(ns)
	events := func(ctx context.Context, reason string) (string, error) {
		return s.TryEdgeKubectl(ctx, "edge1", "get", "events", "-n", ns, "--field-selector", "involvedObject.name=user,reason="+reason, "-o", "jsonpath={.items[*].message}")
	}
	notRejected := func(when string) {
		t.Helper()
		for _, reason := range []string{"UnexpectedAdmissionError", "RestartedOnDevice"} {
			if out := s.Must(events(t.Context(), reason)); out != "" {
				t.Errorf("%s: %s: %s", when, reason, out)
			}
		}
	}

	for range reboots(10) {
		s.Reboot("edge1", true)
		s.waitRunsAgain("edge1", user)
	}
	notRejected("without a link")
	s.Heal("edge1")
	s.WaitReady("edge1", true)
	s.Reboot("edge1", false)
	s.waitRunsAgain("edge1", user)
	notRejected("with a link")
	s.waitDelivered("edge1")
	if ended := seen.of(user.UID); ended != "" {
		t.Errorf("the cluster saw %s", ended)
	}

	absent := func() string { return s.path("edge1", "/var/lib/kubelet/devices.example.absent") } // a boot changes the path
	s.Check(os.WriteFile(absent(), nil, 0o600))
	t.Cleanup(func() { _ = os.Remove(absent()) })
	s.Check(s.Trial.Set(t.Context(), "edge1", []string{"modules.edged.devicePluginTimeout=20s"}))
	t.Cleanup(func() {
		if err := s.Trial.Set(context.WithoutCancel(t.Context()), "edge1", []string{"modules.edged.devicePluginTimeout=5m"}); err != nil {
			t.Error(err)
		}
	})
	s.Reboot("edge1", true)
	s.WaitFor("the pod to be named while it waits", func(ctx context.Context) error {
		var d struct {
			Pods struct {
				NotRunning []struct{ Name, State, Message string }
			}
		}
		if err := s.EdgeStatus(ctx, "edge1", &d); err != nil {
			return err
		}
		for _, p := range d.Pods.NotRunning {
			if p.Name == "user" && p.State == "withheld" && strings.Contains(p.Message, "devices.example/thing") {
				return nil
			}
		}
		return fmt.Errorf("%+v", d.Pods.NotRunning)
	})
	s.WaitFor("an event after the limit", func(ctx context.Context) error {
		out, err := events(ctx, "DevicePluginTimeout")
		if err == nil && !strings.Contains(out, "no device plugin has registered devices.example/thing") {
			err = errors.New(out)
		}
		return err
	})
	s.Check(os.Remove(absent()))
	s.waitRunsAgain("edge1", user)
	s.Heal("edge1")
	s.WaitReady("edge1", true)
}

// waitRunsAgain waits until a pod that the device shows is the one that it was, and its container
// runs.
func (s *system) waitRunsAgain(node string, want corev1.Pod) {
	s.T.Helper()
	s.waitDevice(node, want.Namespace, want.Name, func(p *corev1.Pod) error {
		if err := runsAs(want, p); err != nil {
			return err
		}
		if !s.runs(node, p.Status.ContainerStatuses[0].ContainerID) {
			return errors.New("the container of its status does not run")
		}
		return nil
	})
}
