package apps_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// receiverAddress is where cloudcore finds the receiver of logs, on its own host.
const receiverAddress = "127.0.0.1:4318"

// receiver takes logs by OTLP/HTTP, as far as its JSON goes.
type receiver struct {
	mu      sync.Mutex
	down    bool
	lines   []record
	dropped int64
	ids     map[string]int
}

type record struct {
	number    int // of the request that made the container write it
	container string
	app, node string
	time      time.Time
}

type otlpAttributes []struct {
	Key   string
	Value struct{ StringValue, IntValue string }
}

func (a otlpAttributes) get(key string) string {
	for _, one := range a {
		if one.Key == key {
			return one.Value.StringValue + one.Value.IntValue
		}
	}
	return ""
}

// written is a line of the sample application.
var written = regexp.MustCompile(`GET /line-(\d+)-`)

func (c *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down {
		http.Error(w, "not now", http.StatusServiceUnavailable)
		return
	}
	var body struct {
		ResourceLogs []struct {
			Resource  struct{ Attributes otlpAttributes }
			ScopeLogs []struct {
				LogRecords []struct {
					TimeUnixNano string
					Body         struct{ StringValue string }
					Attributes   otlpAttributes
				}
			}
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	for _, resource := range body.ResourceLogs {
		of := resource.Resource.Attributes
		for _, scope := range resource.ScopeLogs {
			for _, l := range scope.LogRecords {
				if text := l.Attributes.get("skerry.log.dropped"); text != "" {
					n, _ := strconv.ParseInt(text, 10, 64)
					c.dropped += n
					continue
				}
				c.ids[l.Attributes.get("skerry.log.id")]++
				m := written.FindStringSubmatch(l.Body.StringValue)
				if m == nil {
					continue // the application's own messages
				}
				n, _ := strconv.Atoi(m[1])
				nano, _ := strconv.ParseInt(l.TimeUnixNano, 10, 64)
				c.lines = append(c.lines, record{n, of.get("k8s.container.name"), of.get("skerry.app.uid"), of.get("k8s.node.name"), time.Unix(0, nano)})
			}
		}
	}
}

func (s *system) receive() *receiver {
	s.T.Helper()
	c := &receiver{ids: map[string]int{}}
	h, err := s.Trial.Host("cloud")
	s.Check(err)
	var l net.Listener
	s.Check(h.Do(func() (err error) { l, err = net.Listen("tcp", receiverAddress); return err }))
	server := &http.Server{Handler: c, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	s.T.Cleanup(func() { _ = server.Close(); <-ended })
	return c
}

// speaker has a pod's container write numbered lines, by asking it for pages that it does not have.
type speaker struct {
	s    *system
	pod  corev1.Pod
	said int
}

func (p *speaker) say(lines int) {
	p.s.T.Helper()
	h, err := p.s.Trial.Host(p.pod.Spec.NodeName)
	p.s.Check(err)
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return h.Dial(ctx, network, address)
	}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 30 * time.Second}
	for range lines {
		res, err := client.Get(fmt.Sprintf("http://%s:8080/line-%d-%s", p.pod.Status.PodIP, p.said, strings.Repeat("x", 100)))
		p.s.Check(err)
		p.s.Check(res.Body.Close())
		p.said++
	}
}

// files are the container's log files on its device.
func (p *speaker) files() []string {
	p.s.T.Helper()
	h, err := p.s.Trial.Host(p.pod.Spec.NodeName)
	p.s.Check(err)
	dir := filepath.Join(h.Root(), "var/log/pods", p.pod.Namespace+"_"+p.pod.Name+"_"+string(p.pod.UID), "sample")
	entries, err := os.ReadDir(dir)
	p.s.Check(err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// complete waits until the receiver has all lines, except those reported as dropped, and checks
// that no line came twice.
func (p *speaker) complete(c *receiver) (missing []int, dropped int64) {
	p.s.T.Helper()
	p.s.WaitFor(fmt.Sprintf("%d lines at the receiver", p.said), func(context.Context) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if have := len(c.lines) + int(c.dropped); have < p.said {
			return fmt.Errorf("there are %d lines, and %d are reported as dropped", len(c.lines), c.dropped)
		}
		return nil
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	count := make([]int, p.said)
	last := -1
	for _, l := range c.lines {
		count[l.number]++
		if l.number < last {
			p.s.T.Errorf("line %d came after %d", l.number, last)
		}
		last = l.number
	}
	for n, times := range count {
		switch {
		case times == 0:
			missing = append(missing, n)
		case times > 1:
			p.s.T.Errorf("line %d came %d times", n, times)
		}
	}
	for id, times := range c.ids {
		if id == "" || times > 1 {
			p.s.T.Errorf("id %q came %d times", id, times)
		}
	}
	return missing, c.dropped
}

// TestCluster_10: the output of an application's container is at the receiver, with application,
// container and time, in order: over the death of edgecore in the middle of it, rotations, a cut
// that no end notices at first, and a receiver that fails. No line is lost or comes twice. A cut
// that lasts longer than the kubelet keeps files: the oldest lines are lost, and as many are
// reported as dropped.
func TestCluster_10_LogsLoseNoLineAndDoubleNone(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	c := s.receive()
	s.create(ns, appYAML("speaks", "edge1", "  collectLogs: true", "  affinity: Required"))
	s.create(ns, appYAML("whispers", "edge1", "  affinity: Required"))
	p := &speaker{s: s, pod: s.waitOn(ns, "speaks", "edge1")}
	quiet := &speaker{s: s, pod: s.waitOn(ns, "whispers", "edge1"), said: 1_000_000}
	quiet.say(5) // did not ask for it
	whole := func(what string) {
		t.Helper()
		if missing, dropped := p.complete(c); len(missing) > 0 || dropped > 0 {
			t.Fatalf("%s: lines %v are missing, %d were dropped", what, missing, dropped)
		}
	}
	p.say(50)
	whole("at first")

	p.say(30)
	s.Kill("edge1", "edgecore")
	p.say(50)
	s.Start("edge1", "edgecore")
	p.say(20)
	whole("edgecore died")

	p.say(250)
	s.WaitFor("a rotation", func(context.Context) error {
		if files := p.files(); len(files) < 2 {
			return fmt.Errorf("there is %v", files)
		}
		return nil
	})
	p.say(20)
	whole("rotated")

	c.set(true)
	p.say(20)
	c.set(false)
	p.say(20)
	s.CutSilently("edge1") // perhaps between a batch and its answer
	p.say(40)
	s.Heal("edge1")
	p.say(20)
	whole("cut")

	// Longer than there are files.
	s.Cut("edge1")
	before := p.said
	stamps := map[string]bool{} // of all files that were ever renamed
	s.WaitFor("the files of the cut's begin to be gone", func(context.Context) error {
		if len(stamps) < 6 {
			p.say(300)
		}
		for _, name := range p.files() {
			if stamp := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSuffix(name, ".tmp"), "0.log"), ".gz"); stamp != "" {
				stamps[stamp] = true
			}
		}
		if len(stamps) < 6 { // two from before, of which three are kept
			return fmt.Errorf("there were %v", stamps)
		}
		return nil
	})
	s.Heal("edge1")
	missing, dropped := p.complete(c)
	if len(missing) == 0 || int64(len(missing)) != dropped {
		t.Errorf("%d lines are missing, %d are reported as dropped", len(missing), dropped)
	}
	for i, n := range missing {
		if n != missing[0]+i || n < before {
			t.Errorf("line %d is missing, of those from %d on: not the oldest", n, missing[0])
			break
		}
	}
	app, err := s.read(t.Context(), ns, "speaks")
	s.Check(err)
	for _, l := range c.all() {
		if l.app != string(app.UID) || l.container != "sample" || l.node != "edge1" || time.Since(l.time) > time.Hour || l.time.After(time.Now()) || l.number >= 1_000_000 {
			t.Errorf("a line is %+v", l)
			break
		}
	}
}

func (c *receiver) set(down bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = down
}

func (c *receiver) all() []record {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.lines)
}
