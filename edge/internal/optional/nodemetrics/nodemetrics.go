// Package nodemetrics samples the metrics of this device and sends the samples to the cloud, in the
// link's lowest class.
//
// It owns the samples that the cloud has not taken: the newest in memory, blocks of ten on the disk
// too, a day and 1 MiB at most, the oldest are dropped first. With a link it does not write;
// without one a block is appended each tenth sample and never flushed, so a power cut may take the
// last ones. It refuses to send to a cloud without the feature "metrics". Unanswered samples are
// sent again: the cloud identifies samples by their stream and number.
//
// The module is one goroutine, and one more while there is a session. Status may be called by any.
package nodemetrics

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/nodemetrics"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
)

// Name is the module's.
const Name message.Name = "nodemetrics"

// answerTimeout is how long an answer may take before samples are sent again.
const answerTimeout = 2 * time.Minute

// leastRetry is the least time after which samples are sent again that the cloud did not take.
const leastRetry = 10 * time.Second

// Config configures an Agent.
type Config struct {
	// Read reads the values of the moment, by the IDs of package common/nodemetrics. Unreadable
	// values are left out.
	Read func(ctx context.Context) map[uint32]float64
	// Path is the file of the samples that wait.
	Path string
	// Interval is the time between two samples, SendInterval between two messages with a link.
	Interval, SendInterval time.Duration
	// Keep is the age up to which samples are kept.
	Keep time.Duration
}

// Status is part of the status of edgecore.
type Status struct {
	Waiting int    `json:"waiting"`           // samples that the cloud has not taken
	Lost    uint64 `json:"lost,omitempty"`    // samples dropped at a bound, since the last that the cloud took
	Problem string `json:"problem,omitempty"` // why samples can't be kept on the disk
}

// Agent takes and sends samples. It is a beehive.Module and an edgehub.Part.
type Agent struct {
	config Config
	series []nodemetrics.Series
	added  chan struct{} // a new sample
	now    func() time.Time

	mu      sync.Mutex
	buffer  buffer
	file    file
	problem string
	sent    time.Time // when open samples were sent last

	last int64 // the second of the last sample; of the goroutine that takes them
}

// New makes an Agent. Run starts it.
func New(config Config) *Agent {
	return &Agent{
		config: config, series: nodemetrics.All(), added: make(chan struct{}, 1), now: time.Now,
		buffer: buffer{most: max(blockSamples, int(config.Keep/config.Interval)), stream: rand.Uint64() | 1, next: 1}, //nolint:gosec // distinguishes streams of one node
		file:   file{path: config.Path},
	}
}

// Name implements beehive.Module.
func (*Agent) Name() message.Name { return Name }

// Status returns the state of sampling.
func (a *Agent) Status() Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	return Status{Waiting: a.buffer.waiting(), Lost: a.buffer.lost, Problem: a.problem}
}

// Run takes samples until ctx ends.
func (a *Agent) Run(ctx context.Context, port *beehive.Port) error {
	a.load(ctx)
	port.Ready()
	a.sampleUntil(ctx)
	return nil
}

// sampleUntil takes samples until ctx ends.
func (a *Agent) sampleUntil(ctx context.Context) {
	tick := time.NewTicker(a.config.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			a.flush()
			return
		case <-tick.C:
			a.sample(ctx)
		}
	}
}

func (a *Agent) load(ctx context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.buffer.waiting() > 0 {
		return // started again in this process
	}
	blocks, err := a.file.read()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to read the samples of an earlier run, which are lost")
	}
	for _, one := range blocks {
		a.buffer.load(one)
	}
}

// sample takes a sample, but no second one of a second: receivers identify samples by their times,
// and a tick that came late is followed by one in time.
func (a *Agent) sample(ctx context.Context) {
	values := a.config.Read(ctx)
	s := nodemetrics.Sample{Unix: a.now().Unix(), Values: make(map[uint32]int64, len(values))}
	if s.Unix == a.last {
		return
	}
	a.last = s.Unix
	for _, series := range a.series {
		if v, ok := values[series.ID]; ok {
			s.Set(series, v)
		}
	}
	a.mu.Lock()
	sealed, err := a.buffer.add(s)
	if err == nil && sealed != nil {
		err = a.file.append(*sealed, a.buffer.blocks)
	}
	a.note(ctx, err)
	a.mu.Unlock()
	select {
	case a.added <- struct{}{}:
	default:
	}
}

// note keeps the problem of the last write, and logs it when it begins. mu is held.
func (a *Agent) note(ctx context.Context, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && a.problem == "" {
		klog.FromContext(ctx).Error(err, "Failed to write metric samples to the disk; those in memory are lost if edgecore ends")
	}
	a.problem = text
}

// flush writes the open samples, at the end.
func (a *Agent) flush() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if sealed, err := a.buffer.seal(); err == nil && sealed != nil {
		_ = a.file.append(*sealed, a.buffer.blocks) // the process ends: there is no other way to keep them
	}
}

// next is the message to send; nil before the next is due.
func (a *Agent) next(now time.Time) (*topicpb.NodeMetrics, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	due := now.Sub(a.sent) >= a.config.SendInterval-a.config.Interval/2
	m, err := a.buffer.message(due)
	if err != nil {
		a.buffer.lost += uint64(a.buffer.drop())
		return nil, err
	}
	if m != nil && due {
		a.sent = now
	}
	return m, nil
}

// answered forgets the samples that the cloud has taken.
func (a *Agent) answered(ctx context.Context, m *topicpb.NodeMetrics, r *topicpb.NodeMetricsResult) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.buffer.taken(r.GetStream(), r.GetThrough(), m.GetLost())
	if len(a.buffer.blocks) == 0 {
		a.note(ctx, a.file.clear())
	}
}

// Attach implements edgehub.Part.
func (a *Agent) Attach(up linkstate.Link, send func(context.Context, message.Message) error) (
	handle func(context.Context, message.Message) error, run func(context.Context)) {
	answers := make(chan *topicpb.NodeMetricsResult, 1)
	handle = func(_ context.Context, m message.Message) error {
		r, err := topic.NodeMetricsResult.Content(m)
		if err != nil {
			return err
		}
		select {
		case answers <- r:
		default: // one message is in flight at a time: a second answer is not to ours
		}
		return nil
	}
	return handle, func(ctx context.Context) {
		if !up.Metrics {
			return
		}
		if err := a.serve(ctx, send, answers); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("Failed to send metric samples over this link", "err", err)
		}
	}
}

// serve sends the samples of one session, one message after the other.
func (a *Agent) serve(ctx context.Context, send func(context.Context, message.Message) error, answers <-chan *topicpb.NodeMetricsResult) error {
	for {
		m, err := a.next(a.now())
		switch {
		case err != nil:
			klog.FromContext(ctx).Error(err, "Dropped unreadable metric samples")
			continue
		case m == nil:
			select {
			case <-ctx.Done():
				return nil
			case <-a.added:
			}
			continue
		}
		if err := send(ctx, topic.NodeMetrics.New(message.Resource{}, m)); err != nil {
			return err
		}
		wait, err := a.await(ctx, m, answers)
		if err != nil {
			return err
		}
		if !pause(ctx, wait) {
			return nil
		}
	}
}

var errEnded = errors.New("the session ended")

// await waits for the answer to m, and returns how long to wait before the next message.
func (a *Agent) await(ctx context.Context, m *topicpb.NodeMetrics, answers <-chan *topicpb.NodeMetricsResult) (time.Duration, error) {
	late := time.NewTimer(answerTimeout)
	defer late.Stop()
	for {
		select {
		case <-ctx.Done():
			return 0, errEnded
		case <-late.C:
			return 0, nil // sent again
		case r := <-answers:
			if r.GetStream() != m.GetStream() {
				continue
			}
			a.answered(ctx, m, r)
			wait := min(time.Duration(r.GetRetrySeconds())*time.Second, time.Hour)
			if r.GetThrough() < m.GetFirst()+uint64(len(m.GetSteps())) {
				wait = max(wait, leastRetry)
			}
			return wait, nil
		}
	}
}

// pause waits for d; false: ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
