package apps_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/tests/cluster/host"
	"github.com/skerry-io/skerry/tests/cluster/lab"
)

const statusPort = 12346

func statusAddress(n int) string { return fmt.Sprintf("%s:%d", lab.LAN(n).Addr(), statusPort) }

// serveStatus enables the status server of the first node, whose peers are the second, a port of
// the second that hangs, and the third, where the port is closed.
func (s *system) serveStatus() {
	s.T.Helper()
	for n := 1; n <= 2; n++ {
		s.Check(s.Trial.Set(s.T.Context(), fmt.Sprintf("edge%d", n), []string{
			"modules.statusServer.enable=true", "modules.statusServer.clusterID=trial-7", "modules.statusServer.listen=" + statusAddress(n),
			fmt.Sprintf("modules.statusServer.peers=[%q,%q,%q]", statusAddress(2), strings.Replace(statusAddress(2), "12346", "12347", 1), statusAddress(3)),
		}))
	}
	s.WaitFor("the status servers to listen", func(ctx context.Context) error {
		for n := 1; n <= 2; n++ {
			if _, err := s.get(ctx, http.MethodGet, n, "/status", "", true); err != nil {
				return err
			}
		}
		return nil
	})
}

// knowledge, appPart and appPage are the pages as a script reads them.
type (
	knowledge struct {
		Linked bool
		AsOf   time.Time
	}
	appPart struct {
		Key     string `json:"key"`
		Exist   *bool  `json:"exist"`
		Value   any    `json:"value"`
		Problem string `json:"problem"`
	}
	appPage struct {
		Hostname    string
		CollectTime time.Time
		Knowledge   knowledge
		AppInfo     []appPart
	}
)

// page is an answer of a status server.
type page struct {
	code   int
	body   string
	header http.Header
}

// get asks a node's status server from the third node, with or without the administrator's
// certificate.
func (s *system) get(ctx context.Context, method string, node int, path, accept string, certificate bool) (page, error) {
	s.T.Helper()
	from, err := s.Trial.Host("edge3")
	s.Check(err)
	return s.getFrom(ctx, from, method, node, path, accept, certificate)
}

func (s *system) getFrom(ctx context.Context, from host.Host, method string, node int, path, accept string, certificate bool) (p page, err error) {
	// The server shows a node's certificate, which has no host name; whose it is, peers verify.
	config := &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}
	if certificate {
		own, err := tls.X509KeyPair(s.Config.CertData, s.Config.KeyData)
		s.Check(err)
		config.Certificates = []tls.Certificate{own}
	}
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
		TLSClientConfig: config, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return from.Dial(ctx, network, address)
		},
	}}
	request, err := http.NewRequestWithContext(ctx, method, "https://"+statusAddress(node)+path, http.NoBody)
	s.Check(err)
	if accept != "" {
		request.Header.Set("Accept", accept)
	}
	answer, err := client.Do(request)
	if err != nil {
		return p, err
	}
	defer answer.Body.Close()
	raw, err := io.ReadAll(answer.Body)
	return page{answer.StatusCode, string(raw), answer.Header}, err
}

func (s *system) mustGet(method, path, accept string) page {
	s.T.Helper()
	p, err := s.get(s.T.Context(), method, 1, path, accept, true)
	s.Check(err)
	return p
}

// TestCluster_04: /status of a node with the labels of a server of the cluster and without, as
// plain text and as JSON; POST is refused, and so is a client without a certificate; while the
// address is on no interface there is no listener.
func TestCluster_04_StatusNeedsLabelsAndCertificate(t *testing.T) {
	s := newSystem(t)
	s.serveStatus()
	if p := s.mustGet(http.MethodGet, "/status", ""); p.code != http.StatusOK || p.body != "" || p.header.Get("Skerry-Known-As-Of") == "" || p.header.Get("Skerry-Linked") != "true" {
		t.Errorf("without the labels: %+v", p)
	}
	s.patchNode("edge1", `{"metadata":{"labels":{"node-role.kubernetes.io/etcd":"","node-role.kubernetes.io/control-plane":""}}}`)
	t.Cleanup(func() {
		if out, err := s.Run(context.Background(), "kubectl", "label", "node", "edge1", "node-role.kubernetes.io/etcd-", "node-role.kubernetes.io/control-plane-"); err != nil {
			t.Error(out, err)
		}
	})
	s.WaitFor("the node to be a server", func(ctx context.Context) error {
		p, err := s.get(ctx, http.MethodGet, 1, "/status", "", true)
		if err == nil && p.body != "cluster:trial-7" {
			err = fmt.Errorf("it says %q", p.body)
		}
		return err
	})
	var is struct {
		Cluster, Status string
		Server          bool
		Knowledge       knowledge
	}
	if p := s.mustGet(http.MethodGet, "/status", "application/json"); json.Unmarshal([]byte(p.body), &is) != nil || !is.Server || is.Status != "cluster:trial-7" || !is.Knowledge.Linked {
		t.Errorf("as JSON: %+v", p)
	}
	if p := s.mustGet(http.MethodPost, "/status", ""); p.code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %+v", p)
	}
	if p, err := s.get(t.Context(), http.MethodGet, 1, "/status", "", false); err == nil {
		t.Errorf("without a certificate: %+v", p)
	}
	// Cut off, the answer has the time of its data.
	s.Cut("edge1")
	s.WaitFor("the answer to say that it is old", func(ctx context.Context) error {
		p, err := s.get(ctx, http.MethodGet, 1, "/status", "", true)
		if err == nil && (p.header.Get("Skerry-Linked") != "false" || p.body != "cluster:trial-7") {
			err = fmt.Errorf("%+v", p)
		}
		return err
	})
	s.Heal("edge1")
	// The address goes, and comes again.
	h, err := s.Trial.Host("edge1")
	s.Check(err)
	s.Check(s.Trial.Set(t.Context(), "edge1", []string{"modules.statusServer.listen=10.99.0.1:12346"}))
	s.WaitFor("the listener to close", func(ctx context.Context) error {
		for _, at := range []string{statusAddress(1), "10.99.0.1:12346"} {
			short, cancel := context.WithTimeout(ctx, time.Second)
			conn, err := h.Dial(short, "tcp", at)
			cancel()
			if err == nil {
				return errors.Join(fmt.Errorf("something listens on %s", at), conn.Close())
			}
		}
		return nil
	})
	s.ip("edge1", "addr", "add", "10.99.0.1/32", "dev", "lo")
	dial := func(ctx context.Context) error {
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		conn, err := h.Dial(short, "tcp", "10.99.0.1:12346")
		if err == nil {
			err = conn.Close()
		}
		return err
	}
	s.WaitFor("it to listen once the address is there", dial)
	s.ip("edge1", "addr", "del", "10.99.0.1/32", "dev", "lo")
	s.WaitFor("it to listen no more", func(ctx context.Context) error {
		if dial(ctx) == nil {
			return errNot
		}
		return nil
	})
}

func (s *system) ip(node string, args ...string) {
	s.T.Helper()
	code, err := s.Trial.Exec(s.T.Context(), node, streams(), nil, "ip", args...)
	s.Check(err)
	if code != 0 {
		s.T.Fatalf("ip %v: code %d", args, code)
	}
}

// TestCluster_05: an application by its name, by its namespace and name and by its uid is the same
// page; no name gives the device's own four parts; an unknown name, and the beginning of a uid, is
// not found; missing parts are marked as such.
func TestCluster_05_AppByNameAndUIDIsOnePage(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.serveStatus()
	s.create(ns, appYAML("shown", "edge1"))
	pod := s.waitOn(ns, "shown", "edge1")
	app, err := s.read(t.Context(), ns, "shown")
	s.Check(err)
	read := func(name string) (p appPage) {
		t.Helper()
		got := s.mustGet(http.MethodGet, "/app/"+name, "")
		if got.code != http.StatusOK {
			t.Fatalf("/app/%s: %+v", name, got)
		}
		s.Check(json.Unmarshal([]byte(got.body), &p))
		return p
	}
	keys := func(p appPage) (all []string) {
		for _, x := range p.AppInfo {
			all = append(all, x.Key)
		}
		return all
	}
	first := []string{"node-info", "cluster-status", "leader-election", "install-log"}
	want := append(slices.Clone(first), "app-config", "volumes", "networks", "cluster-app-status", "images", "pods", "resource-use")
	s.WaitFor("the pod's container to be shown", func(ctx context.Context) error {
		p, err := s.get(ctx, http.MethodGet, 1, "/app/shown", "", true)
		if err == nil && !strings.Contains(p.body, containerOf(pod)) {
			err = fmt.Errorf("%s", p.body)
		}
		return err
	})
	byName := read("shown")
	for _, name := range []string{ns + "/shown", string(app.UID)} {
		p := read(name)
		p.CollectTime, p.Knowledge = byName.CollectTime, byName.Knowledge
		a, err := json.Marshal(byName)
		s.Check(err)
		b, err := json.Marshal(p)
		s.Check(err)
		if string(a) != string(b) {
			t.Errorf("%s:\n%s\nby name:\n%s", name, b, a)
		}
	}
	if got := keys(byName); !slices.Equal(got, want) || byName.Hostname != "edge1" || byName.CollectTime.IsZero() {
		t.Errorf("parts %v of %+v", got, byName)
	}
	for _, p := range byName.AppInfo {
		missing := p.Key == "volumes" || p.Key == "install-log" || p.Key == "leader-election" && p.Value == nil || p.Key == "networks" && pod.Spec.HostNetwork
		if (p.Exist != nil && !*p.Exist) != missing {
			t.Errorf("%s: exist %v, value %v, %s", p.Key, p.Exist, p.Value, p.Problem)
		}
	}
	if got := keys(read("")); !slices.Equal(got, first) {
		t.Errorf("without a name: %v", got)
	}
	for _, name := range []string{"absent", string(app.UID)[:8]} {
		if p := s.mustGet(http.MethodGet, "/app/"+name, ""); p.code != http.StatusNotFound {
			t.Errorf("/app/%s: %+v", name, p)
		}
	}
	if p := s.mustGet(http.MethodPost, "/app/shown", ""); p.code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %+v", p)
	}
}

// TestCluster_06: an application from all peers: one answers, one takes the connection and sends no
// answer, one refuses. All are in the list, in order, the last two with their error.
func TestCluster_06_ClusterAppNamesPeersThatFail(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.serveStatus()
	s.create(ns, appYAML("everywhere", "edge2"))
	s.waitOn(ns, "everywhere", "edge2")
	h, err := s.Trial.Host("edge2")
	s.Check(err)
	var l net.Listener
	s.Check(h.Do(func() (err error) {
		l, err = net.Listen("tcp", strings.Replace(statusAddress(2), "12346", "12347", 1))
		return err
	}))
	defer l.Close()
	asked := make(chan struct{}, 16)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			asked <- struct{}{}
			defer conn.Close()
			go func() { _, _ = bufio.NewReader(conn).WriteTo(io.Discard) }()
		}
	}()
	p := s.mustGet(http.MethodGet, "/cluster-app/everywhere", "")
	var all struct {
		Key   string
		Value []struct {
			Hostname string
			Error    string
			AppInfo  []appPart
		}
	}
	if err := json.Unmarshal([]byte(p.body), &all); err != nil || p.code != http.StatusOK || all.Key != "cluster-app" || len(all.Value) != 4 {
		t.Fatalf("%v: %+v", err, p)
	}
	select {
	case <-asked:
	default:
		t.Error("the one that hangs was not asked")
	}
	for i, want := range []struct {
		hostname string
		parts    int
		err      string
	}{
		{"edge1", 11, ""}, {"edge2", 11, ""}, {strings.Replace(statusAddress(2), "12346", "12347", 1), 0, "Client.Timeout"}, {statusAddress(3), 0, "refused"},
	} {
		if got := all.Value[i]; got.Hostname != want.hostname || len(got.AppInfo) != want.parts || !strings.Contains(got.Error, want.err) || (got.Error == "") != (want.err == "") {
			t.Errorf("%d: %s, %d parts, error %q; want %+v", i, got.Hostname, len(got.AppInfo), got.Error, want)
		}
	}
}
