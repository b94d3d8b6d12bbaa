package bench_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/lab"
)

const (
	whatSlow = "change of a pod in the cloud to a watch at the edge over 256 kbit/s, beside a bulk copy"

	slowRate    = 256_000 // bits a second
	chunk       = 15 << 10
	slowChanges = 10
)

// slowLink changes a pod over a thin uplink, with no other traffic on it and while kubectl copies a
// large file to the device.
func (s *bench) slowLink(b *testing.B) {
	s.up(b)
	p := pod("slow", edge)
	s.start(b, p)
	defer s.remove(b, p)
	s.awaitLinked(b)
	check(b, s.Shape(b.Context(), edge, lab.Shape{Rate: slowRate}))
	defer func() { check(b, s.Shape(context.WithoutCancel(b.Context()), edge, lab.Shape{})) }()

	aChunk := float64(chunk*8*1000) / slowRate
	r := row{what: whatSlow, unit: "ms", floorName: "the same link, with nothing else on it", goal: fmt.Sprintf("at most one chunk more, %.0f ms", aChunk), judge: above(aChunk, "ms")}
	r.floor = s.slowChange(b, p.Name, "idle")
	stop := s.bulk(b, p.Name)
	r.ours = s.slowChange(b, p.Name, "busy")
	stop()
	r.note = fmt.Sprintf("a chunk is 15 KiB, %.0f ms on that link. The trial's uplink has a queue of 64 KiB in front of it, as a cheap modem has: what is in there, nothing overtakes.", aChunk)
	s.rows = append(s.rows, r)
}

// bulk copies a file that does not end in time; the returned function ends it.
func (s *bench) bulk(b *testing.B, name string) (stop func()) {
	b.Helper()
	root, err := binary.Root()
	check(b, err)
	content := make([]byte, 32<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(content)
	file := filepath.Join(b.TempDir(), "bulk")
	check(b, os.WriteFile(file, content, 0o600))
	ctx, cancel := context.WithCancel(b.Context())
	cmd := exec.CommandContext(ctx, filepath.Join(root, "bin", "trial"), "kubectl", "cp", "-n", namespace, file, name+":/tmp/bulk")
	cmd.Env = append(os.Environ(), "TRIAL_DIR="+filepath.Join(root, *dir))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &out, 5*time.Second
	check(b, cmd.Start())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	pause(b, 10*time.Second) // until every queue on the way is full
	return func() {
		select {
		case <-ended:
			b.Fatalf("the copy ended too soon: %s", out.String())
		default:
		}
		cancel()
		<-ended
	}
}

// slowChange changes a label a few times and returns how long each took, in ms.
func (s *bench) slowChange(b *testing.B, name, mark string) (took []float64) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), upTimeout)
	defer cancel()
	w, err := s.device(b).CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	check(b, err)
	defer w.Stop()
	for i := range slowChanges {
		value := fmt.Sprintf("%s-%d", mark, i)
		begin := time.Now()
		_, err := s.client.CoreV1().Pods(namespace).Patch(ctx, name, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{"bench":%q}}}`, value), metav1.PatchOptions{})
		check(b, err)
		for {
			e, ok := <-w.ResultChan()
			if !ok {
				b.Fatal("the watch has ended")
			}
			if p, ok := e.Object.(*corev1.Pod); ok && p.Labels["bench"] == value {
				break
			}
		}
		took = append(took, ms(time.Since(begin)))
		pause(b, 300*time.Millisecond)
	}
	return took
}
