package linktest

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// BenchConn measures one link: 500 bytes there and back, one after the other and 64 at
// once, and one way.
func BenchConn(b *testing.B, pair func(*testing.B) (edge, cloud link.Conn)) {
	body := Event(1, 500).Content.(*topicpb.Write).Body
	echo := func(b *testing.B, flying int) {
		edge, cloud := pair(b)
		go func() {
			for {
				m, err := cloud.Receive(b.Context())
				if err != nil || cloud.Send(b.Context(), m.Answer(&topicpb.APIResponse{Body: m.Content.(*topicpb.APIRequest).Body})) != nil {
					return
				}
			}
		}()
		request := topic.APIRequest.New(struct{ Namespace, Name string }{}, &topicpb.APIRequest{Body: body})
		sent := 0
		for i := 0; b.Loop(); i++ {
			for ; sent < i+flying; sent++ {
				if err := edge.Send(b.Context(), request); err != nil {
					b.Fatal(err)
				}
			}
			if _, err := edge.Receive(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
	}
	b.Run("RequestResponse", func(b *testing.B) { echo(b, 1) })
	b.Run("64InFlight", func(b *testing.B) { echo(b, 64) })
	b.Run("OneWay", func(b *testing.B) {
		edge, cloud := pair(b)
		write := topic.EventWrite.New(struct{ Namespace, Name string }{}, &topicpb.Write{Body: body})
		go func() {
			for edge.Send(b.Context(), write) == nil { // until the benchmark ends
			}
		}()
		for b.Loop() {
			if _, err := cloud.Receive(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
	})
}

// The environment of an idle measurement's child.
const (
	idleAddress = "SKERRY_LINKTEST_ADDRESS"
	idleFiles   = "SKERRY_LINKTEST_FILES"
	idleLinks   = 500
)

// BenchIdle measures the cost of an idle link for the process that accepted it: heap and stacks,
// after each link has carried a few messages. The other ends live in a process of their own, which
// is this benchmark once more.
func BenchIdle(b *testing.B,
	listen func(testing.TB, *tls.Config) link.Listener, dialer func(testing.TB, *tls.Config) link.Dialer,
) {
	bytes, _ := idle(b, idleLinks, []message.Message{Event(1, 100), Event(1, 100_000)}, listen, dialer)
	for b.Loop() {
	}
	b.ReportMetric(float64(bytes), "B/link")
}

// Idle is BenchIdle for a test: fewer links, which have carried short messages of three classes, as
// a node's have. It returns the bytes of heap and stacks and the goroutines that a link has.
func Idle(t *testing.T,
	listen func(testing.TB, *tls.Config) link.Listener, dialer func(testing.TB, *tls.Config) link.Dialer,
) (bytes, goroutines int) {
	request := topic.APIRequest.New(struct{ Namespace, Name string }{}, &topicpb.APIRequest{Body: Event(1, 500).Content.(*topicpb.Write).Body})
	return idle(t, idleLinks/5, []message.Message{heartbeat(1), request, Event(1, 1000)}, listen, dialer)
}

func idle(t testing.TB, n int, messages []message.Message,
	listen func(testing.TB, *tls.Config) link.Listener, dialer func(testing.TB, *tls.Config) link.Dialer,
) (bytes, goroutines int) {
	if address := os.Getenv(idleAddress); address != "" {
		idleChild(t, 1+n, len(messages), address, dialer)
	}
	s := NewSite(t)
	l := listen(t, s.ServerTLS())
	dir := t.TempDir()
	key, err := x509.MarshalPKCS8PrivateKey(s.Edge.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"ca.crt":  {Type: "CERTIFICATE", Bytes: s.Authority.Certificate.Raw},
		"tls.crt": {Type: "CERTIFICATE", Bytes: s.Edge.Leaf.Raw},
		"tls.key": {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stop := startIdleChild(t, idleAddress+"="+l.Addr().String(), idleFiles+"="+dir)
	defer stop()
	links := make([]link.Conn, 0, 1+n)
	open := func() {
		c, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		links = append(links, c)
		for _, m := range messages {
			if err := c.Send(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Receive(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	defer func() {
		for _, c := range links {
			_ = c.Close(link.CloseShutdown, "the measurement ended")
		}
	}()
	open() // the first one's shared state is not counted
	before, running := memory(), runtime.NumGoroutine()
	for range n {
		open()
	}
	after := memory() // readers have ended before this
	goroutines = (runtime.NumGoroutine() - running + n/2) / n
	runtime.KeepAlive(links)
	return int(after-before) / n, goroutines
}

// startIdleChild runs this benchmark or test in a process of its own, until stop is called.
func startIdleChild(b testing.TB, env ...string) (stop func()) {
	stdin, hold, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		b.Fatal(err)
	}
	name, _, _ := strings.Cut(b.Name(), "-")
	args := []string{os.Args[0], "-test.run=^" + name + "$"}
	if _, ok := b.(*testing.B); ok {
		args = []string{os.Args[0], "-test.run=^$", "-test.bench=^" + name + "$", "-test.benchtime=1x"}
	}
	child, err := os.StartProcess(os.Args[0], args,
		&os.ProcAttr{Env: append(os.Environ(), env...), Files: []*os.File{stdin, null, os.Stderr}})
	if err != nil {
		b.Fatal(err)
	}
	_, _ = stdin.Close(), null.Close() // the child has its own
	return func() {
		_ = hold.Close()
		_, _ = child.Wait()
	}
}

func idleChild(b testing.TB, links, messages int, address string, dialer func(testing.TB, *tls.Config) link.Dialer) {
	dir := os.Getenv(idleFiles)
	edge, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	if err != nil {
		b.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		b.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	d := dialer(b, &tls.Config{Certificates: []tls.Certificate{edge}, RootCAs: pool})
	for range links {
		c, err := d.Dial(b.Context(), address)
		if err != nil {
			b.Fatal(err)
		}
		for range messages {
			m, err := c.Receive(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			if err := c.Send(b.Context(), m); err != nil {
				b.Fatal(err)
			}
		}
	}
	_, _ = bufio.NewReader(os.Stdin).ReadByte() // until the parent has measured
	os.Exit(0)
}

// memory is the size of heap and stacks, after collection.
func memory() uint64 {
	for range 3 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}
