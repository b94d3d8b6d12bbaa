package metamanager_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store"
)

// Environment variables of the child.
const (
	islandPoint = "META_TEST_POINT" // the metamanager.Point to die at
	islandCount = "META_TEST_COUNT" // the number of the occurrence; or, with the point "drain", write no object and end when the outbox is empty
	islandDrain = "drain"
)

// ledger is a cloud behind a bus in this process: it records the writes that it accepted where a
// kill does not reach, and answers a moment later. Now and then the link drops and returns, and
// answers are lost.
type ledger struct {
	file   *os.File
	store  *store.Store
	toEdge chan message.Message

	mu    sync.Mutex
	epoch uint64
}

func (l *ledger) Ready() {}

func (l *ledger) Receive(ctx context.Context) (message.Message, error) {
	select {
	case m := <-l.toEdge:
		return m, nil
	case <-ctx.Done():
		return message.Message{}, ctx.Err()
	}
}

func (l *ledger) SendSync(context.Context, message.Name, message.Message) (message.Message, error) {
	return message.Message{}, linkstate.ErrNoLink
}

func (l *ledger) Send(_ context.Context, _ message.Name, m message.Message) error {
	w, ok := m.Content.(*topicpb.Write)
	if !ok {
		return nil
	}
	line := "event " + w.Name
	if w.Resource.Resource == "events" && w.Verb == topicpb.Verb_CREATE {
		obj, err := object.DecodeRaw(w.Body)
		if err != nil {
			return err
		}
		e, ok := obj.(*corev1.Event)
		if !ok {
			return fmt.Errorf("the body of an event is %T", obj)
		}
		line = "event " + e.Name
	} else if w.Subresource == "status" {
		line = "report " + w.Name + " " + string(w.Body)
	}
	l.mu.Lock()
	epoch := l.epoch
	_, err := fmt.Fprintln(l.file, line)
	l.mu.Unlock()
	if err != nil {
		return err
	}
	time.AfterFunc(rand.N(3*time.Millisecond), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.epoch == epoch { // else the link is another, and the answer is lost
			l.toEdge <- m.Answer(&topicpb.WriteResult{Id: w.Id, Accepted: true})
		}
	})
	return nil
}

// relink ends a session, if there is one, and opens another.
func (l *ledger) relink(ctx context.Context) error {
	epoch, err := l.store.NextEpoch(ctx)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.epoch != 0 {
		l.toEdge <- linkstate.Down.New(message.Resource{}, linkstate.Loss{Epoch: l.epoch})
	}
	l.epoch = epoch
	l.toEdge <- linkstate.Up.New(message.Resource{}, linkstate.Link{Epoch: epoch})
	return nil
}

// island is the child: a device's metamanager and store under load, which dies at its configured
// point. It prints the acknowledged writes.
func island(dir string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s, err := store.Open(ctx, store.Config{Path: filepath.Join(dir, "store.db"), LockWait: time.Minute})
	if err != nil {
		return err
	}
	if s.SetAside() != "" {
		return errors.New("the store was found damaged")
	}
	file, err := os.OpenFile(filepath.Join(dir, "cloud.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	point, count := os.Getenv(islandPoint), int64(0)
	if n, err := strconv.ParseInt(os.Getenv(islandCount), 10, 64); err == nil {
		count = n
	}
	var reached atomic.Int64
	config := metamanager.Config{NodeName: "edge1", Store: s, ReportEvents: true, At: func(p metamanager.Point) {
		if string(p) == point && reached.Add(1) == count {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // not one step further
		}
	}}
	m := metamanager.New(config)
	l := &ledger{file: file, store: s, toEdge: make(chan message.Message, 1<<16)}
	ended := make(chan error, 1)
	go func() { ended <- m.Serve(ctx, l) }()
	if err := l.relink(ctx); err != nil {
		return err
	}
	if point == islandDrain {
		for {
			if err := s.Update(ctx, func(*store.Tx) error { return nil }); err != nil {
				return err
			}
			if st := m.Status(); st.Linked && len(st.Outbox.Waiting) == 0 && st.Outbox.InFlight == 0 {
				if st.Outbox.Dropped > 0 {
					return fmt.Errorf("%d events were dropped", st.Outbox.Dropped)
				}
				return nil
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	var out sync.Mutex
	said := func(what string) {
		out.Lock()
		defer out.Unlock()
		fmt.Println(what)
	}
	run := time.Now().UnixNano()
	for w := range 4 {
		go func() {
			for n := 0; ; n++ {
				if w == 3 {
					body := strconv.FormatInt(run+int64(n), 10)
					ref := object.Ref{Resource: resource("pods"), Namespace: "default", Name: "a"}
					if err := m.Report(ctx, ref, "", []byte(body)); err == nil {
						said("report a " + body)
					}
					continue
				}
				name := fmt.Sprintf("e-%d-%d-%d", run, w, n)
				body, err := json.Marshal(&corev1.Event{
					TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
					Reason: "Started", Message: name, Count: 1, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "a", Namespace: "default", UID: "u"},
				})
				if err != nil {
					continue
				}
				if _, err := m.Write(ctx, metamanager.Write{Verb: "create", Ref: object.Ref{Resource: resource("events"), Namespace: "default"}, Body: body}); err == nil {
					said("event " + name)
				}
			}
		}()
	}
	for {
		select {
		case err := <-ended:
			return err
		case <-time.After(rand.N(40 * time.Millisecond)):
			if err := l.relink(ctx); err != nil {
				return err
			}
		}
	}
}

// TestIsland_17_MetaKilledAtAnyMomentLosesNothingAcknowledged: metamanager and its store are killed
// (-9) under load, 200 times at random and some times at each of the points that are hardest to
// bear. In the end the cloud has every event that was acknowledged, and of each report the newest
// that was or a newer one.
func TestIsland_17_MetaKilledAtAnyMomentLosesNothingAcknowledged(t *testing.T) {
	random, each := 200, 8
	if testing.Short() {
		random, each = 10, 1
	}
	dir := t.TempDir()
	acknowledged, newest := map[string]bool{}, int64(0)
	die := func(within time.Duration, env ...string) {
		t.Helper()
		cmd := islandChild(t, dir, env...)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		late := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		defer late.Stop()
		begun := false
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if !begun && within > 0 { // counted from the first acknowledgement: a busy machine takes its time to start
				begun = true
				time.AfterFunc(rand.N(within), func() { _ = cmd.Process.Kill() })
			}
			line := lines.Text()
			if n, ok := strings.CutPrefix(line, "report a "); ok {
				if v, err := strconv.ParseInt(n, 10, 64); err == nil {
					newest = max(newest, v)
				}
				continue
			}
			acknowledged[line] = true
		}
		if err := cmd.Wait(); err == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("%q: the child ended by itself: %v", env, err)
		}
	}
	check := func() {
		t.Helper()
		if out, err := islandChild(t, dir, islandPoint+"="+islandDrain).Output(); err != nil {
			t.Fatalf("sending what waits: %v: %s", err, out)
		}
		text, err := os.ReadFile(filepath.Join(dir, "cloud.log"))
		if err != nil {
			t.Fatal(err)
		}
		arrived, last := map[string]bool{}, int64(0)
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			arrived[line] = true
			if n, ok := strings.CutPrefix(line, "report a "); ok {
				last, _ = strconv.ParseInt(n, 10, 64)
			}
		}
		for what := range acknowledged {
			if !arrived[what] {
				t.Errorf("%s was acknowledged and never arrived", what)
			}
		}
		if last < newest {
			t.Errorf("the last report that arrived is %d, acknowledged was %d", last, newest)
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	for _, p := range []metamanager.Point{metamanager.PointStaged, metamanager.PointKept, metamanager.PointSent, metamanager.PointReceived, metamanager.PointSettled} {
		for range each {
			die(0, islandPoint+"="+string(p), fmt.Sprint(islandCount, "=", 1+rand.IntN(40)))
		}
		check()
	}
	for i := range random {
		die(40 * time.Millisecond)
		if i%25 == 24 {
			check()
		}
	}
	check()
	t.Logf("%d kills, %d events acknowledged", random+5*each, len(acknowledged))
	if len(acknowledged) < random {
		t.Errorf("only %d events were acknowledged: the test shows little", len(acknowledged))
	}
}

func islandChild(t *testing.T, dir string, env ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^$")
	// One of hundreds that end within a second: collecting garbage would be a fifth of their time.
	cmd.Env = append(append(os.Environ(), "META_TEST_ISLAND="+dir, "GOGC=off"), env...)
	cmd.Stderr = os.Stderr
	return cmd
}
