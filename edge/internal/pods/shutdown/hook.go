package shutdown

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skerry-io/skerry/common/rerun"
)

// Runtime is the part of the container runtime's own API (CRI) that ends containers.
type Runtime interface {
	ListContainers(ctx context.Context, filter *runtimev1.ContainerFilter) ([]*runtimev1.Container, error)
	// StopContainer sends the container's signal, waits for timeout seconds, kills it, and returns
	// when it has ended. One that has ended before is no error.
	StopContainer(ctx context.Context, containerID string, timeout int64) error
	ExecSync(ctx context.Context, containerID string, cmd []string, timeout time.Duration) (stdout, stderr []byte, err error)
	PodSandboxStatus(ctx context.Context, podSandboxID string, verbose bool) (*runtimev1.PodSandboxStatusResponse, error)
	Close(ctx context.Context) error
}

// maxAnswer bounds the read part of a hook's answer, in bytes: it is ignored.
const maxAnswer = 10 << 10

// preStop runs a container's preStop hook; it ends with ctx.
func preStop(ctx context.Context, runtime Runtime, c Container) error {
	switch h := c.PreStop; {
	case h.Exec != nil:
		deadline, _ := ctx.Deadline()
		_, _, err := runtime.ExecSync(ctx, c.ID, h.Exec.Command, max(time.Until(deadline), time.Second))
		return err
	case h.HTTPGet != nil:
		return get(ctx, runtime, c, h.HTTPGet)
	case h.Sleep != nil:
		return rerun.Pause(ctx, time.Duration(h.Sleep.Seconds)*time.Second)
	}
	return errors.New("a hook of a kind that no kubelet runs")
}

func get(ctx context.Context, runtime Runtime, c Container, h *corev1.HTTPGetAction) error {
	host := h.Host
	if host == "" {
		sandbox, err := runtime.PodSandboxStatus(ctx, c.Sandbox, false)
		if err != nil {
			return fmt.Errorf("asking for the pod's address: %w", err)
		}
		if host = sandbox.GetStatus().GetNetwork().GetIp(); host == "" { // it is on the host's network
			host = "127.0.0.1"
		}
	}
	port, err := portOf(c, h.Port)
	if err != nil {
		return err
	}
	at, err := url.Parse(h.Path)
	if err != nil {
		return fmt.Errorf("reading the hook's path: %w", err)
	}
	at.Scheme, at.Host = strings.ToLower(string(h.Scheme)), net.JoinHostPort(host, strconv.Itoa(port))
	if at.Scheme == "" {
		at.Scheme = "http"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), http.NoBody)
	if err != nil {
		return err
	}
	for _, header := range h.HTTPHeaders {
		if http.CanonicalHeaderKey(header.Name) == "Host" {
			request.Host = header.Value
			continue
		}
		request.Header.Add(header.Name, header.Value)
	}
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // as the kubelet: a pod's certificate is nobody's
	}}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	_, _ = io.CopyN(io.Discard, answer.Body, maxAnswer) // it counts that the pod was asked
	return answer.Body.Close()
}

func portOf(c Container, port intstr.IntOrString) (int, error) {
	if port.Type == intstr.Int {
		return port.IntValue(), nil
	}
	for _, p := range c.Ports {
		if p.Name == port.StrVal {
			return int(p.ContainerPort), nil
		}
	}
	if n, err := strconv.Atoi(port.StrVal); err == nil {
		return n, nil
	}
	return 0, fmt.Errorf("the container has no port %q", port.StrVal)
}
