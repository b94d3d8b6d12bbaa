// Package bench_test measures Skerry against the floor beside it, in one run on one machine: an edge with edgecore, and a node with the plain upstream kubelet that
// talks to kube-apiserver directly. Figures are ratios of medians; absolute times belong to the machine. Nothing here passes or fails by a figure.
//
// Run it with `go test ./tests/bench -run '^$' -bench . -benchtime 1x`; -write FILE keeps the table. It brings up a trial of its own (one edge, one plain node) and takes it down.
package bench_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

var (
	write  = flag.String("write", "", "file to write the table to")
	rounds = flag.Int("rounds", 7, "how often each figure is measured; the median counts")
)

const upTimeout = 5 * time.Minute

// A bench is the trial and the table so far.
type bench struct {
	*trial.Trial
	client kubernetes.Interface
	rows   []row
}

// A row is one figure and its floor, each as its samples.
type row struct {
	what, unit  string
	ours, floor []float64
	goal        string
}

func (r row) String() string {
	ours, floor := median(r.ours), median(r.floor)
	return fmt.Sprintf("| %s | %.4g %s (%.4g to %.4g) | %.4g %s (%.4g to %.4g) | %.2f | %s |", r.what, ours, r.unit, slices.Min(r.ours), slices.Max(r.ours),
		floor, r.unit, slices.Min(r.floor), slices.Max(r.floor), ours/floor, r.goal)
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

func BenchmarkAgainstPlainKubelet(b *testing.B) {
	if os.Getuid() != 0 {
		b.Skip("needs root: namespaces, containers")
	}
	for b.Loop() {
		s := up(b)
		s.podRunning(b)
		s.tenPods(b)
		s.memory(b)
		s.report(b)
	}
}

func up(b *testing.B) *bench {
	b.Helper()
	root, err := binary.Root()
	check(b, err)
	_, err = binary.Build(b.Context(), root, "kubeplane", "cloudcore", "edgecore", "trial", "plainkubelet")
	check(b, err)
	t, err := trial.Open(root, filepath.Join(root, ".trial-bench"), os.Stderr)
	check(b, err)
	check(b, t.Down(b.Context()))
	b.Cleanup(func() {
		if err := t.Down(context.Background()); err != nil {
			b.Error(err)
		}
	})
	options := trial.DefaultOptions()
	options.Edges, options.Plain = 1, 1
	ctx, cancel := context.WithTimeout(b.Context(), upTimeout)
	defer cancel()
	check(b, t.Up(ctx, options))
	cfg, err := t.Admin()
	check(b, err)
	cfg.QPS = -1
	client, err := kubernetes.NewForConfig(cfg)
	check(b, err)
	return &bench{Trial: t, client: client}
}

func check(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

const namespace = "default"

func pod(name, node string) *corev1.Pod {
	zero := int64(0)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: node, DNSPolicy: corev1.DNSDefault, TerminationGracePeriodSeconds: &zero,
			Volumes: []corev1.Volume{
				{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "shared"}}}},
				{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "shared"}}},
			},
			Containers: []corev1.Container{{
				Name: "app", Image: "skerry.local/sample:1", ImagePullPolicy: corev1.PullIfNotPresent,
				VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: "/config"}, {Name: "secret", MountPath: "/secret"}},
			}},
		},
	}
}

// run makes pods on a node and returns how long it took until kube-apiserver had all of them Running; then they are deleted and waited for.
func (s *bench) run(b *testing.B, node string, names ...string) time.Duration {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), upTimeout)
	defer cancel()
	pods := s.client.CoreV1().Pods(namespace)
	w, err := pods.Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
	check(b, err)
	defer w.Stop()
	begin := time.Now()
	for _, name := range names {
		_, err := pods.Create(ctx, pod(name, node), metav1.CreateOptions{})
		check(b, err)
	}
	s.until(ctx, b, w, names, func(e watch.Event, p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	took := time.Since(begin)
	for _, name := range names {
		check(b, pods.Delete(ctx, name, metav1.DeleteOptions{}))
	}
	s.until(ctx, b, w, names, func(e watch.Event, _ *corev1.Pod) bool { return e.Type == watch.Deleted })
	return took
}

func (s *bench) until(ctx context.Context, b *testing.B, w watch.Interface, names []string, done func(watch.Event, *corev1.Pod) bool) {
	b.Helper()
	left := map[string]bool{}
	for _, name := range names {
		left[name] = true
	}
	for len(left) > 0 {
		select {
		case <-ctx.Done():
			b.Fatalf("%d pods were not in time", len(left))
		case e, ok := <-w.ResultChan():
			if !ok {
				b.Fatal("the watch has ended")
			}
			if p, ok := e.Object.(*corev1.Pod); ok && done(e, p) {
				delete(left, p.Name)
			}
		}
	}
}

func (s *bench) shared(b *testing.B) {
	b.Helper()
	meta := metav1.ObjectMeta{Name: "shared"}
	_, err := s.client.CoreV1().ConfigMaps(namespace).Create(b.Context(), &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"k": "v"}}, metav1.CreateOptions{})
	check(b, err)
	_, err = s.client.CoreV1().Secrets(namespace).Create(b.Context(), &corev1.Secret{ObjectMeta: meta, StringData: map[string]string{"k": "v"}}, metav1.CreateOptions{})
	check(b, err)
}

// podRunning: from the pod's creation in the cloud to Running in the cloud. The two kinds of node take turns, so that a slow moment of the machine meets both.
func (s *bench) podRunning(b *testing.B) {
	s.shared(b)
	r := row{what: "a pod with ConfigMap, Secret and token, made in the cloud: Running", unit: "ms", goal: "1.1 + 100 ms"}
	for i := range *rounds {
		r.ours = append(r.ours, ms(s.run(b, "edge1", fmt.Sprintf("one-%d", i))))
		r.floor = append(r.floor, ms(s.run(b, "plain1", fmt.Sprintf("one-%d", i))))
	}
	s.rows = append(s.rows, r)
}

func (s *bench) tenPods(b *testing.B) {
	r := row{what: "10 pods that share a ConfigMap and a Secret, made together: all Running", unit: "ms", goal: "1.1"}
	for i := range *rounds {
		names := make([]string, 10)
		for j := range names {
			names[j] = fmt.Sprintf("ten-%d-%d", i, j)
		}
		r.ours = append(r.ours, ms(s.run(b, "edge1", names...)))
		r.floor = append(r.floor, ms(s.run(b, "plain1", names...)))
	}
	s.rows = append(s.rows, r)
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// memory: the resident set after what was done above, the same on both.
func (s *bench) memory(b *testing.B) {
	r := row{what: "memory of the process (resident), after the above", unit: "MB", goal: "+ 20 MB (+ 12 MB later)"}
	for range *rounds {
		r.ours = append(r.ours, s.resident(b, "edge1", "edgecore"))
		r.floor = append(r.floor, s.resident(b, "plain1", "plainkubelet"))
	}
	s.rows = append(s.rows, r)
}

// resident is VmRSS of the program on a host (proc_pid_status(5)), in MB.
func (s *bench) resident(b *testing.B, node, program string) float64 {
	b.Helper()
	h, err := s.Host(node)
	check(b, err)
	found, err := filepath.Glob(filepath.Join(h.Root(), "proc/[0-9]*/status"))
	check(b, err)
	for _, file := range found {
		data, err := os.ReadFile(file)
		if err != nil || !strings.HasPrefix(string(data), "Name:\t"+program+"\n") {
			continue
		}
		for line := range strings.Lines(string(data)) {
			if f := strings.Fields(line); len(f) == 3 && f[0] == "VmRSS:" {
				kb, err := strconv.ParseFloat(f[1], 64)
				check(b, err)
				return kb * 1024 / 1e6
			}
		}
	}
	b.Fatalf("no %s runs on %s", program, node)
	return 0
}

func (s *bench) report(b *testing.B) {
	var out strings.Builder
	fmt.Fprintf(&out, "# Benchmarks\n\nWritten by tests/bench on %s, %d cores, %s. Medians of %d (least to most); the floor is measured in the same run, taking turns.\n\n",
		runtime.GOARCH, runtime.NumCPU(), runtime.Version(), *rounds)
	out.WriteString("| what | Skerry | floor: the plain kubelet, on line | ratio | goal |\n| --- | --- | --- | --- | --- |\n")
	for _, r := range s.rows {
		fmt.Fprintln(&out, r)
		b.ReportMetric(median(r.ours)/median(r.floor), "x:"+strings.Fields(r.what)[0])
	}
	fmt.Print(out.String())
	if *write != "" {
		check(b, os.WriteFile(*write, []byte(out.String()), 0o644))
	}
}
