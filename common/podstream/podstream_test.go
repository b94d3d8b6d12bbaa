package podstream_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	kubelet "k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/skerry-io/skerry/common/podstream"
)

// program is an exec that prints a line, and then waits for its end.
type program struct{ end chan struct{} }

func (p program) ExecInContainer(_ context.Context, _, _, _ string, _ []string, _ io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan kubelet.TerminalSize, _ time.Duration) error {
	_, _ = io.WriteString(out, "the first half")
	<-p.end
	_, err := io.WriteString(out, ", the second half")
	return err
}

var errCut = errors.New("the link ended")

// link is a connection that ends as a stream of a link does, with an error.
type link struct {
	net.Conn
	cut chan struct{}
}

func (l *link) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	select {
	case <-l.cut:
		return 0, errCut
	default:
		return n, err
	}
}

// exec runs the program by websocket, as kubectl does, and ends it, or the link, once its first
// line has come.
func exec(t *testing.T, end func(p program, l *link)) (string, error) {
	t.Helper()
	p := program{make(chan struct{})}
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kubelet.ServeExec(w, r, p, "pod", "uid", "container", nil, &kubelet.Options{Stdout: true}, time.Minute, time.Minute, kubelet.SupportedStreamingProtocols)
	}))
	defer node.Close()
	conn, err := net.Dial("tcp", node.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far := &link{conn, make(chan struct{})}
	cloud := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, sub := range podstream.Subresources() {
			if sub.Name == "exec" {
				_ = podstream.Serve(w, r, far, &url.URL{Scheme: "http", Host: "node", Path: "/exec", RawQuery: "output=1"}, sub, refused{})
			}
		}
	}))
	defer cloud.Close()
	client, err := remotecommand.NewWebSocketExecutor(&rest.Config{Host: cloud.URL}, "GET", cloud.URL+"/exec?stdout=true")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = client.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: writer(func(b []byte) (int, error) {
		if out.Len() == 0 {
			defer end(p, far)
		}
		return out.Write(b)
	})})
	conn.Close()
	select {
	case <-p.end:
	default:
		close(p.end)
	}
	return out.String(), err
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

type refused struct{}

func (refused) Error(w http.ResponseWriter, _ *http.Request, err error) {
	http.Error(w, err.Error(), http.StatusInternalServerError)
}

// The end of a link in the middle of an output is no success.
func TestServe_LinkEndsInTheMiddle(t *testing.T) {
	out, err := exec(t, func(_ program, l *link) {
		close(l.cut)
		_ = l.Conn.SetReadDeadline(time.Unix(1, 0))
	})
	if err == nil {
		t.Errorf("a proper end after %q", out)
	}
}

func TestServe_ProgramEnds(t *testing.T) {
	out, err := exec(t, func(p program, _ *link) { close(p.end) })
	if err != nil || !strings.HasSuffix(out, "the second half") {
		t.Errorf("got %q, %v", out, err)
	}
}
