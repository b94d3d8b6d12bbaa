package faultproxy_test

import (
	"bufio"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/skerry-io/skerry/tests/cluster/faultproxy"
)

// A feed is a server whose watches send the events that send is given, until it is closed.
type feed struct {
	proxy   *faultproxy.Proxy
	client  *http.Client
	address string
	send    chan string
}

func newFeed(t *testing.T) *feed {
	t.Helper()
	f := &feed{send: make(chan string)}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !faultproxy.Watch(r) {
			fmt.Fprintln(w, "a list")
			return
		}
		flush := http.NewResponseController(w)
		flush.Flush()
		for {
			select {
			case s, ok := <-f.send:
				if !ok {
					return
				}
				fmt.Fprintln(w, s)
				flush.Flush()
			case <-r.Context().Done():
				return
			}
		}
	}))
	t.Cleanup(server.Close)
	target, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if f.proxy, err = faultproxy.New(target, ca, new(net.Dialer).DialContext); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.proxy.Serve(ctx, l, server.TLS.Certificates[0]) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	f.client, f.address = server.Client(), "https://"+l.Addr().String()
	return f
}

// watch opens a watch and gives its events; the channel is closed at its end.
func (f *feed) watch(t *testing.T, path string) <-chan string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.address+path+"?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := f.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	events := make(chan string, 100)
	go func() {
		defer close(events)
		defer response.Body.Close()
		for lines := bufio.NewScanner(response.Body); lines.Scan(); {
			events <- lines.Text()
		}
	}()
	return events
}

func want(t *testing.T, events <-chan string, all ...string) {
	t.Helper()
	for _, w := range all {
		if got := <-events; got != w {
			t.Fatalf("want event %q, got %q", w, got)
		}
	}
}

func hold(*http.Request) faultproxy.Lag { return faultproxy.Lag{Hold: true} }

// A watch that is open is held and released; other requests are answered in the meantime.
func TestLag_holdsAnOpenWatch(t *testing.T) {
	f := newFeed(t)
	events := f.watch(t, "/pods")
	f.send <- "one"
	want(t, events, "one")
	f.proxy.SetLag(hold)
	f.send <- "two"
	f.send <- "three"
	response, err := f.client.Get(f.address + "/pods")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if list, _ := io.ReadAll(response.Body); string(list) != "a list\n" {
		t.Errorf("a list is answered by %q", list)
	}
	select {
	case e := <-events:
		t.Fatalf("%q arrived", e)
	default:
	}
	f.proxy.SetLag(nil)
	want(t, events, "two", "three")
}

// The end of a watch comes after its last event.
func TestLag_endsAfterTheLastEvent(t *testing.T) {
	f := newFeed(t)
	f.proxy.SetLag(hold)
	events := f.watch(t, "/pods") // its header is not late
	f.send <- "one"
	close(f.send)
	select {
	case e, open := <-events:
		t.Fatalf("%q arrived (open: %v)", e, open)
	default:
	}
	f.proxy.SetLag(nil)
	want(t, events, "one", "")
}

func TestLag_isATime(t *testing.T) {
	f := newFeed(t)
	const lag = 50 * time.Millisecond
	f.proxy.SetLag(func(r *http.Request) faultproxy.Lag {
		if r.URL.Path == "/pods" {
			return faultproxy.Lag{By: lag}
		}
		return faultproxy.Lag{}
	})
	events := f.watch(t, "/pods")
	start := time.Now()
	f.send <- "one"
	want(t, events, "one")
	if took := time.Since(start); took < lag {
		t.Errorf("it arrived after %v", took)
	}
}

// A client that goes away while its events are held leaves no goroutine behind: Serve ends.
func TestLag_ofAClientThatIsGone(t *testing.T) {
	f := newFeed(t)
	f.proxy.SetLag(hold)
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, f.address+"/pods?watch=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := f.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	f.send <- "one"
	cancel()
	if _, err := io.ReadAll(response.Body); err == nil {
		t.Error("the watch ended well")
	}
}
