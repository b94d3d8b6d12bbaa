package join_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/edge/internal/setup/join"
)

func quiet() *log.Logger { return log.New(io.Discard, "", 0) }

// logged sends the log to the test's own output, which is shown when it fails.
func logged(t *testing.T) context.Context {
	return klog.NewContext(t.Context(), ktesting.NewLogger(t, ktesting.NewConfig()))
}

func options(t *testing.T, c *cloud) join.Options {
	t.Helper()
	return join.Options{
		Server: c.address, Token: c.token, Node: edge1, Dir: filepath.Join(t.TempDir(), "pki"), Clock: pki.NewClock(time.Time{}, nil),
		Timeout: 30 * time.Second,
	}
}

// files returns the files in the directory, with their modes.
func files(t *testing.T, dir string) map[string]fs.FileMode {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]fs.FileMode{}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		got[e.Name()] = info.Mode()
	}
	return got
}

func TestJoin(t *testing.T) {
	c := newCloud(t, cloudOptions{})
	o := options(t, c)
	got, err := join.Join(logged(t), o)
	if err != nil {
		t.Fatal(err)
	}
	if got.Already || got.Node != edge1 || got.Skew != 0 {
		t.Errorf("joined as %+v", got)
	}
	want := map[string]fs.FileMode{"node.pem": 0o600, "ca.crt": 0o644, "client-ca.crt": 0o644, "cluster.json": 0o644}
	if diff := cmp.Diff(want, files(t, o.Dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if info, err := os.Stat(o.Dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v, %v", info.Mode(), err)
	}
	id, err := join.Load(o.Dir, nil, o.Clock)
	if err != nil {
		t.Fatal(err)
	}
	cluster := join.Cluster{Node: edge1, Server: c.address, WebSocket: []string{"cloud.example:10000"}, QUIC: []string{"cloud.example:10001"}, Protocol: topic.Protocol}
	if diff := cmp.Diff(cluster, id.Cluster()); diff != "" {
		t.Errorf("cluster (-want +got):\n%s", diff)
	}
	if s := id.Status(); s.Node != edge1 || s.Expired || s.RotateAt.Before(s.NotBefore) || s.RotateAt.After(s.NotAfter) {
		t.Errorf("status %+v", s)
	}
	if id.ClientCAFile() != filepath.Join(o.Dir, "client-ca.crt") {
		t.Errorf("the client CA is in %q", id.ClientCAFile())
	}

	// Again: it reports that without a request, so the used-up token doesn't matter.
	if got, err := join.Join(logged(t), o); err != nil || !got.Already || len(c.keys) != 1 {
		t.Errorf("the second time: %+v, %v, after %d requests", got, err, len(c.keys))
	}
	// As another node: no, unless forced.
	o.Node = "edge2"
	if _, err := join.Join(logged(t), o); !errors.Is(err, join.ErrJoined) || !strings.Contains(err.Error(), "edge1") {
		t.Errorf("joining as another node: %v; want %v", err, join.ErrJoined)
	}
	o.Force = true
	if _, err := join.Join(logged(t), o); !isRefusal(err, pki.ReasonTokenUsedUp) {
		t.Errorf("joining with a used-up token: %v", err)
	}
	if id, err := join.Load(o.Dir, nil, o.Clock); err != nil || id.Node() != edge1 {
		t.Errorf("the identity before is gone after a refusal: %v", err)
	}
	c.uses = 1
	if _, err := join.Join(logged(t), o); err != nil {
		t.Fatal(err)
	}
	if id, err := join.Load(o.Dir, nil, o.Clock); err != nil || id.Node() != "edge2" {
		t.Errorf("after the forced join: %v", err)
	}
}

func isRefusal(err error, reason pki.Reason) bool {
	refusal, ok := errors.AsType[*pki.Refusal](err)
	return ok && refusal.Reason == reason
}

func TestFirstContact(t *testing.T) {
	other := newCloud(t, cloudOptions{})
	listen := func(t *testing.T, serve func(net.Conn)) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				serve(conn)
			}
		}()
		return l.Addr().String()
	}
	for name, tc := range map[string]struct {
		server func(t *testing.T, c *cloud) string
		cloud  cloudOptions
		want   error
		says   string
	}{
		"another cluster": {func(*testing.T, *cloud) string { return other.address }, cloudOptions{}, join.ErrWrongCA, "sha256:"},
		"plain HTTP": {func(t *testing.T, _ *cloud) string {
			s := httptest.NewServer(http.NotFoundHandler())
			t.Cleanup(s.Close)
			return strings.TrimPrefix(s.URL, "http://")
		}, cloudOptions{}, join.ErrNotCloudcore, "does not speak TLS"},
		"another protocol": {func(t *testing.T, _ *cloud) string {
			return listen(t, func(c net.Conn) {
				_, _ = c.Write([]byte("SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n"))
				c.Close()
			})
		}, cloudOptions{}, join.ErrNotCloudcore, "does not speak TLS"},
		"old TLS": {func(_ *testing.T, c *cloud) string { return c.address }, cloudOptions{tls: func(cfg *tls.Config) {
			cfg.MinVersion, cfg.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		}}, join.ErrNotCloudcore, "TLS 1.3"},
		"silence": {func(t *testing.T, _ *cloud) string { return listen(t, func(net.Conn) {}) }, cloudOptions{}, join.ErrUnreachable, "does not answer in time"},
		"no listener": {func(t *testing.T, _ *cloud) string {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			l.Close()
			return l.Addr().String()
		}, cloudOptions{}, join.ErrUnreachable, "firewalls"},
		"another name": {func(_ *testing.T, c *cloud) string { return c.address }, cloudOptions{hosts: []string{"cloud.example"}}, join.ErrWrongName, "advertise"},
		"a clock ahead": {func(_ *testing.T, c *cloud) string { return c.address }, cloudOptions{ahead: -10 * 365 * 24 * time.Hour},
			join.ErrClock, "set the clock"},
		"no cloudcore, but its CA": {func(_ *testing.T, c *cloud) string {
			c.next(func(w http.ResponseWriter) bool { http.NotFound(w, nil); return true })
			return c.address
		}, cloudOptions{}, join.ErrNotCloudcore, "404"},
		"an answer that is no answer": {func(_ *testing.T, c *cloud) string {
			c.next(func(w http.ResponseWriter) bool { _, _ = io.WriteString(w, "<html>"); return true })
			return c.address
		}, cloudOptions{}, join.ErrNotCloudcore, "no JSON"},
		"an endless answer": {func(_ *testing.T, c *cloud) string {
			c.next(func(w http.ResponseWriter) bool { _, _ = w.Write(make([]byte, 2*pki.MaxJoinBody)); return true })
			return c.address
		}, cloudOptions{}, join.ErrNotCloudcore, "more than"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCloud(t, tc.cloud)
			o := options(t, c)
			o.Server, o.Timeout = tc.server(t, c), 2*time.Second
			_, err := join.Join(logged(t), o)
			if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v; want %v with %q", err, tc.want, tc.says)
			}
			if strings.Contains(err.Error(), c.token.Secret) {
				t.Errorf("the error has the token's secret: %v", err)
			}
			if _, err := join.Load(o.Dir, nil, o.Clock); !errors.Is(err, join.ErrNotJoined) {
				t.Errorf("after that, Load says %v; want %v", err, join.ErrNotJoined)
			}
		})
	}
}

// TestClockFarBehind: a device starts in 1970, and only the certificates limit its clock.
func TestClockFarBehind(t *testing.T) {
	const behind = 56 * 365 * 24 * time.Hour
	c := newCloud(t, cloudOptions{ahead: behind})
	o := options(t, c)
	got, err := join.Join(logged(t), o)
	if err != nil {
		t.Fatal(err)
	}
	if off := got.Skew + behind; off < -time.Minute || off > time.Minute {
		t.Errorf("the skew is reported as %v; want about -%v", got.Skew, behind)
	}
	// After a restart, with only the identity to tell the time.
	clock := pki.NewClock(time.Time{}, nil)
	id, err := join.Load(o.Dir, nil, clock)
	if err != nil {
		t.Fatal(err)
	}
	if clock.Now().Before(id.Status().NotBefore) || id.Status().Expired {
		t.Errorf("the clock reads %v after loading %+v", clock.Now(), id.Status())
	}
}

func TestRefusedAndLost(t *testing.T) {
	t.Run("tries again where that may help", func(t *testing.T) {
		c := newCloud(t, cloudOptions{})
		c.next(refusal(pki.ReasonTooMany), refusal(pki.ReasonUnavailable))
		if _, err := join.Join(logged(t), options(t, c)); err != nil {
			t.Fatal(err)
		}
		if keys := slices.Compact(c.keys); len(keys) != 1 {
			t.Errorf("%d different keys were sent", len(keys))
		}
	})
	t.Run("a lost answer costs one use", func(t *testing.T) {
		c := newCloud(t, cloudOptions{})
		o := options(t, c)
		ctx, cancel := context.WithCancel(logged(t))
		c.next(func(w http.ResponseWriter) bool {
			cancel() // the device loses power while the cloud is at work
			c.lost = true
			return false
		})
		if _, err := join.Join(ctx, o); err == nil {
			t.Fatal("joined without an answer")
		}
		if _, err := join.Join(logged(t), o); err != nil {
			t.Fatal(err)
		}
		if c.uses != 0 || len(c.issued) != 1 {
			t.Errorf("%d certificates were issued", len(c.issued))
		}
	})
	t.Run("a refusal ends the key", func(t *testing.T) {
		c := newCloud(t, cloudOptions{})
		o := options(t, c)
		c.next(refusal(pki.ReasonNodeLive))
		if _, err := join.Join(logged(t), o); !isRefusal(err, pki.ReasonNodeLive) {
			t.Fatalf("got %v", err)
		}
		if diff := cmp.Diff(map[string]fs.FileMode{}, files(t, o.Dir)); diff != "" {
			t.Errorf("left behind (-want +got):\n%s", diff)
		}
		if _, err := join.Join(logged(t), o); err != nil {
			t.Fatal(err)
		}
		if c.keys[0] == c.keys[1] {
			t.Error("the refused key was sent again")
		}
	})
	t.Run("wrong token", func(t *testing.T) {
		c := newCloud(t, cloudOptions{})
		o := options(t, c)
		o.Token.Secret = "0123456789abcdef"
		if _, err := join.Join(logged(t), o); !isRefusal(err, pki.ReasonTokenWrong) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("bad name", func(t *testing.T) {
		c := newCloud(t, cloudOptions{})
		o := options(t, c)
		o.Node = "Edge_1"
		if _, err := join.Join(logged(t), o); err == nil || len(c.keys) != 0 {
			t.Errorf("got %v after %d requests", err, len(c.keys))
		}
	})
}

func TestDirectory(t *testing.T) {
	t.Run("can't be written: no use is taken", func(t *testing.T) {
		c := newCloud(t, cloudOptions{})
		o := options(t, c)
		if err := os.WriteFile(o.Dir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := join.Join(logged(t), o); err == nil || len(c.keys) != 0 {
			t.Errorf("got %v after %d requests", err, len(c.keys))
		}
	})
	t.Run("fails halfway: the next run goes on", func(t *testing.T) {
		c := newCloud(t, cloudOptions{})
		o := options(t, c)
		block := filepath.Join(o.Dir, "cluster.json", "in the way")
		if err := os.MkdirAll(block, 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := join.Join(logged(t), o); err == nil {
			t.Fatal("joined")
		}
		if _, err := join.Load(o.Dir, nil, o.Clock); !errors.Is(err, join.ErrNotJoined) {
			t.Errorf("Load says %v; want %v", err, join.ErrNotJoined)
		}
		if err := os.RemoveAll(filepath.Dir(block)); err != nil {
			t.Fatal(err)
		}
		if _, err := join.Join(logged(t), o); err != nil {
			t.Fatal(err)
		}
		if c.uses != 0 || len(c.issued) != 1 {
			t.Errorf("%d certificates were issued", len(c.issued))
		}
	})
	t.Run("two at once", func(t *testing.T) {
		c := newCloud(t, cloudOptions{})
		o := options(t, c)
		var second error
		c.next(func(http.ResponseWriter) bool {
			_, second = join.Join(logged(t), o)
			return false
		})
		if _, err := join.Join(logged(t), o); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(second, join.ErrBusy) {
			t.Errorf("the second says %v; want %v", second, join.ErrBusy)
		}
	})
	t.Run("a damaged identity", func(t *testing.T) {
		c := newCloud(t, cloudOptions{})
		o := options(t, c)
		if _, err := join.Join(logged(t), o); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"node.pem", "ca.crt", "cluster.json"} {
			whole, err := os.ReadFile(filepath.Join(o.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(o.Dir, name), whole[:len(whole)/2], 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := join.Load(o.Dir, nil, o.Clock); err == nil || !strings.Contains(err.Error(), "join again") {
				t.Errorf("half of %s: %v", name, err)
			}
			if err := os.WriteFile(filepath.Join(o.Dir, name), whole, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(o.Dir, "node.pem"), []byte("?"), 0o600); err != nil {
			t.Fatal(err)
		}
		c.uses = 1
		if _, err := join.Join(logged(t), o); err != nil {
			t.Errorf("joining over a damaged identity: %v", err)
		}
	})
}

func TestServerForms(t *testing.T) {
	for _, server := range []string{"", ":10002", "host:port", "https://host", "host/path", "user@host", "host:70000"} {
		o := join.Options{Server: server, Node: types.NodeName("edge1"), Dir: t.TempDir(), Clock: pki.NewClock(time.Time{}, nil)}
		if _, err := join.Join(logged(t), o); err == nil || !strings.Contains(err.Error(), "HOST") {
			t.Errorf("%q: %v", server, err)
		}
	}
}
