package e2e_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/skerry-io/skerry/tests/cluster/host"
)

// footprint is a process's resources.
type footprint struct{ goroutines, descriptors, heap int }

// footprint asks a program on a host for it: its own metrics, and its descriptors as the
// kernel counts them.
func (s *system) footprint(ctx context.Context, on, program, metrics string) (footprint, error) {
	h, err := s.Trial.Host(on)
	if err != nil {
		return footprint{}, err
	}
	token := ""
	if program == "edgecore" {
		token = s.metricsToken(on)
	}
	values, err := scrape(ctx, h, metrics, token)
	if err != nil {
		return footprint{}, err
	}
	f := footprint{goroutines: int(values["go_goroutines"]), heap: int(values["go_memstats_heap_inuse_bytes"])}
	found, err := filepath.Glob(filepath.Join(h.Root(), "proc/[0-9]*/comm"))
	if err != nil {
		return f, err
	}
	for _, comm := range found {
		if name, err := os.ReadFile(comm); err == nil && strings.TrimSpace(string(name)) == program {
			fds, err := os.ReadDir(filepath.Join(filepath.Dir(comm), "fd"))
			f.descriptors = len(fds)
			return f, err
		}
	}
	return f, fmt.Errorf("no %s runs on %s", program, on)
}

// scrape reads the metrics without labels.
func scrape(ctx context.Context, h host.Host, url, token string) (map[string]float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{DialContext: h.Dial, DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	values := map[string]float64{}
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), " "); ok && !strings.ContainsAny(name, "#{") {
			if v, err := strconv.ParseFloat(value, 64); err == nil {
				values[name] = v
			}
		}
	}
	return values, nil
}

// 500 streams to one kubelet, open at the same time; then they are closed. It is done twice: the
// leftovers of the first round may be room for the next, those added by the second are a leak.
func TestTunnel_14_500StreamsLeaveNothing(t *testing.T) {
	s := newSystem(t)
	holder := s.holder("edge1")
	replica := 1
	for i, name := range options().Replicas() {
		if name == holder {
			replica = i + 1
		}
	}
	cert, key := s.planeIdentity()
	const many = 500
	look := func(ctx context.Context) (edge, cloud footprint, err error) {
		if edge, err = s.footprint(ctx, "edge1", "edgecore", "http://127.0.0.1:10551/metrics"); err == nil {
			cloud, err = s.footprint(ctx, holder, "cloudcore", "http://127.0.0.1:10003/metrics")
		}
		return edge, cloud, err
	}
	round := func() {
		t.Helper()
		var mu sync.Mutex
		var open []net.Conn
		var all sync.WaitGroup
		turns := make(chan struct{}, 50)
		for range many {
			all.Go(func() {
				turns <- struct{}{}
				defer func() { <-turns }()
				conn, answer, err := s.connectTo(replica, "edge1:10250", cert, key)
				if err != nil || !strings.HasPrefix(answer, "HTTP/1.1 200 ") {
					t.Errorf("%q, %v", answer, err)
					return
				}
				// The kubelet's half of the stream works: it shows its certificate.
				kubelet := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // who it is does not matter here
				if err := kubelet.HandshakeContext(t.Context()); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				open = append(open, conn)
			})
		}
		all.Wait()
		edge, cloud, err := look(t.Context())
		s.Check(err)
		if edge.descriptors < len(open) || cloud.descriptors < len(open) {
			t.Errorf("with %d streams, edgecore has %d descriptors and cloudcore %d", len(open), edge.descriptors, cloud.descriptors)
		}
		t.Logf("with %d streams: edgecore %+v, cloudcore %+v", len(open), edge, cloud)
		for _, conn := range open {
			_ = conn.Close()
		}
	}
	edgeBefore, cloudBefore, err := look(t.Context())
	s.Check(err)
	t.Logf("before: edgecore %+v, cloudcore %+v", edgeBefore, cloudBefore)
	const slack = 40 // other activity: the kubelet's own work, kube-apiserver's connections
	var first [2]footprint
	for i := range 2 {
		round()
		s.WaitFor("goroutines and descriptors to be as before", func(ctx context.Context) error {
			edge, cloud, err := look(ctx)
			if err != nil {
				return err
			}
			for _, p := range []struct {
				what         string
				before, then footprint
			}{{"edgecore", edgeBefore, edge}, {"cloudcore", cloudBefore, cloud}} {
				if p.then.goroutines > p.before.goroutines+slack || p.then.descriptors > p.before.descriptors+slack {
					return fmt.Errorf("%s: %+v, before %+v", p.what, p.then, p.before)
				}
			}
			if i == 0 {
				first = [2]footprint{edge, cloud}
			}
			return nil
		})
	}
	// A stream that stayed would hold a window, two buffers and two stacks: 30 kB at the least.
	s.WaitFor("the memory to be as after the first round", func(ctx context.Context) error {
		edge, cloud, err := look(ctx)
		if err != nil {
			return err
		}
		if most := many * 30 << 10 / 2; edge.heap > first[0].heap+most || cloud.heap > first[1].heap+most {
			return fmt.Errorf("edgecore %+v, cloudcore %+v; after the first round %+v", edge, cloud, first)
		}
		t.Logf("after: edgecore %+v, cloudcore %+v", edge, cloud)
		return nil
	})
}
