package line_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/skerry-io/skerry/tests/campaign/line"
)

// echo is a server that answers each line with its name.
func echo(t *testing.T, name string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for lines := bufio.NewScanner(c); lines.Scan(); {
					fmt.Fprintln(c, name, lines.Text())
				}
			}()
		}
	}()
	return l.Addr().String()
}

func serve(t *testing.T, servers ...string) *line.Line {
	t.Helper()
	l, err := line.Listen(servers...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l
}

type client struct {
	net.Conn
	lines *bufio.Scanner
}

func dial(t *testing.T, l *line.Line) client {
	t.Helper()
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", l.Port()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return client{c, bufio.NewScanner(c)}
}

// ask returns "" where the connection ended.
func (c client) ask(text string) string {
	fmt.Fprintln(c, text)
	if !c.lines.Scan() {
		return ""
	}
	return c.lines.Text()
}

func TestLine_passesOverAServerThatIsAway(t *testing.T) {
	l := serve(t, "127.0.0.1:1", echo(t, "a"))
	for range 8 {
		if got := dial(t, l).ask("x"); got != "a x" {
			t.Fatalf("got %q", got)
		}
	}
}

func TestLine_leadsToAll(t *testing.T) {
	l := serve(t, echo(t, "a"), echo(t, "b"))
	seen := map[string]bool{}
	for range 64 {
		seen[dial(t, l).ask("x")] = true
	}
	if !seen["a x"] || !seen["b x"] {
		t.Errorf("got %v", seen)
	}
}

func TestLine_avoids(t *testing.T) {
	a := echo(t, "a")
	l := serve(t, a, echo(t, "b"))
	l.Avoid(a)
	for range 16 {
		if got := dial(t, l).ask("x"); got != "b x" {
			t.Fatalf("got %q", got)
		}
	}
}

func TestLine_cut(t *testing.T) {
	l := serve(t, echo(t, "a"))
	c := dial(t, l)
	if got := c.ask("x"); got != "a x" {
		t.Fatalf("got %q", got)
	}
	l.Set(line.State{Cut: true})
	if got := c.ask("x"); got != "" {
		t.Errorf("an open connection answers %q", got)
	}
	if c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", l.Port())); err == nil { // else it was reset before connect(2) returned
		defer c.Close()
		if got := (client{c, bufio.NewScanner(c)}).ask("x"); got != "" {
			t.Errorf("a new one answers %q", got)
		}
	}
	l.Set(line.State{})
	if got := dial(t, l).ask("x"); got != "a x" {
		t.Errorf("got %q", got)
	}
}

func TestLine_silent(t *testing.T) {
	l := serve(t, echo(t, "a"))
	c := dial(t, l)
	c.ask("x")
	l.Set(line.State{Silent: true})
	fmt.Fprintln(c, "y")
	if err := c.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Error("something came")
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	l.Set(line.State{})
	if !c.lines.Scan() || c.lines.Text() != "a y" {
		t.Errorf("got %q", c.lines.Text())
	}
}

func TestLine_thin(t *testing.T) {
	l := serve(t, echo(t, "a"))
	c := dial(t, l)
	c.ask("x")
	l.Set(line.State{Rate: 1000})
	start := time.Now()
	text := string(make([]byte, 50))
	if got := c.ask(text); got != "a "+text {
		t.Errorf("got %q", got)
	}
	if took := time.Since(start); took < 50*time.Millisecond {
		t.Errorf("50 bytes took %v at 1000 bytes a second", took)
	}
}
