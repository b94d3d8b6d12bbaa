package e2e_test

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/cluster/registry"
)

// TestEveryday_26: the pull Secret of a running pod is replaced by another one with other
// credentials, with which the device has never pulled: after a reboot without a link and without
// the registry the pod runs again. A pod with a Secret of its own that has never run with the image
// waits for the registry.
func TestEveryday_26_PullSecretIsReplacedBeforeACut(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	r := s.newRegistry("./tests/images/devices")
	r.Password = "open sesame"
	s.serve("edge1", r)
	secret := func(name, password string) string {
		return `apiVersion: v1
kind: Secret
metadata: {name: ` + name + `}
type: kubernetes.io/dockerconfigjson
stringData: {.dockerconfigjson: '{"auths": {"` + registry.Address + `": {"username": "pod", "password": "` + password + `"}}}'}
`
	}
	// A name of its own: the kubelet's records of pulls are by name.
	pod := func(name, secret string) string {
		return `apiVersion: v1
kind: Pod
metadata: {name: ` + name + `, labels: {app: ` + name + `}}
spec:
  nodeName: edge1
  tolerations: [{operator: Exists}]
  terminationGracePeriodSeconds: 1
  imagePullSecrets: [{name: ` + secret + `}]
  containers: [{name: c, image: "` + registry.Address + `/everyday/till:1", imagePullPolicy: IfNotPresent, args: [wait]}]
`
	}
	s.Apply(ns, secret("registry", "open sesame"))
	s.Apply(ns, pod("till", "registry"))
	till := s.WaitPods(ns, "app=till", "edge1", 1)[0]

	s.Check(s.Client.CoreV1().Secrets(ns).Delete(t.Context(), "registry", metav1.DeleteOptions{}))
	s.Apply(ns, secret("registry", "close sesame"))
	s.Apply(ns, secret("foreign", "no sesame"))
	replaced, err := s.Client.CoreV1().Secrets(ns).Get(t.Context(), "registry", metav1.GetOptions{})
	s.Check(err)
	s.WaitFor("the device to have the new Secret", func(ctx context.Context) error {
		has, err := s.device("edge1").CoreV1().Secrets(ns).Get(ctx, "registry", metav1.GetOptions{})
		if err == nil && has.UID != replaced.UID {
			err = fmt.Errorf("it has %s, not %s", has.UID, replaced.UID)
		}
		return err
	})
	s.Apply(ns, pod("other", "foreign")) // the registry refuses it
	s.waitDevice("edge1", ns, "other", pulls)
	s.Reboot("edge1", true) // the registry goes with it
	s.waitRunsAgain("edge1", till)
	s.waitDevice("edge1", ns, "other", pulls)
	s.Heal("edge1")
	s.WaitReady("edge1", true)
}

// pulls returns nil for a pod that waits for its image.
func pulls(p *corev1.Pod) error {
	for _, c := range p.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil && (w.Reason == "ErrImagePull" || w.Reason == "ImagePullBackOff") {
			return nil
		}
	}
	return fmt.Errorf("it is %+v", p.Status)
}
