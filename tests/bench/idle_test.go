package bench_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/cluster/ca"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

const (
	whatIdleBytes  = "bytes on an idle link in an hour, both ways, 10 pods"
	whatIdleSyncs  = "fsyncs of ours in an hour, idle"
	whatIdleWrites = "writes of an idle node at kube-apiserver in an hour"
	whatSamples    = "bytes of the samples of a node's metrics in an hour"
	whatSampleCPU  = "samples of a node's metrics: CPU of edgecore in a minute"
	whatLease      = "bytes of a node's Lease in etcd"
	whatIdleCPU    = "edgecore idle, 10 pods: CPU in a minute"
	heartbeat      = 10 * time.Second // hub.keepalive
	parts          = 5                // of the time, for the spread
)

// idle watches two nodes with ten pods each, and in addition a bare TLS connection that sends one
// byte each interval.
func (s *bench) idle(b *testing.B) {
	s.up(b)
	ours, theirs := podsOf("idle", edge, 10), podsOf("idle", plain, 10)
	s.start(b, ours...)
	s.start(b, theirs...)
	s.quiet(b)
	s.settle(b)
	stop := s.keepalives(b)
	defer stop()
	pause(b, heartbeat)

	bytes := row{what: whatIdleBytes, unit: "bytes", floorName: "one TLS record of one byte and its TCP acknowledgement each 10 s", goal: "at most 1.3 x, without samples", judge: ratio(1.3)}
	syncs := row{what: whatIdleSyncs, unit: "fsyncs", goal: "0", judge: atMost(0, "fsyncs")}
	writes := row{what: whatIdleWrites, unit: "writes", floorName: "plain kubelet, by its Lease and status", goal: "at most the plain kubelet's", judge: ratio(1.02)}
	cpu := row{what: whatIdleCPU, unit: "ms", floorName: "plain kubelet", goal: "at most 1.05 x", judge: ratio(1.05)}
	samples := row{what: whatSamples, unit: "bytes", goal: "at most 20 kB", judge: atMost(20_000, "bytes")}
	sampled := s.sampleBytes(b)
	lease := row{what: whatLease, unit: "bytes", ours: []float64{s.leaseSize(b, edge)}, floor: []float64{s.leaseSize(b, plain)}, floorName: "the plain kubelet's", goal: "at most 1200 bytes more", judge: above(1200, "bytes")}
	lease.note = "as protobuf, managed fields included. Skerry's annotations are in it: the session, its traffic by class, the epoch and the replica (docs/dev/decisions/0104, 0116). Each renewal writes it anew, 180 times in an hour."
	place := s.audit(b)
	before, err := s.status(b.Context(), b)
	check(b, err)
	changed := s.newest(b)
	slice := *idle / parts
	hour := float64(time.Hour) / float64(slice)
	var plainWire []float64
	wire, floor, theirWire := s.wire(b, edge, "wan0"), s.wire(b, trial.Client, "lan0"), s.wire(b, plain, "wan0")
	first, firstFloor := wire, floor
	used, minute := s.spent(b), float64(time.Minute)/float64(slice)
	lastSampled := sampled
	for range parts {
		pause(b, slice)
		nowUsed := s.spent(b)
		cpu.ours, cpu.floor = append(cpu.ours, (nowUsed["edgecore"]-used["edgecore"])*minute), append(cpu.floor, (nowUsed["plainkubelet"]-used["plainkubelet"])*minute)
		used = nowUsed
		now, nowFloor, nowTheirs := s.wire(b, edge, "wan0"), s.wire(b, trial.Client, "lan0"), s.wire(b, plain, "wan0")
		nowSampled := s.sampleBytes(b)
		bytes.ours, bytes.floor = append(bytes.ours, (now-wire-(nowSampled-lastSampled))*hour), append(bytes.floor, (nowFloor-floor)*hour)
		lastSampled = nowSampled
		plainWire = append(plainWire, (nowTheirs-theirWire)*hour)
		wire, floor, theirWire = now, nowFloor, nowTheirs
	}
	after, err := s.status(b.Context(), b)
	check(b, err)
	perHour := float64(time.Hour) / float64(*idle)
	syncs.ours = []float64{0}
	commits, written := after.Data.Store.Commits-before.Data.Store.Commits, grown(before.Data.Store.Records, after.Data.Store.Records)
	_, tokens := written[keptTokens]
	if others := len(written) > 1 || len(written) == 1 && !tokens; others {
		syncs.ours[0] = float64(commits) * syncsOfCommit * perHour
	}
	syncs.note = fmt.Sprintf("by the commits of the store, each of which syncs twice, from %v without one on. ", settled)
	switch {
	case commits == 0 && s.newest(b) == changed:
		syncs.note += fmt.Sprintf("In %v there was none, and no file in the data directory of edgecore was written.", *idle)
	case commits == 0:
		syncs.note += fmt.Sprintf("In %v there was none, but a file in the data directory of edgecore was written.", *idle)
	default:
		syncs.note += fmt.Sprintf("In %v there were %d, which changed records of these kinds: %s.", *idle, commits, list(written))
		if written["interests"] > 0 {
			syncs.note += " What nothing has asked for in 10 minutes is given up, once: that is what the start of the kubelet and of the pods had asked for."
		}
	}
	syncs.note += " Tokens that the kubelet has renewed, each after some 48 minutes, are kept and not counted: " + fmt.Sprint(written[keptTokens]) + " in that time."
	samples.ours = []float64{(lastSampled - sampled) * perHour}
	samples.note = fmt.Sprintf("the messages and their answers, with %d bytes each for TLS, TCP, IP, Ethernet and the acknowledgement, over %v. TestOperate_05 counts them on a cable, of a busy device.", messageOverhead, *idle)
	count := map[string]float64{}
	for _, w := range place.since(b) {
		count[by(w)] += perHour
	}
	writes.ours, writes.floor = []float64{count["system:node:"+edge]}, []float64{count["system:node:"+plain]}
	writes.note = fmt.Sprintf("counted in kube-apiserver's audit log for %v. cloudcore itself, for all nodes together, wrote %.4g in an hour: the Leases of its leader election and of how many sessions it has.", *idle,
		count["system:serviceaccount:skerry-system:cloudcore"])
	bytes.note = fmt.Sprintf("over %s, without the samples of metrics, which have a row of their own. All %v together, with those and the statuses and tokens of the kubelet, it is %.4g bytes an hour, %.2f x of the floor. The plain kubelet took %.4g bytes an hour.",
		before.Link.Transport, *idle, (wire-first)*perHour, (wire-first)/(floor-firstFloor), median(plainWire))
	cpu.note = fmt.Sprintf("utime and stime of the process, over %v in %d parts; the pods have no probes. What edgecore has beside its kubelet while nothing happens is the link's heartbeat, the timers of its agents, "+
		"and the edge API that the kubelet's watches end at.", *idle, parts)
	hurried := s.sampleCPU(b, slice, median(cpu.ours))
	s.remove(b, ours...)
	s.remove(b, theirs...)
	s.rows = append(s.rows, bytes, samples, lease, syncs, writes, cpu, hurried)
}

// sampleCPU has the edge sample and send 60 times as often, and divides what that takes more.
func (s *bench) sampleCPU(b *testing.B, slice time.Duration, usual float64) row {
	b.Helper()
	const hurry = 60
	pace := func(interval, send string) {
		check(b, s.Set(b.Context(), edge, []string{"modules.nodeMetrics.interval=" + interval, "modules.nodeMetrics.sendInterval=" + send}))
		s.awaitReady(b, edge)
		s.awaitLinked(b)
	}
	pace("1s", "5s")
	pause(b, settled) // the start of edgecore
	r := row{what: whatSampleCPU, unit: "ms", goal: "at most 10 ms", judge: atMost(10, "ms")}
	used, minute := s.spent(b)["edgecore"], float64(time.Minute)/float64(slice)
	for range parts {
		pause(b, slice)
		now := s.spent(b)["edgecore"]
		r.ours = append(r.ours, ((now-used)*minute-usual)/(hurry-1))
		used = now
	}
	pace("1m0s", "5m0s")
	r.note = fmt.Sprintf("a sample each second and a message each 5 s took %.4g ms of CPU in a minute more than a sample each minute and a message each 5 minutes; a 59th of that, over %v in %d parts. The goal is 1 %% of a plain kubelet's.", median(r.ours)*(hurry-1), *idle, parts)
	return r
}

// leaseSize is how large the Lease of a node is as etcd stores it.
func (s *bench) leaseSize(b *testing.B, node string) float64 {
	b.Helper()
	l, err := s.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(b.Context(), node, metav1.GetOptions{})
	check(b, err)
	raw, err := l.Marshal()
	check(b, err)
	return float64(len(raw))
}

// messageOverhead is the overhead of a message on the cable: a TLS record, two
// packets.
const messageOverhead = 22 + 66 + 66

// sampleBytes are the bytes that samples of metrics of all nodes have taken on the cable. Only logs
// and other streams share their class.
func (s *bench) sampleBytes(b *testing.B) (sum float64) {
	b.Helper()
	for line := range strings.Lines(s.metricsText(b)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseFloat(value, 64)
		switch {
		case !ok || err != nil:
		case strings.HasPrefix(name, "skerry_hub_bytes_total{") && strings.Contains(name, `class="stream"`):
			sum += n
		case strings.HasPrefix(name, "skerry_hub_messages_total{") && strings.Contains(name, `topic="metrics.`):
			sum += n * messageOverhead
		}
	}
	return sum
}

const (
	syncsOfCommit = 2 // bbolt: the pages, then the page that names them
	keptTokens    = "answers"
	// A kubelet reports a second time, within 90 s, that a pod runs.
	settled = 2 * time.Minute
)

// settle waits until the store has been at rest for a while.
func (s *bench) settle(b *testing.B) {
	b.Helper()
	var last uint64
	since := time.Now()
	eventually(b, "the store to rest", time.Second, func(ctx context.Context) error {
		d, err := s.status(ctx, b)
		if err == nil && d.Data.Store.Commits != last {
			last, since = d.Data.Store.Commits, time.Now()
		}
		if rest := time.Since(since); err == nil && rest < settled {
			err = fmt.Errorf("it has been for %v", rest)
		}
		return err
	})
}

// grown is the increase of the counts.
func grown(before, after map[string]uint64) map[string]uint64 {
	more := map[string]uint64{}
	for k, n := range after {
		if n != before[k] {
			more[k] = n - before[k]
		}
	}
	return more
}

func list(counts map[string]uint64) string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, fmt.Sprintf("%d of %s", counts[k], k))
	}
	return strings.Join(all, ", ")
}

// newest is when a file of edgecore's data was last written.
func (s *bench) newest(b *testing.B) (at time.Time) {
	b.Helper()
	check(b, filepath.WalkDir(filepath.Join(s.host(b, edge).Root(), "var/lib/skerry"), func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && !d.IsDir() && info.ModTime().After(at) {
			at = info.ModTime()
		}
		return err
	}))
	return at
}

// keepalives has the plain node send one byte each interval over TLS 1.3 to the client on the LAN,
// which sends no bytes.
func (s *bench) keepalives(b *testing.B) (stop func()) {
	b.Helper()
	dir := filepath.Join(s.host(b, trial.Cloud).Root(), "var/lib/kubeplane/pki")
	cert, key, err := ca.Client(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"), pkix.Name{CommonName: "floor"})
	check(b, err)
	pair, err := tls.X509KeyPair(cert, key)
	check(b, err)
	var l net.Listener
	const port = "7000"
	check(b, s.host(b, trial.Client).Do(func() (err error) {
		l, err = (&net.ListenConfig{KeepAlive: -1}).Listen(context.Background(), "tcp4", ":"+port)
		return err
	}))
	go func() {
		if c, err := tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13}).Accept(); err == nil {
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}
	}()
	raw, err := s.host(b, plain).Dial(b.Context(), "tcp4", "192.168.100.200:"+port)
	check(b, err)
	check(b, raw.(*net.TCPConn).SetKeepAlive(false))
	c := tls.Client(raw, &tls.Config{ServerName: "floor", InsecureSkipVerify: true, VerifyPeerCertificate: func([][]byte, [][]*x509.Certificate) error { return nil }}) // counted, and not trusted
	check(b, c.HandshakeContext(b.Context()))
	done := make(chan struct{})
	go func() {
		tick := time.NewTicker(heartbeat)
		defer tick.Stop()
		for {
			if _, err := c.Write([]byte{0}); err != nil {
				return
			}
			select {
			case <-tick.C:
			case <-done:
				return
			}
		}
	}()
	return func() {
		close(done)
		_, _ = c.Close(), l.Close()
	}
}

// order is that of the table.
var order = slices.Concat(
	[]string{whatReboot, whatPowerOn, whatOrderly, whatEventsUp, whatResyncNone, whatResyncTen, whatResyncKill, whatResyncMaps, whatIdleBytes, whatSamples, whatLease, whatMemory, whatRise, whatSizeEdge, whatSizeCloud, whatIdleCPU, whatSampleCPU, whatIdleSyncs},
	[]string{whatQueueOne, whatQueueEight, whatQueueMany, whatEventRate, whatEventCPU, whatEventRateOne, whatChange50, whatChange99, whatSlow},
	[]string{whatCarrierLink, whatCarrierReady, whatCarrierPod, whatCarrierAgain, whatSilentLink, whatSilentReady, whatSilentPod, whatSilentAgain},
	[]string{whatPod, whatTen, whatManyPod, whatManyCloud, whatManyRate, whatManyCPU, whatManyExtra, whatIdleWrites},
	[]string{whatMarks, whatMarksSame, whatFailover},
	[]string{whatServices100, whatServices1000, whatName50, whatName99, whatCore50, whatCore99},
	[]string{whatHollowMemory, whatHollowHeap, whatHollowQUIC, whatHollowLinked, whatHollowStep, whatHollowCPU, whatSteady, whatHollowWrites},
	[]string{whatFleetKilled, whatFleetLost, whatFleetReady},
	[]string{whatHostileMemory, whatHostileChange, whatHostileBusy, whatHostileReconnect, whatHostileQUIC},
	[]string{whatWhole, whatDelta, whatSame, whatAway},
	[]string{whatRolloutWrites, whatRolloutRequests, whatRolloutBytes, whatRolloutTime},
)
