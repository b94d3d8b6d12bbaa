package console_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/skerry-io/skerry/common/tunnel"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/optional/console"
)

// cloud fakes the cloud: machines of namespace a run here, and echo.
type cloud struct {
	mu    sync.Mutex
	ends  []net.Conn // of the streams that wait for a machine's end
	asked []string
}

func (c *cloud) open(_ context.Context, target string) (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, target)
	kind, machine, _ := strings.Cut(target, "/")
	switch {
	case machine == "off/line":
		return nil, linkstate.ErrNoLink
	case !strings.HasPrefix(machine, "a/"), kind != "end" && machine == "a/dark":
		return nil, &tunnel.Refused{Peer: "the cloud", Reason: "no virtual machine " + machine + " runs on this device"}
	}
	near, far := net.Pipe()
	if kind == "end" {
		c.ends = append(c.ends, far)
		return near, nil
	}
	go func() { _, _ = io.Copy(far, far); _ = far.Close() }()
	return near, nil
}

func newConsoles(limit time.Duration) (*console.Consoles, *cloud) {
	c := &cloud{}
	return console.New(console.Config{Open: c.open, Limit: limit}), c
}

func dial(t *testing.T, k *console.Console) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", k.State().Address.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// echoed reports whether the machine is at the other end.
func echoed(conn net.Conn) error {
	if _, err := io.WriteString(conn, "hello"); err != nil {
		return err
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hello" {
		return errors.Join(errors.New("got "+string(got)), err)
	}
	return nil
}

func TestOpen_Refusals(t *testing.T) {
	c, _ := newConsoles(time.Hour)
	for name, test := range map[string]struct {
		request console.Request
		want    error
	}{
		"no name":   {console.Request{Namespace: "a"}, console.ErrInvalid},
		"a path":    {console.Request{Namespace: "a", Name: "../b"}, console.ErrInvalid},
		"too long":  {console.Request{Namespace: "a", Name: "b", For: 2 * time.Hour}, console.ErrInvalid},
		"too short": {console.Request{Namespace: "a", Name: "b", For: -time.Second}, console.ErrInvalid},
		"offline":   {console.Request{Namespace: "off", Name: "line"}, console.ErrOffline},
	} {
		if _, err := c.Open(t.Context(), test.request); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
	_, err := c.Open(t.Context(), console.Request{Namespace: "b", Name: "x"})
	if refused, ok := errors.AsType[*tunnel.Refused](err); !ok || refused.Reason != "no virtual machine b/x runs on this device" {
		t.Errorf("got %v", err)
	}
	if open := c.List(); len(open) > 0 {
		t.Errorf("%v is open", open)
	}
}

// Each way in which a console ends leaves neither port nor client.
func TestServe_Ends(t *testing.T) {
	for name, test := range map[string]struct {
		request console.Request
		end     func(cancel func(), c *cloud)
		want    string
	}{
		"with the request": {console.Request{Namespace: "a", Name: "x"}, func(cancel func(), _ *cloud) { cancel() }, "canceled"},
		"with the machine": {console.Request{Namespace: "a", Name: "x"}, func(_ func(), c *cloud) { _ = c.ends[0].Close() }, "the cloud ended it"},
		"when it is time":  {console.Request{Namespace: "a", Name: "x", For: time.Second}, func(func(), *cloud) {}, "the time is up"},
		"the serial one":   {console.Request{Namespace: "a", Name: "x", Serial: true}, func(cancel func(), _ *cloud) { cancel() }, "canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			c, cloud := newConsoles(time.Hour)
			k, err := c.Open(t.Context(), test.request)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan string, 1)
			go func() { ended <- k.Serve(ctx) }()
			conn := dial(t, k)
			if err := echoed(conn); err != nil {
				t.Fatal(err)
			}
			if open := c.List(); len(open) != 1 || open[0].Client.String() != conn.LocalAddr().String() || !open[0].Address.Addr().IsLoopback() {
				t.Errorf("open are %v", open)
			}
			test.end(cancel, cloud)
			if why := <-ended; !strings.Contains(why, test.want) {
				t.Errorf("it ended with %q, want %q", why, test.want)
			}
			if _, err := conn.Read(make([]byte, 1)); err == nil {
				t.Error("its client reads on")
			}
			if again, err := net.Dial("tcp", k.State().Address.String()); err == nil {
				_ = again.Close()
				t.Error("its port is open")
			}
			if open := c.List(); len(open) > 0 {
				t.Errorf("%v is open", open)
			}
		})
	}
}

func TestServe_OneUser(t *testing.T) {
	c, _ := newConsoles(time.Hour)
	for name, version := range map[string]string{"3.8": "RFB 003.008\n", "3.3": "RFB 003.003\n"} {
		t.Run(name, func(t *testing.T) {
			k, err := c.Open(t.Context(), console.Request{Namespace: "a", Name: "x"})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan string, 1)
			go func() { ended <- k.Serve(ctx) }()
			defer func() { cancel(); <-ended }()
			first := dial(t, k)
			if err := echoed(first); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Open(t.Context(), console.Request{Namespace: "a", Name: "x"}); !errors.Is(err, console.ErrBusy) {
				t.Errorf("the same console again: %v", err)
			}
			second := dial(t, k)
			if _, err := io.WriteString(second, version); err != nil {
				t.Fatal(err)
			}
			const why = "the console of a/x has a user already"
			want := "RFB 003.008\n\x00\x00\x00\x00" + string(rune(len(why))) + why
			if name == "3.3" {
				want = "RFB 003.008\n\x00\x00\x00\x00\x00\x00\x00" + string(rune(len(why))) + why
			}
			if got, err := io.ReadAll(second); err != nil || string(got) != want {
				t.Errorf("the second user gets %q, %v; want %q", got, err, want)
			}
			if err := echoed(first); err != nil {
				t.Errorf("the first one: %v", err)
			}
		})
	}
}

// A machine whose console does not open sends the client an error.
func TestServe_Refused(t *testing.T) {
	c, _ := newConsoles(time.Hour)
	k, err := c.Open(t.Context(), console.Request{Namespace: "a", Name: "dark", Serial: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan string, 1)
	go func() { ended <- k.Serve(ctx) }()
	defer func() { cancel(); <-ended }()
	if got, err := io.ReadAll(dial(t, k)); err != nil || string(got) != "no virtual machine a/dark runs on this device\r\n" {
		t.Errorf("got %q, %v", got, err)
	}
}

// There are ten ports.
func TestOpen_Bound(t *testing.T) {
	c, _ := newConsoles(time.Hour)
	for i := range 10 {
		k, err := c.Open(t.Context(), console.Request{Namespace: "a", Name: string(rune('a' + i))})
		if err != nil {
			t.Fatal(err)
		}
		done, cancel := context.WithCancel(t.Context())
		cancel()
		defer k.Serve(done)
	}
	if _, err := c.Open(t.Context(), console.Request{Namespace: "a", Name: "z"}); !errors.Is(err, console.ErrBusy) {
		t.Errorf("got %v", err)
	}
}
