package e2e_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/poll"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// metricsAddress is where each cloudcore of this test finds the receiver, on its own host.
const metricsAddress = "127.0.0.1:4320"

// metricsReceiver takes samples by OTLP/HTTP, as far as its JSON goes.
type metricsReceiver struct {
	s     *system
	close func() // ends its servers; cloudcore's connections are refused then

	mu     sync.Mutex
	points map[string]map[int64]float64 // by series and Unix second
	twice  map[int64][]string           // the series, by second
	// beforeAnswer is called once, when samples of the series have come and before they are
	// acknowledged.
	beforeAnswer func()
	series       string
}

// interrupt sets beforeAnswer. done is closed when it has returned.
func (c *metricsReceiver) interrupt(series string, f func()) (done <-chan struct{}) {
	ended := make(chan struct{})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.series, c.beforeAnswer = series, func() { defer close(ended); f() }
	return ended
}

func (c *metricsReceiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	type points []struct {
		TimeUnixNano string
		AsDouble     float64
		Attributes   []struct {
			Key   string
			Value struct{ StringValue string }
		}
	}
	var body struct {
		ResourceMetrics []struct {
			ScopeMetrics []struct {
				Metrics []struct {
					Name       string
					Gauge, Sum struct{ DataPoints points }
				}
			}
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	interrupt := func() {}
	defer func() { interrupt() }()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range body.ResourceMetrics {
		for _, scope := range resource.ScopeMetrics {
			for _, m := range scope.Metrics {
				for _, p := range append(m.Gauge.DataPoints, m.Sum.DataPoints...) {
					name := m.Name
					for _, a := range p.Attributes {
						name += " " + a.Value.StringValue
					}
					nano, _ := strconv.ParseInt(p.TimeUnixNano, 10, 64)
					at := nano / int64(time.Second)
					if c.points[name] == nil {
						c.points[name] = map[int64]float64{}
					}
					if _, there := c.points[name][at]; there {
						c.twice[at] = append(c.twice[at], name)
					}
					c.points[name][at] = p.AsDouble
					if name == c.series && c.beforeAnswer != nil {
						interrupt, c.beforeAnswer = c.beforeAnswer, nil
					}
				}
			}
		}
	}
}

// of returns the samples of a series within a time, and those that came twice.
func (c *metricsReceiver) of(series string, from, to time.Time) (values map[int64]float64, twice []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	values = map[int64]float64{}
	for at, v := range c.points[series] {
		if at >= from.Unix() && at <= to.Unix() {
			values[at] = v
		}
	}
	for at, names := range c.twice {
		if at >= from.Unix() && at <= to.Unix() {
			twice = append(twice, fmt.Sprintf("%s at %d", names, at))
		}
	}
	return values, twice
}

// listen starts a server on the host of each replica.
func (c *metricsReceiver) listen() {
	c.s.T.Helper()
	var servers []*http.Server
	var all sync.WaitGroup
	for _, replica := range options().Replicas() {
		h, err := c.s.Trial.Host(replica)
		c.s.Check(err)
		var l net.Listener
		c.s.Check(h.Do(func() (err error) { l, err = net.Listen("tcp", metricsAddress); return err }))
		server := &http.Server{Handler: c, ReadHeaderTimeout: 10 * time.Second}
		servers = append(servers, server)
		all.Go(func() { _ = server.Serve(l) })
	}
	c.close = func() {
		for _, server := range servers {
			_ = server.Close()
		}
		all.Wait()
	}
}

// receiveMetrics has all cloudcores send samples to a receiver until the test ends.
func (s *system) receiveMetrics() *metricsReceiver {
	s.T.Helper()
	c := &metricsReceiver{s: s, points: map[string]map[int64]float64{}, twice: map[int64][]string{}}
	c.listen()
	s.T.Cleanup(func() { c.close() })
	s.cloudcoreSetting("metrics", map[string]any{"endpoint": "http://" + metricsAddress + "/v1/metrics"})
	return c
}

// quickSamples has a device sample each second in place of each minute, until the test ends; with
// SKERRY_MINUTE, once in that time.
func (s *system) quickSamples(node string) (every time.Duration) {
	s.T.Helper()
	const interval, send = "modules.nodeMetrics.interval=", "modules.nodeMetrics.sendInterval="
	every = time.Second
	if os.Getenv(minuteEnv) != "" {
		every = minutes(s.T, 1)
	}
	s.Check(s.Trial.Set(s.T.Context(), node, []string{interval + every.String(), send + max(3*time.Second, 2*every).String()}))
	s.T.Cleanup(func() {
		if err := s.Trial.Set(context.Background(), node, []string{interval + "1m0s", send + "5m0s"}); err != nil {
			s.T.Error(err)
		}
	})
	s.waitLinked(node)
	return every
}

// A minute is a second here, and a cut 24 of them; with SKERRY_LONG=1 and SKERRY_MINUTE=1m it is a
// real hour. The samples of a cut in which edgecore starts again reach the receiver with their own
// times, each once, although the receiver is down at first and the cable is pulled before the
// device has the first answer; then cloudcore serves the newest. A single cloudcore runs: after a
// lost answer another replica passes the samples on again.
func TestOperate_04_MetricsOfACutArriveWithTheirTimes(t *testing.T) {
	s := newSystem(t)
	to := s.receiveMetrics()
	every := s.quickSamples("edge1")
	replica := s.atOneReplica()
	const up = "skerry_node_link_up edge1"
	s.WaitFor("samples of edge1", func(context.Context) error {
		if values, _ := to.of(up, time.Unix(0, 0), time.Now()); len(values) < max(1, int(5*time.Second/every)) {
			return fmt.Errorf("%d came", len(values))
		}
		return nil
	})
	s.Cut("edge1")
	s.waitUnlinked("edge1")
	start := time.Now().Add(time.Second) // samples have whole seconds
	waiting := func(ctx context.Context) (int, error) {
		var status struct{ NodeMetrics struct{ Waiting int } }
		err := s.EdgeStatus(ctx, "edge1", &status)
		return status.NodeMetrics.Waiting, err
	}
	before, err := waiting(t.Context()) // of the time until the device noticed
	s.Check(err)
	await := func(n int) {
		for next := before + 1; next <= before+n; next++ { // each may take a minute
			s.WaitFor(fmt.Sprintf("%d samples to wait", next), func(ctx context.Context) error {
				held, err := waiting(ctx)
				if err == nil && held < next {
					err = fmt.Errorf("%d wait", held)
				}
				return err
			})
		}
	}
	most := 24
	if os.Getenv("SKERRY_LONG") != "" {
		most = 60
	}
	// waits is how many wait of those that were taken since start, but for one at each end.
	waits := func() int {
		n, err := waiting(t.Context())
		s.Check(err)
		return n - before - 2
	}
	await(most / 2)
	early, restart := waits(), time.Now().Add(time.Second)
	s.Check(s.Trial.Stop(t.Context(), "edge1", "edgecore"))
	s.Start("edge1", "edgecore")
	await(most)
	all, end := waits(), time.Now()
	s.loseFirstAnswer(to, up, replica, func() {
		if held := waits(); held < all {
			t.Errorf("%d samples wait while the receiver is down, %d were taken", held, all)
		}
	})
	s.WaitFor("the samples of the cut", func(ctx context.Context) error {
		values, _ := to.of(up, start, end)
		held, err := waiting(ctx)
		if err == nil && (held > 10 || len(values) < all) {
			err = fmt.Errorf("%d wait, %d came, %d were taken", held, len(values), all)
		}
		return err
	})
	if came, _ := to.of(up, start, restart); len(came) < early {
		t.Errorf("%d samples of before the restart of edgecore came, %d were taken", len(came), early)
	}
	s.WaitFor("samples of after the cut", func(context.Context) error {
		if later, _ := to.of(up, end.Add(2*time.Second), time.Now()); len(later) == 0 {
			return errors.New("none came")
		}
		return nil
	})
	values, twice := to.of(up, start, end)
	if len(twice) > 0 {
		t.Errorf("came twice: %s", strings.Join(twice[:min(len(twice), 5)], ", "))
	}
	for at, v := range values {
		if v != 0 && at < end.Unix() { // the link may come back within that second
			t.Errorf("at %d the link was up", at)
		}
	}
	memory, _ := to.of("skerry_node_memory_size_bytes edge1", start, end)
	if len(memory) != len(values) {
		t.Errorf("%d samples of one series and %d of another", len(values), len(memory))
	}
	s.WaitFor("cloudcore to serve the newest sample", func(ctx context.Context) error {
		body, err := s.scrape(ctx, replica)
		if err == nil && !(strings.Contains(body, `skerry_node_pods{node="edge1",phase="Running"}`) && strings.Contains(body, `skerry_node_link_up{node="edge1"} 1`)) {
			err = errors.New("it serves no sample of edge1")
		}
		return err
	})
	if n := s.counter(t.Context(), replica, "skerry_nodemetrics_repeated_total"); n == 0 {
		t.Error("no sample came again although an answer was lost")
	}
}

// loseFirstAnswer links edge1, whose samples wait, while the receiver is down; then once more, and
// pulls its cable when the receiver has its first samples and before cloudcore knows; then it heals
// the cable. down is called while the receiver is down.
func (s *system) loseFirstAnswer(to *metricsReceiver, series, replica string, down func()) {
	s.T.Helper()
	to.close()
	before := s.counter(s.T.Context(), replica, "skerry_nodemetrics_failures_total")
	s.Heal("edge1")
	s.waitLinked("edge1")
	s.WaitFor("cloudcore to miss the receiver", func(ctx context.Context) error {
		if s.counter(ctx, replica, "skerry_nodemetrics_failures_total") == before {
			return errors.New("it delivered all")
		}
		return nil
	})
	down()
	s.Cut("edge1")
	s.waitUnlinked("edge1")
	to.listen()
	var err error
	done := to.interrupt(series, func() { err = s.Trial.Cut(context.WithoutCancel(s.T.Context()), "edge1", lab.Carrier) })
	s.Heal("edge1")
	select {
	case <-done:
	case <-time.After(poll.Patience):
		s.T.Fatal("the device sent no samples again")
	}
	s.Check(err)
	s.waitUnlinked("edge1")
	s.Heal("edge1")
	s.waitLinked("edge1")
}

// counter reads a counter of a replica of cloudcore that has no labels.
func (s *system) counter(ctx context.Context, replica, name string) float64 {
	s.T.Helper()
	body, err := s.scrape(ctx, replica)
	s.Check(err)
	for line := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			s.Check(err)
			return n
		}
	}
	s.T.Fatalf("%s has no %s", replica, name)
	return 0
}

// wholePackets has the hosts send packets as they are on a cable: else one of 64 kB counts as one,
// with one header.
func (s *system) wholePackets(hosts ...string) {
	s.T.Helper()
	set := func(ctx context.Context, host, most string) error {
		var errs strings.Builder
		code, err := s.Trial.Exec(ctx, host, trial.Streams{Err: &errs}, nil, "sh", "-c",
			`for d in $(ip -o link | cut -d: -f2 | cut -d@ -f1); do [ $d = lo ] || ip link set dev $d gso_max_segs `+most+` || exit 1; done`)
		if err == nil && code != 0 {
			err = fmt.Errorf("on %s: %s", host, errs.String())
		}
		return err
	}
	for _, host := range hosts {
		s.Check(set(s.T.Context(), host, "1"))
		s.T.Cleanup(func() {
			if err := set(context.Background(), host, "65535"); err != nil {
				s.T.Error(err)
			}
		})
	}
}

// top is an item of `kubectl skerry top -o json`.
type top struct {
	Name               string
	Since, LastContact time.Time
	Traffic            struct {
		Wire    struct{ Up, Down int64 }
		Classes [][4]int64 // messages and bytes up, messages and bytes down
	}
}

func (s *system) top(ctx context.Context, node string) (top, error) {
	out, err := s.Run(ctx, "kubectl", "skerry", "top", "-o", "json")
	if err != nil {
		return top{}, err
	}
	var list struct{ Items []top }
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return top{}, err
	}
	for _, d := range list.Items {
		if d.Name == node {
			return d, nil
		}
	}
	return top{}, fmt.Errorf("%s is not there: %.300s", node, out)
}

// writeLarge writes a ConfigMap that no compression makes much smaller.
func (s *system) writeLarge(namespace string, round int) {
	s.T.Helper()
	raw := make([]byte, 400<<10)
	_, _ = rand.NewChaCha8([32]byte{byte(round)}).Read(raw)
	m := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "large"},
		Data:       map[string]string{"round": strconv.Itoa(round), "data": base64.StdEncoding.EncodeToString(raw)},
	}
	maps := s.Client.CoreV1().ConfigMaps(namespace)
	_, err := maps.Update(s.T.Context(), m, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = maps.Create(s.T.Context(), m, metav1.CreateOptions{})
	}
	s.Check(err)
}

// countLink has edge1 link anew and get some megabytes, and returns what top and the cable count;
// whole is false if another link has begun since.
func (s *system) countLink(namespace string, rounds int) (got top, cable int64, whole bool) {
	s.T.Helper()
	s.Check(s.Trial.Stop(s.T.Context(), "edge1", "edgecore"))
	before := s.linkBytes("edge1")
	s.Start("edge1", "edgecore")
	s.waitLinked("edge1")
	linked := time.Now()
	for round := 1; round <= rounds; round++ {
		s.writeLarge(namespace, round)
		s.WaitFor("the device to have it", func(ctx context.Context) error {
			out, err := s.TryEdgeKubectl(ctx, "edge1", "get", "configmap", "-n", namespace, "large", "-o", "jsonpath={.data.round}")
			if err == nil && out != strconv.Itoa(round) {
				err = fmt.Errorf("it has round %q", out)
			}
			return err
		})
	}
	s.settle("edge1")
	quiet := time.Now()
	s.WaitFor("a renewal of the Lease after the last message", func(ctx context.Context) (err error) {
		if got, err = s.top(ctx, "edge1"); err == nil && !got.LastContact.After(quiet) {
			err = fmt.Errorf("the last is of %v", got.LastContact)
		}
		return err
	})
	return got, s.linkBytes("edge1") - before, !got.Since.After(linked)
}

// What top shows of a link that carried some megabytes agrees with what crossed the cable.
func TestOperate_03_TopAgreesWithTheCable(t *testing.T) {
	s := newSystem(t)
	s.plugin()
	ns := s.Namespace()
	s.writeLarge(ns, 0)
	s.Apply(ns, islander("reader", "edge1")+"    volumeMounts: [{name: all, mountPath: /config}]\n  volumes: [{name: all, configMap: {name: large}}]\n")
	s.WaitPods(ns, "app=reader", "edge1", 1)
	s.wholePackets(append(options().Replicas(), "edge1")...)
	const rounds = 6
	got, cable, whole := s.countLink(ns, rounds)
	for again := 0; !whole && again < 3; again++ { // the replicas share the links out after a restart
		t.Logf("the link began anew at %v", got.Since)
		got, cable, whole = s.countLink(ns, rounds)
	}
	if !whole {
		t.Fatal("no link stayed")
	}
	wire := got.Traffic.Wire.Up + got.Traffic.Wire.Down
	t.Logf("on the cable %d bytes, by top %d: %+.2f %%", cable, wire, 100*(float64(wire)/float64(cable)-1))
	if float64(wire) < 0.98*float64(cable) || float64(wire) > 1.02*float64(cable) {
		t.Errorf("top shows %d bytes up and %d down, %d crossed the cable", got.Traffic.Wire.Up, got.Traffic.Wire.Down, cable)
	}
	var classes int64
	for _, c := range got.Traffic.Classes {
		classes += c[1] + c[3]
	}
	const normal = 2 // objects
	if len(got.Traffic.Classes) <= normal {
		t.Fatalf("by class: %v", got.Traffic.Classes)
	}
	if n := got.Traffic.Classes[normal]; n[3] < rounds*(390<<10) || n[2] < rounds || classes > wire || classes < wire*8/10 {
		t.Errorf("by class: %v, %d bytes of %d", got.Traffic.Classes, classes, wire)
	}
	out := s.Kubectl("skerry", "top", "-o", "wide")
	if !strings.HasPrefix(out, "NAME ") || !strings.Contains(out, "NORMAL-MESSAGES") || !strings.Contains(out, "\nedge1 ") || !strings.Contains(out, "\n(all) ") {
		t.Error(out)
	}
	t.Log("\n" + out)
}

// A Prometheus that watches the trial has an answer for each query of the dashboards, and a series
// of each metric in them: a query whose default is 0 is never empty.
func TestOperate_07_NoPanelIsEmpty(t *testing.T) {
	s := newSystem(t)
	s.quickSamples("edge1")
	s.monitored()
	m := s.monitor()
	exprs, names := map[string]bool{}, regexp.MustCompile(`\bskerry_\w+`)
	for _, name := range []string{"dashboard-fleet.json", "dashboard-device.json"} {
		raw, err := os.ReadFile(filepath.Join(s.Root, "manifests", "monitoring", name))
		s.Check(err)
		var d struct {
			Panels []struct {
				Title   string
				Targets []struct{ Expr string }
			}
		}
		s.Check(json.Unmarshal(raw, &d))
		if len(d.Panels) < 10 {
			t.Errorf("%s has %d panels", name, len(d.Panels))
		}
		for _, p := range d.Panels {
			if len(p.Targets) == 0 {
				t.Errorf("%s: %s has no query", name, p.Title)
			}
			for _, q := range p.Targets {
				exprs[strings.ReplaceAll(q.Expr, "$node", "edge1")] = true
				for _, metric := range names.FindAllString(q.Expr, -1) {
					exprs[metric] = true
				}
			}
		}
	}
	s.WaitFor("an answer for each panel", func(ctx context.Context) error {
		var empty []string
		for expr := range exprs {
			switch found, err := m.query(ctx, expr); {
			case err != nil:
				return fmt.Errorf("%s: %w", expr, err)
			case len(found) == 0:
				empty = append(empty, expr)
			default:
				delete(exprs, expr)
			}
		}
		if len(empty) > 0 {
			return fmt.Errorf("empty: %s", strings.Join(empty, "\n"))
		}
		return nil
	})
}
