package bench_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/host"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

const (
	edge  = "edge1"
	plain = "plain1"
)

func (s *bench) host(b *testing.B, name string) host.Host {
	b.Helper()
	h, err := s.Host(name)
	check(b, err)
	return h
}

// device is a client of the edge's own API, as root of the device uses it.
func (s *bench) device(b *testing.B) kubernetes.Interface {
	b.Helper()
	h := s.host(b, edge)
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(h.Root(), s.EdgeKubeconfig()))
	check(b, err)
	cfg.Dial, cfg.QPS, cfg.WarningHandler = h.Dial, -1, rest.NoWarnings{}
	client, err := kubernetes.NewForConfig(cfg)
	check(b, err)
	return client
}

// asPlain is a client with the identity of the plain node's kubelet.
func (s *bench) asPlain(b *testing.B) kubernetes.Interface {
	b.Helper()
	h := s.host(b, plain)
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(h.Root(), "/etc/kubernetes/kubelet.kubeconfig"))
	check(b, err)
	cfg.Dial, cfg.QPS = h.Dial, -1
	client, err := kubernetes.NewForConfig(cfg)
	check(b, err)
	return client
}

// status has the fields of `edgecore status` that are read here.
type status struct {
	Kubelet string `json:"kubelet"`
	Link    struct {
		Linked    bool      `json:"linked"`
		Transport string    `json:"transport"`
		Since     time.Time `json:"since"`
	} `json:"link"`
	Data struct {
		Outbox struct {
			Waiting map[string]int `json:"waiting"`
		} `json:"outbox"`
		Resources []struct {
			Resource string `json:"resource"`
			Objects  int    `json:"objects"`
		} `json:"resources"`
		Interests []struct {
			Set     string `json:"set"`
			Synced  bool   `json:"synced"`
			Refused string `json:"refused"` // a watch of the benchmark that the cloud does not serve
		} `json:"interests"`
		Store struct {
			Commits uint64
			Records map[string]uint64
		} `json:"store"`
	} `json:"data"`
}

func (d status) waiting() (n int) {
	for _, m := range d.Data.Outbox.Waiting {
		n += m
	}
	return n
}

func (d status) objects(resource string) int {
	for _, r := range d.Data.Resources {
		if r.Resource == resource {
			return r.Objects
		}
	}
	return 0
}

// get reads a URL from within a host; a network of "unix" dials that socket.
func (s *bench) get(ctx context.Context, b *testing.B, on, network, address, url string) ([]byte, error) {
	h := s.host(b, on)
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return h.Dial(ctx, network, address) },
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", res.Status, body)
	}
	return body, err
}

func (s *bench) status(ctx context.Context, b *testing.B) (d status, err error) {
	body, err := s.get(ctx, b, edge, "unix", "/run/skerry/edge.sock", "http://edge/skerry/v1/status")
	if err == nil {
		err = json.Unmarshal(body, &d)
	}
	return d, err
}

// awaitLinked waits until the edge has its link, is synced, and has no backlog.
func (s *bench) awaitLinked(b *testing.B) {
	b.Helper()
	eventually(b, "the link", 50*time.Millisecond, func(ctx context.Context) error {
		d, err := s.status(ctx, b)
		if err == nil && (!d.Link.Linked || d.waiting() > 0 || d.Kubelet != "running") {
			err = fmt.Errorf("linked: %t, waiting: %v, kubelet: %s", d.Link.Linked, d.Data.Outbox.Waiting, d.Kubelet)
		}
		for _, i := range d.Data.Interests {
			if err == nil && !i.Synced && i.Refused == "" {
				err = fmt.Errorf("%s has not arrived", i.Set)
			}
		}
		return err
	})
}

func (s *bench) awaitUnlinked(b *testing.B) {
	b.Helper()
	eventually(b, "the end of the link", 50*time.Millisecond, func(ctx context.Context) error {
		d, err := s.status(ctx, b)
		if err == nil && d.Link.Linked {
			err = errors.New("the edge believes in it still")
		}
		return err
	})
}

func (s *bench) awaitReady(b *testing.B, node string) {
	b.Helper()
	eventually(b, node+" to be Ready", 50*time.Millisecond, func(ctx context.Context) error {
		n, err := s.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err == nil && !ready(n) {
			err = errors.New("it is not")
		}
		return err
	})
}

func ready(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func podReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// setEvents lets the edge send events to the cloud, or keep them; edgecore is restarted for that.
func (s *bench) setEvents(b *testing.B, on bool) {
	b.Helper()
	check(b, s.Set(b.Context(), edge, []string{fmt.Sprintf("modules.edged.reportEvent=%t", on)}))
	s.awaitLinked(b)
	s.awaitReady(b, edge)
}

// metrics reads cloudcore's, summed over their labels.
func (s *bench) metrics(b *testing.B) map[string]float64 {
	b.Helper()
	return sums([]byte(s.metricsText(b)))
}

// metricsText is cloudcore's metrics, in Prometheus' text format.
func (s *bench) metricsText(b *testing.B) string {
	b.Helper()
	body, err := s.get(b.Context(), b, trial.Cloud, "tcp", "127.0.0.1:10003", "http://127.0.0.1:10003/metrics")
	check(b, err)
	return string(body)
}

// sums reads metrics in Prometheus' text format.
func sums(text []byte) map[string]float64 {
	all := map[string]float64{}
	for line := range bytes.Lines(text) {
		name, _, _ := strings.Cut(string(line), "{")
		f := strings.Fields(string(line))
		if len(f) < 2 || f[0] == "#" {
			continue
		}
		if name == string(line) {
			name = f[0]
		}
		if v, err := strconv.ParseFloat(f[len(f)-1], 64); err == nil {
			all[name] += v
		}
	}
	return all
}

// wire is how many bytes have crossed an interface of a host, both ways, with everything.
func (s *bench) wire(b *testing.B, name, iface string) float64 {
	b.Helper()
	links, err := s.host(b, name).Netlink()
	check(b, err)
	defer links.Close()
	l, err := links.LinkByName(iface)
	check(b, err)
	counted := l.Attrs().Statistics
	return float64(counted.RxBytes + counted.TxBytes)
}

// memoryOf is a field of the program's status on a host (proc_pid_status(5)), in MB: VmRSS
// and its parts.
func (s *bench) memoryOf(b *testing.B, node, program, field string) float64 {
	b.Helper()
	for _, file := range processes(s.host(b, node), program) {
		data, err := os.ReadFile(filepath.Join(file, "status"))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			if f := strings.Fields(line); len(f) == 3 && f[0] == field {
				kb, err := strconv.ParseFloat(f[1], 64)
				check(b, err)
				return kb * 1024 / 1e6
			}
		}
	}
	b.Fatalf("no %s runs on %s", program, node)
	return 0
}

// spent is the CPU time, in ms, that this process and those programs that an event passes through
// have used so far (proc_pid_stat(5): utime and stime, in ticks of 10 ms on every machine that
// Linux runs on today).
func (s *bench) spent(b *testing.B) map[string]float64 {
	b.Helper()
	used := map[string]float64{}
	for _, on := range s.Hosts() { // of cloudcore there may be several
		for _, program := range []string{"edgecore", "plainkubelet", "cloudcore", "kubeplane"} {
			for _, dir := range processes(s.host(b, on), program) {
				used[program] += ticks(b, dir)
			}
		}
	}
	used["benchmark"] = ticks(b, "/proc/self")
	return used
}

// ticks is the CPU time of the process of a directory in /proc, in ms.
func ticks(b *testing.B, dir string) float64 {
	b.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "stat"))
	check(b, err)
	_, rest, _ := strings.Cut(string(data), ") ") // comm may hold anything, but ends so
	f := strings.Fields(rest)
	var sum float64
	for _, i := range []int{11, 12} { // utime and stime are the 14th and 15th of all
		n, err := strconv.ParseFloat(f[i], 64)
		check(b, err)
		sum += 10 * n
	}
	return sum
}

// processes are the directories in /proc of a program on a host.
func processes(h host.Host, program string) (found []string) {
	all, _ := filepath.Glob(filepath.Join(h.Root(), "proc/[0-9]*/comm")) // its only error is of the pattern
	for _, file := range all {
		if name, err := os.ReadFile(file); err == nil && string(name) == program+"\n" {
			found = append(found, filepath.Dir(file))
		}
	}
	return found
}

// An audit is a place in kube-apiserver's audit log.
type audit struct {
	file string
	from int64
}

func (s *bench) audit(b *testing.B) audit {
	b.Helper()
	a := audit{file: s.LogPath(trial.Cloud, "audit")}
	info, err := os.Stat(a.file)
	check(b, err)
	a.from = info.Size()
	return a
}

// since returns the writes of objects that were answered after the place: reviews of rights and of
// tokens change no object, and are no writes.
func (a audit) since(b *testing.B) []cluster.Request {
	b.Helper()
	return a.find(b, func(r cluster.Request) bool {
		return r.Write() && r.ResponseStatus.Code < 300 && !strings.HasSuffix(r.ObjectRef.Resource, "reviews")
	})
}

// reviews is how often cloudcore has reviewed an account's rights since the place.
func (a audit) reviews(b *testing.B) float64 {
	b.Helper()
	return float64(len(a.find(b, func(r cluster.Request) bool {
		return r.ObjectRef.Resource == "subjectaccessreviews" && r.User.Username == "system:serviceaccount:skerry-system:cloudcore"
	})))
}

// find returns the requests that were answered after the place for which is returns true.
func (a audit) find(b *testing.B, is func(cluster.Request) bool) (found []cluster.Request) {
	b.Helper()
	f, err := os.Open(a.file)
	check(b, err)
	defer f.Close()
	_, err = f.Seek(a.from, io.SeekStart)
	check(b, err)
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r cluster.Request
		if json.Unmarshal(lines.Bytes(), &r) != nil {
			continue // the first or the last may be half a line
		}
		if is(r) {
			found = append(found, r)
		}
	}
	check(b, lines.Err())
	return found
}

// by is the user of a request.
func by(r cluster.Request) string {
	if r.ImpersonatedUser.Username != "" {
		return r.ImpersonatedUser.Username
	}
	return r.User.Username
}
