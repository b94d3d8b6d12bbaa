package podstream

import (
	"fmt"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Subresource is one of those that a kubelet's server answers.
type Subresource struct {
	Name, Kind string
	Streams    bool   // it takes the connection over, and passes by admission
	path       string // of the kubelet, up to the namespace
	container  bool   // it is of a container
	// flags and values are the parameters of the API, with the kubelet's names for them.
	flags, values map[string]string
}

var (
	remote = map[string]string{"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"}
	logs   = map[string]string{
		"follow": "follow", "previous": "previous", "timestamps": "timestamps", "sinceSeconds": "sinceSeconds", "sinceTime": "sinceTime",
		"tailLines": "tailLines", "limitBytes": "limitBytes", "stream": "stream",
	}
)

// Subresources are those of pods.
func Subresources() []Subresource {
	return []Subresource{
		{Name: "log", Kind: "Pod", path: "containerLogs", container: true, values: logs},
		{Name: "exec", Kind: "PodExecOptions", Streams: true, path: "exec", container: true, flags: remote, values: map[string]string{"command": "command"}},
		{Name: "attach", Kind: "PodAttachOptions", Streams: true, path: "attach", container: true, flags: remote},
		{Name: "portforward", Kind: "PodPortForwardOptions", Streams: true, path: "portForward", values: map[string]string{"ports": "port"}},
	}
}

// Location is where the kubelet answers for a subresource of a pod. Every part of it that a user
// chose is checked, or escaped as one part of the path.
func (s Subresource) Location(pod *corev1.Pod, asked url.Values) (*url.URL, error) {
	parts := []string{s.path, pod.Namespace, pod.Name}
	if s.container {
		name, err := container(pod, asked.Get("container"))
		if err != nil {
			return nil, err
		}
		parts = append(parts, name)
	}
	q := url.Values{}
	for name, kubelets := range s.values {
		for _, value := range asked[name] {
			q.Add(kubelets, value)
		}
	}
	for name, kubelets := range s.flags {
		if value := asked.Get(name); value == "true" || value == "1" {
			q.Set(kubelets, "1") // the one value that a kubelet takes for yes
		}
	}
	return &url.URL{Scheme: "http", Host: pod.Spec.NodeName, Path: "/" + strings.Join(parts, "/"), RawQuery: q.Encode()}, nil
}

// container is the one that is asked for, or the only one.
func container(pod *corev1.Pod, asked string) (string, error) {
	var names []string
	for _, c := range pod.Spec.Containers {
		names = append(names, c.Name)
	}
	if asked == "" {
		if len(names) == 1 {
			return names[0], nil
		}
		return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s, choose one of: %v", pod.Name, names))
	}
	for _, c := range pod.Spec.InitContainers {
		names = append(names, c.Name)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		names = append(names, c.Name)
	}
	for _, n := range names {
		if n == asked {
			return n, nil
		}
	}
	return "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", asked, pod.Name))
}
