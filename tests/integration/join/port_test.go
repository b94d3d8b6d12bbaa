package join_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/process"
)

// The hosts of these tests: all of 127.0.0.0/8 is this machine, so that each has a port
// 443 of its own.
const (
	cloudHost = "127.43.18.1" // cloudcore
	noUDP     = "127.43.18.2" // leads TCP 443 to it, and no UDP
	proxyHost = "127.43.18.3" // ends TLS
	portsHost = "127.43.19.1" // a cloudcore with a port for each purpose
)

// linked runs edgecore without its kubelet, and waits until its link is of the transport.
func (s *system) linked(t *testing.T, config, transport string) {
	t.Helper()
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	child, err := process.Start(process.Spec{Path: s.hollowedge, Args: []string{"--config", config, "--socket", filepath.Join(dir, "s")}, Log: log, Bound: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := child.Stop(context.WithoutCancel(t.Context()), 20*time.Second); err != nil {
			t.Error(err)
		}
	}()
	want := fmt.Sprintf("transport=%q", transport)
	cluster.Eventually(t, "a link by "+transport, func(context.Context) error {
		raw, err := os.ReadFile(log)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(raw)) {
			if strings.Contains(line, "Session opened") && strings.Contains(line, want) {
				return nil
			}
		}
		return errors.New(string(raw[max(0, len(raw)-2000):]))
	})
}

// hollow is the configuration of an edgecore without its kubelet and without the parts that need
// root or a fixed port.
func hollow(t *testing.T, edgeHub string) (config string) {
	t.Helper()
	dir := t.TempDir()
	config = filepath.Join(dir, "edgecore.yaml")
	text := fmt.Sprintf("apiVersion: config.skerry.io/v1alpha1\nkind: EdgeCore\ndataDir: %[1]s/data\nhealth: {listen: \"\"}\nmodules:\n  edgeHub: %[2]s\n"+
		"  edgeAPI: {socket: %[1]s/edge.sock, listen: \"\", pods: false}\n  edged: {enable: false}\n  route: {enable: false}\n  vip: {enable: false}\n  drain: {enable: false}\n",
		dir, edgeHub)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return config
}

// forwardTCP leads connections to a host's port 443 on to another's. It does not forward UDP.
func forwardTCP(t *testing.T, from, to string) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(from, "443"))
	if err != nil {
		t.Fatal(err)
	}
	cluster.Forward(t, l, func() string { return net.JoinHostPort(to, "443") })
}

func TestShip_18_OnePortAndUDPBlocked(t *testing.T) {
	plane := cluster.Shared(t)
	// 443 alone: there is no other listener, and edgecore.yaml has no ports.
	s := newSystemWith(t, plane, fmt.Sprintf("advertise: [%s, %s, %s]\ndevices: {listen: \"%[1]s:443\"}\n",
		cloudHost, noUDP, proxyHost))
	token := s.token(t, "--uses", "5")
	config := hollow(t, "{enable: true}")
	if _, said, code := s.edge(t, config, token, "one-port", cloudHost); code != 0 {
		t.Fatalf("join: exit code %d, %s", code, said)
	}
	s.linked(t, config, "quic")

	// UDP blocked.
	forwardTCP(t, noUDP, cloudHost)
	blocked := hollow(t, "{enable: true}")
	if _, said, code := s.edge(t, blocked, token, "no-udp", noUDP); code != 0 {
		t.Fatalf("join without UDP: exit code %d, %s", code, said)
	}
	s.linked(t, blocked, "websocket")

	// A proxy that ends TLS on the way is named.
	proxy := httptest.NewUnstartedServer(http.NotFoundHandler())
	l, err := net.Listen("tcp", net.JoinHostPort(proxyHost, "443"))
	if err != nil {
		t.Fatal(err)
	}
	proxy.Listener.Close()
	proxy.Listener, proxy.TLS = l, &tls.Config{MinVersion: tls.VersionTLS13}
	proxy.StartTLS()
	defer proxy.Close()
	if _, said, code := s.edge(t, hollow(t, "{enable: true}"), token, "proxied", proxyHost); code != 2 || !strings.Contains(said, "Acme Co") || !strings.Contains(said, "proxy") {
		t.Errorf("through a proxy that ends TLS: exit code %d, %s", code, said)
	}

	// A client that is no device gets only /healthz.
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}}} //nolint:gosec // no secret is sent
	defer client.CloseIdleConnections()
	for path, want := range map[string]int{"/healthz": 200, "/v1/about": 404, "/v1/join": 404, "/link": 404, "/": 404, "/metrics": 404} {
		res, err := client.Get("https://" + cloudHost + path)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: %s, want %d", path, res.Status, want)
		}
	}
	// Nor does a client that asks for a link without a certificate.
	conn, err := tls.Dial("tcp", cloudHost+":443", &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, NextProtos: []string{"skerry-link", "http/1.1"}}) //nolint:gosec // as above
	if err == nil {
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		_, err = conn.Read(make([]byte, 1))
		conn.Close()
	}
	if err == nil || errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "certificate required") {
		t.Errorf("a link without a certificate: %v", err)
	}
}

// A cloudcore with a port for each transport and one for joins, and without devices.listen: devices
// join and link there where their configuration names those ports.
func TestShip_PortsOfTheirOwn(t *testing.T) {
	plane := cluster.Shared(t)
	s := newSystemWith(t, plane, fmt.Sprintf("advertise: [%s]\ndevices: {listen: \"\"}\nhub:\n  websocket: {listen: \"%[1]s:10000\"}\n  quic: {listen: \"%[1]s:10001\"}\njoin: {listen: \"%[1]s:10002\"}\n", portsHost))
	token := s.token(t, "--uses", "5")
	for transport, ports := range map[string]string{
		"websocket": "{transport: websocket, websocket: {port: 10000}, quic: {port: 10001}}",
		"quic":      "{transport: quic, websocket: {port: 10000}, quic: {port: 10001}}",
	} {
		config := hollow(t, ports)
		if _, said, code := s.edge(t, config, token, "ports-"+transport, portsHost+":10002"); code != 0 {
			t.Fatalf("join at a port of its own: exit code %d, %s", code, said)
		}
		s.linked(t, config, transport)
	}
}
