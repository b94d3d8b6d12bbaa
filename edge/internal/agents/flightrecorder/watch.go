package flightrecorder

import (
	"cmp"
	"context"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
)

// Name is the module's address on the bus.
const Name message.Name = "flightrecorder"

// Config configures a Module.
type Config struct {
	NodeName string
	Dir      string // DirIn(dataDir)
	Boot     string // the kernel's boot ID
	Version  string
	// API configures a client of the edge API.
	API *rest.Config
	// Root is where the machine's files are; "/".
	Root string
	// Pods: a kubelet runs here. Without one there are no pods to follow.
	Pods bool
	// Drain is the component whose Events are about operations.
	Drain string
}

// DirIn is where the recorder is in a data directory.
func DirIn(dataDir string) string { return filepath.Join(dataDir, "recorder") }

// Topics implements beehive.Topics.
func (*Module) Topics() []message.Key { return []message.Key{linkstate.Up.Key(), linkstate.Down.Key()} }

// Module records the kubelet, the agents and the link.
type Module struct {
	config   Config
	recorder *Recorder
	begun    bool
}

// New makes a Module. Run opens the recorder.
func New(c Config) *Module {
	c.Root = cmp.Or(c.Root, "/")
	return &Module{config: c}
}

// Name implements beehive.Module.
func (*Module) Name() message.Name { return Name }

// Shutdown records that the device was asked to shut down; it is on the disk when this returns.
func (m *Module) Shutdown(ctx context.Context) {
	if m == nil || m.recorder == nil {
		return
	}
	m.recorder.Add(ctx, Record{Kind: Shutdown, Reason: "Announced", Cause: "systemd-logind announced a shutdown or reboot"})
	_ = m.recorder.Sync()
}

// retryMin and retryMax bound the time between two attempts to open a watch: before the first
// contact with the cloud there are no pods to watch.
const retryMin, retryMax = time.Second, 15 * time.Second

// Run implements beehive.Module: it records until ctx ends.
func (m *Module) Run(ctx context.Context, port *beehive.Port) error {
	client, err := kubernetes.NewForConfig(m.config.API)
	if err != nil {
		return fmt.Errorf("making the client of the flight recorder: %w", err)
	}
	if m.recorder == nil {
		if m.recorder, err = Open(m.config.Dir, m.config.Boot); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to open the flight recorder, retrying with each record", "directory", m.config.Dir)
		}
	}
	if !m.begun {
		before, _ := Read(m.config.Dir) // empty, where it can't be read
		for _, r := range began(before, m.config.Boot, os.Getpid(), m.config.Version, ReadMachine(m.config.Root)) {
			m.recorder.Add(ctx, r)
		}
		m.begun = true
	}
	port.Ready()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { m.recorder.SyncLoop(ctx); return nil })
	g.Go(func() error { return m.links(ctx, port) })
	pods := metav1.ListOptions{FieldSelector: "spec.nodeName=" + m.config.NodeName}
	g.Go(func() error {
		if !m.config.Pods {
			return nil
		}
		return m.follow(ctx, func() (watch.Interface, error) { return client.CoreV1().Pods("").Watch(ctx, pods) }, func(e watch.Event) {
			if p, ok := e.Object.(*corev1.Pod); ok && e.Type != watch.Deleted {
				m.add(ctx, ofPod(p))
			}
		})
	})
	g.Go(func() error {
		return m.follow(ctx, func() (watch.Interface, error) { return client.CoreV1().Events("").Watch(ctx, metav1.ListOptions{}) }, func(e watch.Event) {
			if o, ok := e.Object.(*corev1.Event); ok && e.Type != watch.Deleted {
				m.add(ctx, ofEvent(o, m.config.Drain))
			}
		})
	})
	err = g.Wait()
	m.recorder.Add(context.WithoutCancel(ctx), Record{Kind: Stop, Object: "edgecore", Reason: "Stopped", Cause: "edgecore was stopped in order"})
	if closeErr := m.recorder.Close(); err == nil && closeErr != nil {
		err = fmt.Errorf("closing the flight recorder: %w", closeErr)
	}
	m.recorder = nil
	return err
}

func (m *Module) add(ctx context.Context, all []Record) {
	for _, r := range all {
		m.recorder.Add(ctx, r)
	}
}

// links records each change of the link.
func (m *Module) links(ctx context.Context, port *beehive.Port) error {
	for {
		msg, err := port.Receive(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if up, err := linkstate.Up.Content(msg); err == nil {
			m.recorder.Add(ctx, Record{Kind: Link, Object: up.Remote, Reason: "Up", Cause: "by " + up.Transport + ", to " + up.Instance + " " + up.Version})
		} else if down, err := linkstate.Down.Content(msg); err == nil {
			cause := "it was ended"
			if down.Reason != nil {
				cause = down.Reason.Error()
			}
			m.recorder.Add(ctx, Record{Kind: Link, Reason: "Down", Cause: cause})
		}
	}
}

// follow reads a watch repeatedly. It keeps no objects: each watch repeats the initial set, whose
// records are recognised by their IDs.
func (m *Module) follow(ctx context.Context, open func() (watch.Interface, error), take func(watch.Event)) error {
	for delay := retryMin; ; delay = min(2*delay, retryMax) {
		if w, err := open(); err == nil {
			for e := range w.ResultChan() {
				take(e)
				delay = retryMin
			}
			w.Stop()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(delay):
		}
	}
}

// ofPod are the ends of a pod and of its containers.
func ofPod(p *corev1.Pod) (all []Record) {
	name := p.Namespace + "/" + p.Name
	if p.Status.Phase == corev1.PodFailed && p.Status.Reason != "" {
		all = append(all, Record{Kind: Eviction, Object: name, Reason: p.Status.Reason, Cause: p.Status.Message, ID: "pod/" + string(p.UID) + "/" + p.Status.Reason})
	}
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses} {
		for _, c := range list {
			for _, end := range []*corev1.ContainerStateTerminated{c.LastTerminationState.Terminated, c.State.Terminated} {
				if end == nil || end.ContainerID == "" {
					continue
				}
				r := Record{Time: end.FinishedAt.Time, Kind: Container, Object: name + "/" + c.Name, Reason: end.Reason, Cause: exit(end), ID: end.ContainerID}
				if end.FinishedAt.Unix() <= 0 { // unknown to the runtime
					r.Time = time.Time{}
				}
				if end.Reason == "OOMKilled" {
					r.Kind = OOM
				}
				all = append(all, r)
			}
		}
	}
	return all
}

// exit is the way a container ended. A shell's and a runtime's code for a signal is 128 + its
// number.
func exit(end *corev1.ContainerStateTerminated) string {
	text := fmt.Sprintf("exit code %d", end.ExitCode)
	if n := syscall.Signal(cmp.Or(end.Signal, max(0, end.ExitCode-128))); n > 0 && n < 65 {
		text += fmt.Sprintf(" (signal %d, %s)", n, n)
	}
	if end.Message != "" {
		text += ": " + strings.TrimSpace(end.Message)
	}
	return text
}

// ofEvent records warnings, Events of the Node, and the kubelet's reasons to end
// containers. Of one that repeats the 1st, 2nd, 4th, 8th ... are recorded.
func ofEvent(e *corev1.Event, drain string) []Record {
	r := Record{Kind: Event, Object: e.InvolvedObject.Kind + " " + strings.TrimPrefix(e.InvolvedObject.Namespace+"/"+e.InvolvedObject.Name, "/"), Reason: e.Reason, Cause: e.Message}
	aboutNode := e.InvolvedObject.Kind == "Node"
	switch {
	case drain != "" && (e.Source.Component == drain || e.ReportingController == drain):
		r.Kind = Operation
	case strings.Contains(e.Reason, "OOM"):
		r.Kind = OOM
	case e.Reason == "Evicted" || e.Reason == "Preempting":
		r.Kind = Eviction
	case e.Type == corev1.EventTypeWarning || aboutNode || e.Reason == "Killing":
	default:
		return nil
	}
	count := max(1, int(e.Count))
	if e.Series != nil {
		count, r.Time = int(e.Series.Count), e.Series.LastObservedTime.Time
	} else {
		r.Time = e.LastTimestamp.Time
	}
	step := bits.Len(uint(count)) // 1, 2-3, 4-7 ...
	if count > 1 {
		r.Cause = fmt.Sprintf("%s (%d times)", r.Cause, count)
	}
	r.ID = fmt.Sprintf("event/%s/%d", e.UID, step)
	return []Record{r}
}
