// Package applogs sends the output of applications (EdgeApps) to the cloud, where they ask for it
// (spec.collectLogs).
//
// It owns a cursor for each start of each container, kept over restarts: how far the cloud's sink
// has taken its lines. It reads the files that the container runtime writes for the kubelet; they
// are also the buffer while there is no link, so their bound is the kubelet's (containerLogMaxSize
// times containerLogMaxFiles for each container), the oldest lines are dropped first, and their
// number is sent with the next ones. It refuses to move a cursor before the sink has the lines: a
// batch that is sent twice is dropped by the cloud, which identifies each line by its container and
// offset.
//
// Streams are read and sent one after the other, by one goroutine, in batches (common/applog); the
// pace is Config.Interval and the cloud's quota. Bounds: as many streams as there are containers on
// the device and starts of them that the kubelet keeps; Pending batches a round, then the others
// have their turn.
package applogs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/applog"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
)

// Name is the module's.
const Name message.Name = "applogs"

// pending is how many batches of one stream are sent before the next one has its turn.
const pending = 16

// Requester asks the cloud, through the link; a *metamanager.Manager.
type Requester interface {
	Request(ctx context.Context, r *topicpb.APIRequest) (*topicpb.APIResponse, error)
}

// Config configures the agent.
type Config struct {
	NodeName string
	API      *rest.Config
	Cloud    Requester
	Memory   agent.Memory
	// Dir is where the kubelet has the logs of pods: NAMESPACE_NAME_UID/CONTAINER/RESTART.log.
	Dir string
	// Interval is how often it is looked for lines.
	Interval time.Duration
}

// Status is the part of `edgecore status`.
type Status struct {
	Containers int    `json:"containers"` // whose lines are collected, each start of one counted
	Sent       uint64 `json:"sent"`       // lines, since edgecore started
	Dropped    uint64 `json:"dropped"`    // lines that were rotated away before they were sent, since edgecore started
	Problem    string `json:"problem,omitempty"`
}

// Agent sends logs.
type Agent struct {
	*agent.Module
	config        Config
	sent, dropped prometheus.Counter

	mu     sync.Mutex
	status Status
}

// New makes the agent.
func New(config Config) *Agent {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "skerry", Subsystem: "applogs", Name: name, Help: help})
	}
	a := &Agent{
		config: config,
		sent:   counter("lines_total", "Log lines of applications that the cloud's receiver has accepted."), dropped: counter("dropped_total", "Log lines of applications that were rotated away before they were sent."),
	}
	a.Module = agent.New(agent.Config{Name: Name, NodeName: config.NodeName, API: config.API, Start: a.start, Resync: config.Interval})
	return a
}

// Describe implements prometheus.Collector.
func (a *Agent) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(a, ch) }

// Collect implements prometheus.Collector.
func (a *Agent) Collect(ch chan<- prometheus.Metric) { a.sent.Collect(ch); a.dropped.Collect(ch) }

// Status returns the state of collecting, for any goroutine.
func (a *Agent) Status() Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.status
}

// round is one run. Its Sync owns it.
type round struct {
	*Agent
	run     *agent.Run
	apps    *agent.Objects[*v1alpha1.EdgeApp]
	pods    *agent.Objects[*corev1.Pod]
	streams map[string]*stream // by their path below Dir, without .log
	kept    map[string]Cursor  // as they are on the disk
	wait    time.Time          // for the next batch: the cloud asked for it
	counted time.Time          // when lines were counted last
}

func (a *Agent) start(_ context.Context, r *agent.Run) (agent.Sync, error) {
	quiet := func() bool { return false } // Interval is often enough
	apps, err := agent.Watch(r, v1alpha1.Resource(v1alpha1.EdgeApps), &v1alpha1.EdgeApp{}, agent.Selection{Wakes: quiet})
	if err != nil {
		return nil, err
	}
	pods, err := agent.Watch(r, corev1.SchemeGroupVersion.WithResource("pods"), &corev1.Pod{}, agent.Selection{Fields: "spec.nodeName=" + a.config.NodeName, Wakes: quiet})
	if err != nil {
		return nil, err
	}
	saved, err := a.config.Memory.Load()
	if err != nil {
		return nil, err
	}
	o := &round{Agent: a, run: r, apps: apps, pods: pods, streams: map[string]*stream{}, kept: map[string]Cursor{}}
	for key, raw := range saved {
		var c Cursor
		if json.Unmarshal(raw, &c) == nil { // one that can't be read is as good as forgotten
			o.kept[key] = c
			o.open(key, c)
		}
	}
	return o.sync, nil
}

// open makes the stream of a path: NAMESPACE_NAME_UID/CONTAINER/RESTART.
func (o *round) open(key string, c Cursor) *stream {
	parts := strings.Split(key, string(filepath.Separator))
	if len(parts) != 3 {
		return nil
	}
	names := strings.Split(parts[0], "_")
	number, err := strconv.Atoi(parts[2])
	if err != nil || len(names) != 3 {
		return nil
	}
	s := &stream{
		dir: filepath.Join(o.config.Dir, parts[0], parts[1]), restart: parts[2], podUID: names[2], container: parts[1], number: number, cursor: c, known: map[string]string{},
	}
	o.streams[key] = s
	return s
}

func (o *round) sync(ctx context.Context) (time.Duration, error) {
	o.find()
	var failed error
	for _, key := range o.order() {
		s := o.streams[key]
		switch err := s.scan(); {
		case errors.Is(err, os.ErrNotExist):
			s.gone()
		case err != nil:
			failed = errors.Join(failed, err)
		}
	}
	o.counted = time.Now()
	if o.run.Link().Up && !time.Now().Before(o.wait) {
		for _, key := range o.order() {
			if err := o.send(ctx, key); err != nil {
				failed = errors.Join(failed, err)
				if time.Now().Before(o.wait) || !o.run.Link().Up {
					break // the error of one stream holds back no other
				}
			}
		}
	}
	failed = errors.Join(failed, o.save(ctx))
	o.show(failed)
	return o.config.Interval, failed
}

func (o *round) show(failed error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.status.Containers, o.status.Problem = len(o.streams), ""
	if failed != nil {
		o.status.Problem = failed.Error()
	}
}

func (o *round) order() []string {
	keys := make([]string, 0, len(o.streams))
	for key := range o.streams {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// find opens the streams of the pods of applications that enable it. A stream stays until its files
// are deleted, also if its pod is.
func (o *round) find() {
	for _, pod := range o.pods.List() {
		name := pod.Labels[v1alpha1.EdgeAppLabel]
		if name == "" {
			continue
		}
		app, ok := o.apps.Get(pod.Namespace + "/" + name)
		if !ok || !app.Spec.CollectLogs {
			continue
		}
		dir := pod.Namespace + "_" + pod.Name + "_" + string(pod.UID)
		files, err := filepath.Glob(filepath.Join(o.config.Dir, dir, "*", "*.log"))
		if err != nil {
			continue // names of Kubernetes have no pattern in them
		}
		for _, path := range files {
			key := filepath.Join(dir, filepath.Base(filepath.Dir(path)), strings.TrimSuffix(filepath.Base(path), ".log"))
			if o.streams[key] == nil {
				o.open(key, Cursor{App: pod.Namespace + "/" + name, AppUID: string(app.UID), Pod: pod.Name})
			}
		}
	}
}

// send sends the lines of one stream to the cloud. One whose files are deleted is dropped with its
// last report, and so is one whose application has disabled it.
func (o *round) send(ctx context.Context, key string) error {
	s := o.streams[key]
	app, ok := o.apps.Get(s.cursor.App)
	if !ok || string(app.UID) != s.cursor.AppUID || !app.Spec.CollectLogs {
		delete(o.streams, key)
		return nil
	}
	for range pending {
		batch, after, err := s.next(time.Now())
		if err != nil {
			return err
		}
		if batch == nil {
			break
		}
		through, err := o.postAndCount(ctx, s.cursor.App, batch)
		if err != nil {
			return err
		}
		if n := len(batch.Lines); n > 0 && through < batch.Lines[n-1].End {
			return fmt.Errorf("the cloud has %s up to %d only", batch.Stream(), through)
		}
		s.cursor = after
		o.sent.Add(float64(len(batch.Lines)))
		o.dropped.Add(float64(batch.Dropped))
		o.mu.Lock()
		o.status.Sent += uint64(len(batch.Lines))
		o.status.Dropped += uint64(batch.Dropped)
		o.mu.Unlock()
	}
	if s.over() {
		delete(o.streams, key)
	}
	return nil
}

// postAndCount is post, and counts lines at the same time: those of files that are removed during
// it are dropped, and their number is known only while they exist.
func (o *round) postAndCount(ctx context.Context, app string, b *applog.Batch) (through int64, err error) {
	posted := make(chan struct{})
	go func() {
		defer close(posted)
		through, err = o.post(ctx, app, b)
	}()
	for {
		next := time.NewTimer(time.Until(o.counted.Add(o.config.Interval)))
		select {
		case <-posted:
			next.Stop()
			return through, err
		case <-next.C:
			for _, s := range o.streams {
				_ = s.count() // the next look returns the error
			}
			o.counted = time.Now()
		}
	}
}

// post sends a batch, and returns up to where the cloud's sink has the lines.
func (o *round) post(ctx context.Context, app string, b *applog.Batch) (int64, error) {
	body, err := json.Marshal(b)
	if err != nil {
		return 0, fmt.Errorf("encoding lines: %w", err)
	}
	namespace, name, _ := strings.Cut(app, "/")
	answer, err := o.config.Cloud.Request(ctx, &topicpb.APIRequest{
		Method: http.MethodPost, Path: applog.Path(namespace, name), ContentType: "application/json", Accept: "application/json", Body: body,
	})
	if err != nil {
		return 0, fmt.Errorf("sending lines of %s: %w", app, err)
	}
	if answer.GetCode() != http.StatusOK {
		if seconds, err := strconv.Atoi(answer.GetRetryAfter()); err == nil {
			o.wait = time.Now().Add(time.Duration(min(seconds, 600)) * time.Second)
		}
		var status metav1.Status
		if json.Unmarshal(answer.GetBody(), &status) == nil && status.Message != "" {
			return 0, fmt.Errorf("sending lines of %s: %w", app, &apierrors.StatusError{ErrStatus: status})
		}
		return 0, fmt.Errorf("sending lines of %s: the cloud answers %d", app, answer.GetCode())
	}
	var a applog.Answer
	if err := json.NewDecoder(bytes.NewReader(answer.GetBody())).Decode(&a); err != nil {
		return 0, fmt.Errorf("reading the cloud's answer: %w", err)
	}
	return a.Through, nil
}

// save keeps the cursors that have moved, in one write.
func (o *round) save(ctx context.Context) error {
	changes := map[string][]byte{}
	for key, s := range o.streams {
		if o.kept[key] == s.cursor {
			continue
		}
		raw, err := json.Marshal(s.cursor)
		if err != nil {
			return fmt.Errorf("encoding a cursor: %w", err)
		}
		changes[key] = raw
	}
	for key := range o.kept {
		if o.streams[key] == nil {
			changes[key] = nil
		}
	}
	if len(changes) == 0 {
		return nil
	}
	if err := o.config.Memory.Save(ctx, changes); err != nil {
		return err
	}
	for key := range changes {
		if s := o.streams[key]; s != nil {
			o.kept[key] = s.cursor
		} else {
			delete(o.kept, key)
		}
	}
	return nil
}
