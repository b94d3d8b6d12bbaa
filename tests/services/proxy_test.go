package services_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// runProxy runs upstream's kube-proxy on a node, against the node's own API, until the test ends.
func (s *system) runProxy(node, mode string) {
	s.T.Helper()
	paths, err := binary.Build(s.T.Context(), s.Root, "kubeproxy")
	s.Check(err)
	log, err := os.Create(filepath.Join(s.T.TempDir(), "kube-proxy.log"))
	s.Check(err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		code, err := s.Trial.Exec(ctx, node, trial.Streams{Out: log, Err: log}, nil, paths[0], "--kubeconfig", s.Trial.EdgeKubeconfig(),
			"--proxy-mode", mode, "--hostname-override", node, "--nodeport-addresses", "192.168.100.0/24", "--cluster-cidr", "10.244.0.0/16", "--conntrack-max-per-core", "0",
			"--conntrack-tcp-timeout-established", "0", "--conntrack-tcp-timeout-close-wait", "0")
		ended <- errors.Join(err, fmt.Errorf("kube-proxy ended with code %d", code))
	}()
	s.T.Cleanup(func() {
		cancel()
		err := <-ended
		if s.T.Failed() {
			text, _ := os.ReadFile(log.Name())
			s.T.Logf("%v\n%s", err, text)
		}
		log.Close()
		if out, err := s.tryOn(context.Background(), node, paths[0]+" --cleanup 2>&1"); err != nil {
			s.T.Logf("cleaning up after kube-proxy: %v\n%s", err, out)
		}
	})
}

// page asks the sample application at an address, from the LAN's client.
func (s *system) page(ctx context.Context, address string) error {
	h, err := s.Trial.Host("client")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	conn, err := h.Dial(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		return err
	}
	deadline, _ := ctx.Deadline()
	if err := conn.SetReadDeadline(deadline); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if err == nil && !strings.HasPrefix(string(answer), "HTTP/1.") {
		err = fmt.Errorf("it answered %q", answer)
	}
	return err
}

// served waits until the sample application answers at an address, through the Service.
func (s *system) served(address string) {
	s.T.Helper()
	s.WaitFor("the sample application to answer at "+address, func(ctx context.Context) error { return s.page(ctx, address) })
}

// deviceAnswers waits until programs of a node's own network that ask for the cluster's API, at the
// address of its Service, find the device's: with the link or without.
func (s *system) deviceAnswers(node string) {
	s.T.Helper()
	api := s.Kubectl("-n", "default", "get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}:{.spec.ports[0].port}")
	h, err := s.Trial.Host(node)
	s.Check(err)
	s.WaitFor("the device's API at "+api, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		conn, err := h.Dial(ctx, "tcp", api)
		if err != nil {
			return err
		}
		defer conn.Close()
		secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) // only the certificate's name is checked
		if err := secure.HandshakeContext(ctx); err != nil {
			return err
		}
		if issuer := secure.ConnectionState().PeerCertificates[0].Issuer.CommonName; issuer != "skerry edge API" {
			return fmt.Errorf("it answers with a certificate of %q", issuer)
		}
		return nil
	})
}

const proxied = `apiVersion: v1
kind: Service
metadata: {name: proxied, namespace: sample}
spec:
  type: NodePort
  selector: {app: sample}
  ports: [{name: tcp, port: 80, targetPort: 8080, nodePort: 30188}]
`

// Marks and kube-proxy don't get in each other's way, whichever of the two rewrites its rules last.
func testWithProxy(t *testing.T, mode string) {
	s := newSystem(t)
	s.WaitPods("sample", "app=sample", "edge1", 1)
	s.make(proxied)
	var before string
	s.WaitFor("rules of both address families", func(ctx context.Context) (err error) {
		if before, err = s.rules(ctx, "edge1"); err == nil && strings.Count(before, "30188") != 2 {
			err = fmt.Errorf("there is:\n%s", before)
		}
		return err
	})
	address := net.JoinHostPort(edge1, "30188")
	if err := s.page(t.Context(), address); err == nil {
		t.Fatal("it is served without kube-proxy")
	}
	s.runProxy("edge1", mode)
	s.served(address)
	s.deviceAnswers("edge1") // kube-proxy, which came later, uses another way
	s.marked(24, "tcp", address)
	after, err := s.rules(t.Context(), "edge1")
	if err != nil || after != before {
		t.Errorf("with kube-proxy the rules are\n%s\nbefore\n%s\n%v", after, before, err)
	}
	// Our rules are rewritten next to those of kube-proxy, and both still work.
	s.on("edge1", "iptables -t mangle -F SKERRY-MARKS")
	s.Kubectl("-n", "sample", "patch", "service", "proxied", "--type=json", "-p", `[{"op":"replace","path":"/spec/ports/0/nodePort","value":30189}]`)
	address = net.JoinHostPort(edge1, "30189")
	s.served(address)
	s.marked(24, "tcp", address)
	s.Kubectl("-n", "sample", "delete", "service", "proxied")
	s.waitRule("edge1", "30189", false)
	s.WaitFor("kube-proxy to serve it no more", func(ctx context.Context) error {
		if err := s.page(ctx, address); err == nil {
			return errors.New("it does")
		}
		return nil
	})
}

func TestServices_15_WorksBesideKubeProxyNftables(t *testing.T) { testWithProxy(t, "nftables") }

func TestServices_15_WorksBesideKubeProxyIptables(t *testing.T) { testWithProxy(t, "iptables") }
