package bench_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/edges"
	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/trial"
	"github.com/skerry-io/skerry/tests/hollow"
	"github.com/skerry-io/skerry/tests/hostile"
)

const (
	whatHostileMemory    = "cloudcore's memory, resident, at most, under 50 hostile links"
	whatHostileChange    = "change of a pod in the cloud to a watch at the edge, 99th percentile, under 50 hostile links of other nodes"
	whatHostileReconnect = "reconnect of a node, websocket, during a flood of handshakes from other addresses"
	whatHostileQUIC      = "reconnect of a node, QUIC, during a flood of handshakes from other addresses"

	whatHostileBusy = "change of a pod in the cloud to a watch at the edge, 99th percentile, under 50 hostile links, beside busy loops of the same CPU"

	hostileLinks     = 50
	hostileLinkBytes = 16 << 20 // the bound of one link's memory in cloudcore
	reconnects       = 20       // in a round
	honestNodes      = 8        // that reconnect, each no more often than a device may
)

// hostile attacks cloudcore by links of nodes with certificates, and then by handshakes; each
// figure is shown with the same without an attack, in turns.
func (s *bench) hostile(b *testing.B) {
	s.up(b)
	before := loadAverage() // of other work on the machine
	s.admit(b)
	defer s.dismiss(b)
	s.hostileLinks(b, before)
	s.hostileHandshakes(b)
}

func attackers() (names []string) {
	for i := range hostileLinks {
		names = append(names, fmt.Sprint(attackPrefix, i))
	}
	return names
}

func honest() (names []string) {
	for i := range honestNodes {
		names = append(names, fmt.Sprint("honest-", i))
	}
	return names
}

// admit makes the attackers' Nodes and the Secret that their pods need.
func (s *bench) admit(b *testing.B) {
	b.Helper()
	names := append(attackers(), honest()...)
	check(b, edges.Allow(b.Context(), s.client, names...))
	data := make([]byte, 1<<20-4<<10) // random bytes can't be compressed
	_, err := rand.Read(data)
	check(b, err)
	_, err = s.client.CoreV1().Secrets(namespace).Create(b.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: attackedSecret}, Data: map[string][]byte{"x": data}}, metav1.CreateOptions{})
	check(b, err)
	for _, name := range names {
		_, err := s.client.CoreV1().Nodes().Create(b.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			b.Fatal(err)
		}
		p := pod(name, name)
		p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: attackedSecret}}}}
		_, err = s.client.CoreV1().Pods(namespace).Create(b.Context(), p, metav1.CreateOptions{})
		check(b, err)
	}
}

func (s *bench) dismiss(b *testing.B) {
	ctx := context.WithoutCancel(b.Context())
	for _, name := range append(attackers(), honest()...) {
		check(b, s.client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
		check(b, s.client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}))
	}
	check(b, s.client.CoreV1().Secrets(namespace).Delete(ctx, attackedSecret, metav1.DeleteOptions{}))
}

// attack starts an attacker, which has as great a share of the processors as each of the others:
// real ones bring their own.
func (s *bench) attack(b *testing.B, a attack) *companion {
	b.Helper()
	a.Host = cmp.Or(a.Host, s.address(b))
	a.ServerName, a.Nodes, a.Namespace = lab.Cloud().String(), hostileLinks, namespace
	dir := filepath.Join(s.host(b, trial.Cloud).Root(), "var/lib/kubeplane/pki")
	a.CA, a.CAKey, a.ServerCA = filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"), filepath.Join(b.TempDir(), "ca.crt")
	secret, err := s.client.CoreV1().Secrets("skerry-system").Get(b.Context(), "skerry-ca", metav1.GetOptions{})
	check(b, err)
	check(b, os.WriteFile(a.ServerCA, secret.Data[corev1.TLSCertKey], 0o600))
	raw, err := json.Marshal(a)
	check(b, err)
	return aside(b, 0, attackEnv, string(raw))
}

// address is cloudcore's for programs of the machine itself.
func (s *bench) address(b *testing.B) string {
	b.Helper()
	env, err := s.Env()
	check(b, err)
	for _, v := range env {
		if v.Name == "TRIAL_CLOUD" {
			return v.Value
		}
	}
	b.Fatal("the trial has no address of its cloud")
	return ""
}

func (s *bench) hostileLinks(b *testing.B, before float64) {
	p := pod("changes", edge)
	s.start(b, p)
	defer s.remove(b, p)
	s.awaitLinked(b)
	limit := s.memoryLimit(b)
	rise := float64(hostileLinks*hostileLinkBytes) / 1e6
	memory := row{
		what: whatHostileMemory, unit: "MB", floorName: "without them", tail: true, goal: fmt.Sprintf("at most %.0f MB more, and %.0f MB in all", rise, limit),
		judge: func(ours, floor float64) (string, bool) {
			return fmt.Sprintf("%+.4g MB", ours-floor), ours-floor <= rise && ours <= limit
		},
	}
	change := row{what: whatHostileChange, unit: "ms", floorName: "without them", goal: "at most 2 x", judge: ratio(2)}
	busy := row{what: whatHostileBusy, unit: "ms", floorName: "without them, beside busy loops that take as much CPU as the attack", goal: "at most 2 x", judge: ratio(2)}
	var watched, attacked, burnt window
	var did string
	for range *rounds {
		memory.floor = append(memory.floor, s.memoryOf(b, trial.Cloud, "cloudcore", "VmRSS:"))
	}
	for i := range *rounds {
		quiet := s.window(b, p.Name, 3*i, &watched)
		change.floor = append(change.floor, quiet)
		a := s.attack(b, attack{})
		stop := make(chan struct{})
		most := make(chan float64)
		go func() {
			var seen float64
			for {
				seen = max(seen, s.memoryOf(b, trial.Cloud, "cloudcore", "VmRSS:"))
				select {
				case <-stop:
					most <- seen
					return
				case <-time.After(250 * time.Millisecond):
				}
			}
		}()
		pause(b, 10*time.Second) // until windows and queues are full
		under := s.window(b, p.Name, 3*i+1, &attacked, a)
		change.ours, busy.ours = append(change.ours, under), append(busy.ours, under)
		close(stop)
		memory.ours = append(memory.ours, <-most)
		did = a.end(b)
		s.calm(b)
		loop := aside(b, 0, burnEnv, fmt.Sprint(attacked.last()-watched.last()))
		busy.floor = append(busy.floor, s.window(b, p.Name, 3*i+2, &burnt, loop))
		loop.end(b)
	}
	memory.note = fmt.Sprintf("in each round 50 nodes with certificates do what edgecore never does for some 20 s, over both transports: a fifth reads none of 15 answers of a megabyte, the others flood with events, "+
		"interests, reports and statuses of half a megabyte, as fast as they are answered. In the last: %s. The limit is that of manifests/deployment.", did)
	change.note = fmt.Sprintf("the attackers are one process, which has its share of the machine's processors beside the others. Cores in use: without them %v; under the attack %v. "+
		"The median is %.4g ms, without them %.4g ms. A watch straight at kube-apiserver, without cloudcore between, has a median of %.4g ms and a 99th percentile of %.4g ms under the attack, and of %.4g and %.4g ms without it. "+
		"Before the row the load average was %.2g.", &watched, &attacked, median(attacked.half), median(watched.half), median(attacked.rawHalf), median(attacked.raw), median(watched.rawHalf), median(watched.raw), before)
	busy.note = fmt.Sprintf("busy loops beside the quiet system, in a process of its own, that take what the attack took in all processes together more than the quiet round: what remains of the difference "+
		"is waiting in queues of kube-apiserver and cloudcore. Cores in use beside them: %v. The median is %.4g ms; straight at kube-apiserver the median is %.4g ms and the 99th percentile %.4g ms.",
		&burnt, median(burnt.half), median(burnt.rawHalf), median(burnt.raw))
	s.rows = append(s.rows, memory, change, busy)
}

// A window is the measurements during changes, of each round.
type window struct {
	half, rawHalf, raw []float64 // ms: the median, and client-go's median and 99th percentile
	cores              map[string][]float64
}

// window makes changes and returns the 99th percentile of their latencies at the edge.
func (s *bench) window(b *testing.B, pod string, round int, w *window, others ...*companion) float64 {
	b.Helper()
	used := func() map[string]float64 {
		used := s.spent(b)
		for _, p := range others {
			used["beside"] += ticks(b, p.proc(""))
		}
		return used
	}
	begin, before := time.Now(), used()
	raw, ours := s.changes(b, pod, round)
	took := ms(time.Since(begin))
	if w.cores == nil {
		w.cores = map[string][]float64{}
	}
	for program, after := range used() {
		w.cores[program] = append(w.cores[program], (after-before[program])/took)
	}
	w.half, w.rawHalf, w.raw = append(w.half, ours[len(ours)/2]), append(w.rawHalf, raw[len(raw)/2]), append(w.raw, raw[len(raw)*99/100])
	return ours[len(ours)*99/100]
}

// last is how many cores were in use in the last round.
func (w *window) last() (sum float64) {
	for _, v := range w.cores {
		sum += v[len(v)-1]
	}
	return sum
}

func (w *window) String() string {
	var all []string
	for _, program := range slices.Sorted(maps.Keys(w.cores)) {
		if v := median(w.cores[program]); v >= 0.005 {
			all = append(all, fmt.Sprintf("%s %.2f", program, v))
		}
	}
	return strings.Join(all, ", ")
}

// calm waits until cloudcore has finished the work of an attack.
func (s *bench) calm(b *testing.B) {
	b.Helper()
	eventually(b, "cloudcore to be idle", time.Second, func(context.Context) error {
		before := s.spent(b)["cloudcore"]
		pause(b, 2*time.Second)
		if used := s.spent(b)["cloudcore"] - before; used > 200 {
			return fmt.Errorf("it has used %v ms in 2 s", used)
		}
		return nil
	})
}

// memoryLimit is the memory limit of cloudcore's container, in MB.
func (s *bench) memoryLimit(b *testing.B) float64 {
	b.Helper()
	root, err := binary.Root()
	check(b, err)
	raw, err := os.ReadFile(filepath.Join(root, "manifests/deployment/deployment.yaml"))
	check(b, err)
	for doc := range strings.SplitSeq(string(raw), "\n---\n") {
		var d appsv1.Deployment
		if yaml.Unmarshal([]byte(doc), &d) != nil || d.Kind != "Deployment" {
			continue
		}
		limit := d.Spec.Template.Spec.Containers[0].Resources.Limits[corev1.ResourceMemory]
		return float64(limit.Value()) / 1e6
	}
	b.Fatal("no Deployment in its manifest")
	return math.NaN()
}

func (s *bench) hostileHandshakes(b *testing.B) {
	from := s.furtherAddresses(b)
	roots, err := hollow.Roots(b.Context(), s.client)
	check(b, err)
	dir := filepath.Join(s.host(b, trial.Cloud).Root(), "var/lib/kubeplane/pki")
	identity := hollow.FromCA(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"))
	var secure []*tls.Config
	for _, name := range honest() {
		cert, err := identity(b.Context(), name)
		check(b, err)
		c := pki.ClientTLS(pki.Client{Roots: roots, Certificate: func() (*tls.Certificate, error) { return cert, nil }})
		c.ServerName = lab.Cloud().String()
		secure = append(secure, c)
	}
	rows := map[link.Transport]*row{
		link.WebSocket: {what: whatHostileReconnect}, link.QUIC: {what: whatHostileQUIC},
	}
	for _, r := range rows {
		r.unit, r.floorName, r.goal, r.judge = "ms", "without one", "at most 2 x", ratio(2)
	}
	var did string
	for range *rounds {
		for t, r := range rows {
			r.floor = append(r.floor, s.reconnects(b, t, secure)...)
		}
		a := s.attack(b, attack{Handshakes: true, From: from, Host: "198.19.77.1"})
		for t, r := range rows {
			r.ours = append(r.ours, s.reconnects(b, t, secure)...)
		}
		did = a.end(b)
		s.calm(b)
	}
	for _, t := range []link.Transport{link.WebSocket, link.QUIC} {
		r := rows[t]
		r.note = fmt.Sprintf("from dialling to cloudcore's Welcome, of eight nodes in turn, from an address of their own. From each of %d others come %d connections of TCP whose handshakes don't end, each opened again when "+
			"it is closed, and %d handshakes of QUIC that hear no answer. In the last round: %s. The longest reconnect took %.4g ms, without a flood %.4g ms.", len(from), halfOpenPerAddress, quicPerAddress, did,
			slices.Max(r.ours), slices.Max(r.floor))
		s.rows = append(s.rows, *r)
	}
}

// reconnects opens sessions of the honest nodes, one after the other, and returns how long each
// took, in ms.
func (s *bench) reconnects(b *testing.B, t link.Transport, secure []*tls.Config) (took []float64) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), upTimeout)
	defer cancel()
	for i := range reconnects {
		begin := time.Now()
		for {
			d, err := hostile.Dial(ctx, hostile.Config{Transport: t, Address: net.JoinHostPort(s.address(b), "443"), TLS: secure[i%len(secure)], Epoch: uint64(time.Now().UnixMilli())})
			if err == nil {
				took = append(took, ms(time.Since(begin)))
				d.Close()
				break
			}
			check(b, ctx.Err()) // a refused one is tried again, and its time counts
		}
		pause(b, 100*time.Millisecond)
	}
	return took
}

// furtherAddresses gives the machine three more on its cable to the cloud, and the cloud one: each
// has a share of handshakes of its own. They go with the trial.
func (s *bench) furtherAddresses(b *testing.B) []string {
	b.Helper()
	route, err := exec.CommandContext(b.Context(), "ip", "-o", "route", "get", s.address(b)).Output()
	check(b, err)
	words := strings.Fields(string(route))
	i := slices.Index(words, "dev")
	if i < 0 || i+1 == len(words) {
		b.Fatalf("no interface in %q", route)
	}
	from := []string{"198.19.77.2", "198.19.77.3", "198.19.77.4"}
	for _, a := range from {
		out, err := exec.CommandContext(b.Context(), "ip", "addr", "replace", a+"/29", "dev", words[i+1]).CombinedOutput()
		check(b, errors.Join(err, orNil(out)))
	}
	check(b, s.host(b, trial.Cloud).Do(func() error {
		out, err := exec.Command("ip", "addr", "replace", "198.19.77.1/29", "dev", "host0").CombinedOutput()
		return errors.Join(err, orNil(out))
	}))
	return from
}

func orNil(out []byte) error {
	if len(out) == 0 {
		return nil
	}
	return errors.New(string(out))
}
