package relay_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub/hubtest"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/core/relay"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// counting is a session that keeps the headers of the answers without their bodies.
type counting struct {
	hubtest.Session

	mu    sync.Mutex
	codes map[int32]int
	bytes int
}

func (c *counting) Send(_ context.Context, m message.Message) error {
	if a, ok := m.Content.(*topicpb.APIResponse); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.codes[a.GetCode()]++
		c.bytes += len(a.GetBody())
	}
	return nil
}

func (c *counting) answered() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.codes {
		n += k
	}
	return n
}

// longLists is a kube-apiserver whose lists are long, of which the last byte is held back until it
// is let go; sent counts the bytes that the client's windows took. It speaks HTTP/2, as a real one.
func longLists(t *testing.T, size int) (config *rest.Config, sent *atomic.Int64, letGo func()) {
	t.Helper()
	sent = new(atomic.Int64)
	body := make([]byte, size) // shared by all answers: only the client's memory grows
	rand.Read(body)
	held := make(chan struct{})
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/api/v1/nodes") {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		for rest := body[:size-1]; len(rest) > 0; rest = rest[min(len(rest), 32<<10):] {
			n, err := w.Write(rest[:min(len(rest), 32<<10)])
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
		w.(http.Flusher).Flush()
		select {
		case <-held:
			_, _ = w.Write(body[size-1:])
		case <-r.Context().Done():
		}
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	return &rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, sent, sync.OnceFunc(func() { close(held) })
}

func live() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestHostile_02_AnswersOnTheWayAreBounded: one device asks for as many long lists at once as it
// may. cloudcore buffers at most the link's 16 MiB of them while kube-apiserver sends, however long
// the lists are; a request that does not fit is refused with 429, and one that fits is answered in
// full.
func TestHostile_02_AnswersOnTheWayAreBounded(t *testing.T) {
	const size, most, requests = 5 << 20, 16 << 20, 16
	config, sent, letGo := longLists(t, size)
	defer letGo()
	client, err := kube.NewClient(config, kube.Constrained)
	if err != nil {
		t.Fatal(err)
	}
	r := relay.New(client, relay.NewPods(stores{kube.NewStore(kube.Pods)}), "cloudcore-1")
	r.Limit(relay.Quotas{Bytes: 8 << 20}) // the default
	c := &counting{Session: hubtest.Session{Name: "edge1"}, codes: map[int32]int{}}
	mux := message.NewMux()
	service := r.Attach(c, mux)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- cloudhub.Serve(ctx, service) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	before := live()
	for i := range requests {
		ask := &topicpb.APIRequest{Method: http.MethodGet, Path: fmt.Sprintf("/api/v1/nodes/n%d", i), TimeoutMillis: 60_000}
		if err := mux.Dispatch(ctx, topic.APIRequest.New(message.Resource{}, ask)); err != nil {
			t.Fatal(err)
		}
	}
	for still, last := 0, int64(-1); still < 30; still++ { // until no more bytes are sent
		if now := sent.Load() + int64(c.answered()); now != last {
			still, last = 0, now
		}
		time.Sleep(10 * time.Millisecond) // the server runs in this process, on few processors
	}
	// Compares the bytes received, not the peak of the heap: a growing buffer briefly exists twice.
	if sent.Load() > most {
		t.Errorf("kube-apiserver could send %d MiB", sent.Load()>>20)
	}
	held := live() - before
	if held > most {
		t.Errorf("the link holds %d MiB", held>>20)
	}
	refused := c.answered()
	letGo()
	for c.answered() < requests {
		time.Sleep(10 * time.Millisecond)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.codes[http.StatusOK] != requests-refused || c.codes[http.StatusOK] == 0 || c.codes[http.StatusTooManyRequests] != refused || refused == 0 || c.bytes < c.codes[http.StatusOK]*size {
		t.Errorf("answers by code: %v, %d of them before the lists ended; %d bytes", c.codes, refused, c.bytes)
	}
	t.Logf("%d KiB held, answers by code %v", held>>10, c.codes)
}
