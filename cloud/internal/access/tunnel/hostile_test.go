package tunnel_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/cloud/internal/access/tunnel"
	"github.com/skerry-io/skerry/cloud/internal/core/fence"
)

// server sends its name to each connection, on a loopback address of its own, and counts them.
func server(t *testing.T, address, name string) (port string, connections chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	connections = make(chan struct{}, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			connections <- struct{}{}
			_, _ = io.WriteString(conn, name+"\n")
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	_, port, err = net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port, connections
}

// TestAddressesAttractNoStreams: a device reports that it has the address of a webhook's Service,
// of another edge, of an ordinary node, of the control plane's load balancer, and that its kubelet
// listens at their ports. kube-apiserver's requests to them arrive. Then the device writes into
// its own Lease where cloudcore is to look for its link.
func TestAddressesAttractNoStreams(t *testing.T) {
	w := newSystem(t)
	victims := map[string]string{"webhook": "127.0.0.2", "other edge": "127.0.0.3", "ordinary node": "127.0.0.4", "control plane": "127.0.0.5"}
	for name, address := range victims {
		t.Run(name, func(t *testing.T) {
			port, _ := server(t, address, name)
			liar := node("liar", true, address)
			liar.Status.DaemonEndpoints = corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: portOf(t, port)}}
			all := []*corev1.Node{node("edge1", true, "10.0.0.1"), liar}
			switch name {
			case "other edge":
				other := node("edge2", true, address)
				other.Status.DaemonEndpoints = liar.Status.DaemonEndpoints
				all = append(all, other)
			case "ordinary node":
				all = append(all, node("plain1", false, address))
			}
			w.nodes = nodes(t, all...)
			r := w.replica("a")
			attach(t, r, "liar", hello("liar"))
			status, conn := w.ask(r, apiserver, http.MethodConnect, net.JoinHostPort(address, port))
			if !strings.HasPrefix(status, "200") {
				t.Fatalf("the connection is refused: %s", status)
			}
			got := make([]byte, len(name)+1) // the device sends less or something else, and then waits
			if _, err := io.ReadAtLeast(conn, got, 5); err != nil || !strings.HasPrefix(name+"\n", string(got[:5])) {
				t.Errorf("it was led to %q, %v", got, err)
			}
		})
	}

	w.nodes = nodes(t, node("liar", true, "10.0.0.1"), node("edge2", true, "10.0.0.2"))
	r, other := w.replica("a"), w.replica("b")
	port, connections := server(t, "127.0.0.6", "thief")
	thief := net.JoinHostPort("127.0.0.6", port)
	now := time.Now()
	honest := w.announce("edge2", other.address, "b", now)
	for name, value := range map[string]string{
		"an address":                         thief,
		"as replicas write it":               w.announce("liar", thief, "b", now)[:len(w.announce("liar", thief, "b", now))-1] + "x",
		"with a key of its own":              tunnel.NewAnnouncer([32]byte{2}, "b", thief).Announce("liar", now),
		"another address, a replica's word":  strings.Replace(honest, other.address, thief, 1),
		"another node's":                     honest,
		"its own, of a replica that is gone": w.announce("liar", thief, "b", now.Add(-time.Hour)),
		"of the future":                      w.announce("liar", thief, "b", now.Add(time.Hour)),
	} {
		t.Run("a Lease: "+name, func(t *testing.T) {
			w.mu.Lock()
			w.leases["liar"] = &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{fence.TunnelAnnotation: value, fence.InstanceAnnotation: "b"}},
				Spec:       coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: now}},
			}
			w.mu.Unlock()
			if status, _ := w.ask(r, apiserver, http.MethodConnect, "liar:10250"); !strings.HasPrefix(status, "503") || !strings.Contains(status, "no link") {
				t.Errorf("the answer is %s", status)
			}
		})
	}
	if len(connections) > 0 {
		t.Errorf("cloudcore dialled the device's address %d times", len(connections))
	}
}

func portOf(t *testing.T, port string) int32 {
	t.Helper()
	n, err := net.LookupPort("tcp", port)
	if err != nil {
		t.Fatal(err)
	}
	return int32(n)
}
