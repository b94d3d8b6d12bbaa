package console_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"

	"github.com/skerry-io/skerry/cloud/internal/access/console"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
)

func vmi(name, node, phase string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": map[string]any{"namespace": "a", "name": name, "resourceVersion": "1"},
		"status": map[string]any{"nodeName": node, "phase": phase},
	}}
}

// lab is a Console with machines of its own; forbidden nodes have no right, and Kubernetes' end of
// each console echoes.
type lab struct {
	*console.Console
	machines *fake.FakeDynamicClient

	mu    sync.Mutex
	paths []string // that were dialled
}

func newLab(config console.Config, machines ...runtime.Object) *lab {
	l := &lab{machines: fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{console.Machines(): "VirtualMachineInstanceList"}, machines...)}
	config.Machines = l.machines
	config.Review = func(_ context.Context, node types.NodeName, at kube.Attributes) (kube.Decision, error) {
		right := at.Verb == "get" && at.Resource.Group == "subresources.kubevirt.io" && at.Resource.Resource == "virtualmachineinstances" && at.Namespace == "a"
		return kube.Decision{Allowed: right && node != "forbidden" && (at.Subresource == "vnc" || at.Subresource == "console")}, nil
	}
	config.Dial = func(_ context.Context, node types.NodeName, path string) (net.Conn, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.paths = append(l.paths, string(node)+" "+path)
		near, far := net.Pipe()
		go func() { _, _ = io.Copy(far, far); _ = far.Close() }()
		return near, nil
	}
	l.Console = console.New(config)
	return l
}

func TestAccept_Judges(t *testing.T) {
	for name, test := range map[string]struct {
		node, target string
		want         string // in the refusal; "" without one
		path         string
	}{
		"screen":            {"edge1", "vnc/a/one", "", "edge1 /apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachineinstances/one/vnc"},
		"serial":            {"edge1", "serial/a/one", "", "edge1 /apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachineinstances/one/console"},
		"the end":           {"edge1", "end/a/one", "", ""},
		"another node's":    {"edge2", "vnc/a/one", "no virtual machine a/one runs on this device", ""},
		"none":              {"edge1", "vnc/a/none", "no virtual machine a/none runs on this device", ""},
		"not running":       {"edge1", "vnc/a/slow", `is not running: its phase is "Scheduled"`, ""},
		"no right":          {"forbidden", "vnc/a/none", "have no right to get virtualmachineinstances/vnc", ""},
		"another namespace": {"edge1", "vnc/b/one", "have no right", ""},
		"another kind":      {"edge1", "portforward/a/one", "not to", ""},
		"a path":            {"edge1", "vnc/a/one/../../nodes", "not to", ""},
		"an escape":         {"edge1", "vnc/a/..%2fone", "can't be the name", ""},
		"a query":           {"edge1", "vnc/a/one?as=admin", "can't be the name", ""},
		"nothing":           {"edge1", "", "not to", ""},
		"the kubelet":       {"edge1", "kubelet", "not to", ""},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(console.Config{}, vmi("one", "edge1", "Running"), vmi("slow", "edge1", "Scheduled"))
			conn, err := l.Accept(t.Context(), types.NodeName(test.node), test.target)
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) || len(l.paths) > 0 {
					t.Errorf("got %v, want %q; dialled %q", err, test.want, l.paths)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(l.paths, ","); got != test.path {
				t.Errorf("dialled %q, want %q", got, test.path)
			}
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// reading is the result of a connection's reader in the end.
func reading(conn net.Conn) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := conn.Read(make([]byte, 1))
		done <- err
	}()
	return done
}

func TestAccept_EndsWithTheMachine(t *testing.T) {
	machines := func(l *lab) interface {
		Update(context.Context, *unstructured.Unstructured, metav1.UpdateOptions, ...string) (*unstructured.Unstructured, error)
		Delete(context.Context, string, metav1.DeleteOptions, ...string) error
	} {
		return l.machines.Resource(console.Machines()).Namespace("a")
	}
	for name, test := range map[string]struct {
		end  func(context.Context, *lab) error
		want string
	}{
		"deleted": {func(ctx context.Context, l *lab) error { return machines(l).Delete(ctx, "one", metav1.DeleteOptions{}) }, "has ended"},
		"migrated": {func(ctx context.Context, l *lab) error {
			_, err := machines(l).Update(ctx, vmi("one", "edge2", "Running"), metav1.UpdateOptions{})
			return err
		}, "no virtual machine a/one runs on this device"},
		"stopped": {func(ctx context.Context, l *lab) error {
			_, err := machines(l).Update(ctx, vmi("one", "edge1", "Succeeded"), metav1.UpdateOptions{})
			return err
		}, `its phase is "Succeeded"`},
		"for too long": {func(context.Context, *lab) error { time.Sleep(time.Hour); return nil }, "a console ends after 1h0m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(console.Config{Longest: time.Hour, Most: 2}, vmi("one", "edge1", "Running"))
				var ends []<-chan error
				for _, target := range []string{"vnc/a/one", "end/a/one"} {
					conn, err := l.Accept(t.Context(), "edge1", target)
					if err != nil {
						t.Fatal(err)
					}
					defer conn.Close()
					ends = append(ends, reading(conn))
				}
				synctest.Wait()
				if _, err := l.Accept(t.Context(), "edge1", "vnc/a/one"); err == nil || !strings.Contains(err.Error(), "2 consoles open already") {
					t.Errorf("above the bound: %v", err)
				}
				if err := test.end(t.Context(), l); err != nil {
					t.Fatal(err)
				}
				for _, end := range ends {
					if err := <-end; err == nil || errors.Is(err, io.EOF) || !strings.Contains(err.Error(), test.want) {
						t.Errorf("got %v, want %q", err, test.want)
					}
				}
			})
		})
	}
}

// A device that asks without end is answered without a question to Kubernetes.
func TestAccept_Quota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(console.Config{}, vmi("one", "edge1", "Running"))
		refused := 0
		for range 100 {
			conn, err := l.Accept(t.Context(), "edge1", "end/a/one")
			if err != nil {
				refused++
				continue
			}
			_ = conn.Close()
			synctest.Wait()
		}
		if refused != 80 || len(l.machines.Actions()) > 2*20 {
			t.Errorf("%d of 100 were refused, after %d requests to kube-apiserver", refused, len(l.machines.Actions()))
		}
		conn, err := l.Accept(t.Context(), "edge2", "end/a/one")
		if err == nil || !strings.Contains(err.Error(), "no virtual machine") {
			t.Errorf("another node has %v, %v", conn, err)
		}
	})
}
