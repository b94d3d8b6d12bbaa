package cluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/cluster/process"
)

// StartProgram runs a program with this control plane until the test ends. Its log is shown when
// the test has failed; it is an error when it does not stop within patience.
func StartProgram(t testing.TB, name string, spec process.Spec, patience time.Duration) {
	t.Helper()
	spec.Bound = true
	child, err := process.Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			const most = 64 << 10
			raw, _ := os.ReadFile(spec.Log)
			t.Logf("end of the log of %s:\n%s", name, raw[max(0, len(raw)-most):])
		}
		if err := child.Stop(context.Background(), patience); err != nil {
			t.Error(err)
		}
	})
}

// WriteKubeconfig writes a kubeconfig for a server with a token.
func WriteKubeconfig(cfg *rest.Config, file string) error {
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData}
	c.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: cfg.BearerToken}
	c.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	c.CurrentContext = "x"
	if err := clientcmd.WriteToFile(*c, file); err != nil {
		return fmt.Errorf("writing a kubeconfig: %w", err)
	}
	return nil
}

// AccountKubeconfig is WriteKubeconfig for a ServiceAccount of cloudcore's namespace.
func (c *ControlPlane) AccountKubeconfig(t testing.TB, name, file string) {
	t.Helper()
	if err := WriteKubeconfig(c.ServiceAccount(t, v1alpha1.SystemNamespace, name), file); err != nil {
		t.Fatal(err)
	}
}

// FreeAddresses are loopback addresses without a listener now, one for each of the networks.
func FreeAddresses(networks ...string) (found []string, err error) {
	for _, network := range networks {
		if network == "udp" {
			c, err := net.ListenPacket(network, "127.0.0.1:0")
			if err != nil {
				return nil, fmt.Errorf("looking for a free port: %w", err)
			}
			defer c.Close() // at the end, so that all differ
			found = append(found, c.LocalAddr().String())
			continue
		}
		l, err := net.Listen(network, "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("looking for a free port: %w", err)
		}
		defer l.Close()
		found = append(found, l.Addr().String())
	}
	return found, nil
}

// FreeAddress is one of FreeAddresses.
func FreeAddress(t testing.TB, network string) string {
	t.Helper()
	found, err := FreeAddresses(network)
	if err != nil {
		t.Fatal(err)
	}
	return found[0]
}

// Forward leads the connections of a listener on to the address that each is given, until the test
// ends.
func Forward(t testing.TB, from net.Listener, to func() string) {
	t.Helper()
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); from.Close(); all.Wait() })
	all.Go(func() {
		for {
			near, err := from.Accept()
			if err != nil {
				return
			}
			all.Go(func() { forward(ctx, near, to()) })
		}
	})
}

func forward(ctx context.Context, near net.Conn, to string) {
	defer near.Close()
	far, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer far.Close()
	defer context.AfterFunc(ctx, func() { near.Close(); far.Close() })()
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.Copy(near, far); near.Close() })
	both.Go(func() { _, _ = io.Copy(far, near); far.Close() })
	both.Wait()
}
