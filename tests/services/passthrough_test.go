package services_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// multusCRD is as much of Multus as edgecore meets: the kind.
const multusCRD = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: network-attachment-definitions.k8s.cni.cncf.io}
spec:
  group: k8s.cni.cncf.io
  scope: Namespaced
  names: {plural: network-attachment-definitions, singular: network-attachment-definition, kind: NetworkAttachmentDefinition, shortNames: [net-attach-def]}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {config: {type: string}}}}}}
`

// portPod is a pod on edge1 that asks for a port.
func portPod(name, port string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: sample, annotations: {skerry.io/ethernet: %s}}
spec:
  nodeName: edge1
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: "skerry.local/sample:1", imagePullPolicy: IfNotPresent}]
`, name, port)
}

// problem waits until the agent's problem on edge1 has the text in it; "" for no problem.
func (s *system) problem(text string) {
	s.T.Helper()
	s.WaitFor(fmt.Sprintf("edgecore's status to say %q", text), func(ctx context.Context) error {
		out, err := s.tryOn(ctx, "edge1", s.Root+"/bin/edgecore status -o json")
		if err != nil {
			return err
		}
		var all struct {
			Agents []struct{ Name, Problem string }
		}
		if err := json.Unmarshal([]byte(out), &all); err != nil {
			return err
		}
		for _, a := range all.Agents {
			if a.Name == "passthrough" && strings.Contains(a.Problem, text) && (text != "" || a.Problem == "") {
				return nil
			}
		}
		return fmt.Errorf("it says %+v", all.Agents)
	})
}

// definition waits until there is a definition, and returns its UID; or, with there false, until it
// is gone.
func (s *system) definition(name string, there bool) (uid string) {
	s.T.Helper()
	s.WaitFor(fmt.Sprintf("NetworkAttachmentDefinition %s: %v", name, there), func(ctx context.Context) error {
		out, err := s.Run(ctx, "kubectl", "-n", "sample", "get", "net-attach-def", name, "--ignore-not-found", "-o", "jsonpath={.metadata.uid} {.spec.config}")
		if err != nil {
			return err
		}
		if (out != "") != there {
			return fmt.Errorf("there is %q", out)
		}
		var config string
		uid, config, _ = strings.Cut(out, " ")
		if there && !strings.Contains(config, `"type":"host-device","device":"`) {
			return errors.New(config)
		}
		return nil
	})
	return uid
}

func TestServices_10_PassthroughAttachmentIsShared(t *testing.T) {
	s := newSystem(t)
	s.on("edge1", "ip link add eth9 type veth peer name eth9peer")
	t.Cleanup(func() { _, _ = s.tryOn(context.Background(), "edge1", "ip link del eth9; ip link del eth8") })
	s.make(portPod("first", "eth9"))
	s.problem("install Multus")
	if out := s.EdgeKubectl("edge1", "-n", "sample", "get", "events", "--field-selector=reason=EthernetRefused,involvedObject.name=first"); !strings.Contains(out, "install Multus") {
		t.Errorf("the pod's events:\n%s", out)
	}
	if out := s.on("edge1", "ip -o link show eth9"); !strings.Contains(out, ",UP") {
		t.Errorf("the port is not on: %s", out)
	}

	s.make(multusCRD)
	uid := s.definition("host-eth9-edge1", true)
	s.problem("")
	s.make(portPod("second", "eth9"))
	s.WaitPods("sample", "", "edge1", 4) // with the sample application and its store
	s.Kubectl("-n", "sample", "delete", "pod", "first")
	s.WaitPods("sample", "", "edge1", 3)
	// A port of another pod that comes and goes later than the first went.
	s.on("edge1", "ip link add eth8 type veth peer name eth8peer")
	s.make(portPod("third", "eth8"))
	s.definition("host-eth8-edge1", true)
	s.Kubectl("-n", "sample", "delete", "pod", "third")
	s.definition("host-eth8-edge1", false)
	if now := s.definition("host-eth9-edge1", true); now != uid {
		t.Errorf("it was made again: %s, then %s", uid, now)
	}
	s.Kubectl("-n", "sample", "delete", "pod", "second")
	s.definition("host-eth9-edge1", false)

	// Offline: a pod that came while its port was missing.
	s.on("edge1", "ip link del eth8")
	s.make(portPod("fourth", "eth8"))
	s.problem("this device has none of that name")
	s.Cut("edge1")
	s.WaitReady("edge1", false)
	s.on("edge1", "ip link add eth8 type veth peer name eth8peer")
	s.problem("can't be made while this device is offline")
	s.Heal("edge1")
	s.definition("host-eth8-edge1", true)
	// A node can't make another node's objects.
	if out, err := s.Run(t.Context(), "kubectl", "--as=system:node:edge2", "--as-group=system:nodes", "-n", "sample", "delete", "net-attach-def", "host-eth8-edge1"); err == nil {
		t.Errorf("edge2 may delete edge1's: %s", out)
	}
	s.Kubectl("-n", "sample", "delete", "pod", "fourth")
	s.definition("host-eth8-edge1", false)
}
