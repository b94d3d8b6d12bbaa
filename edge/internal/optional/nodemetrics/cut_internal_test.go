package nodemetrics

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/nodemetrics"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
)

// receiver fakes cloudcore and its sink: it passes each sample on once, by its stream and number
// (cloud/internal/access/nodemetrics does so), and keeps their times. Every fourth answer is lost.
type receiver struct {
	mu      sync.Mutex
	through map[uint64]uint64
	times   map[int64]int
	down    bool
	answers int
}

func (r *receiver) take(m message.Message) (*topicpb.NodeMetricsResult, error) {
	q, err := topic.NodeMetrics.Content(m)
	if err != nil {
		return nil, err
	}
	samples, err := nodemetrics.Unpack(q)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	answer := &topicpb.NodeMetricsResult{Stream: q.GetStream(), Through: r.through[q.GetStream()]}
	if r.down {
		answer.RetrySeconds = 300
		return answer, nil
	}
	for i, s := range samples {
		if n := q.GetFirst() + uint64(i); n > answer.Through {
			r.times[s.Unix]++
			answer.Through = n
		}
	}
	r.through[q.GetStream()] = answer.Through
	if r.answers++; r.answers%4 == 0 {
		return nil, nil
	}
	return answer, nil
}

// device is an edgecore, as far as its metrics go, and the links that it has.
type device struct {
	t     *testing.T
	path  string
	cloud *receiver
	agent *Agent
	stop  func()
}

// start starts edgecore.
func (d *device) start() {
	a := New(Config{
		Read: func(context.Context) map[uint32]float64 { return map[uint32]float64{nodemetrics.CPUs: 4} },
		Path: d.path, Interval: time.Minute, SendInterval: 5 * time.Minute, Keep: 24 * time.Hour,
	})
	ctx, cancel := context.WithCancel(d.t.Context())
	done := make(chan struct{})
	a.load(ctx)
	go func() {
		defer close(done)
		a.sampleUntil(ctx)
	}()
	d.agent, d.stop = a, func() { cancel(); <-done }
}

// link opens a session; cut ends it.
func (d *device) link() (cut func()) {
	ctx, cancel := context.WithCancel(d.t.Context())
	sent := make(chan message.Message, 1)
	handle, run := d.agent.Attach(linkstate.Link{Metrics: true}, func(_ context.Context, m message.Message) error { sent <- m; return nil })
	var both sync.WaitGroup
	both.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case m := <-sent:
				time.Sleep(time.Second) // the way there and back
				answer, err := d.cloud.take(m)
				if err == nil && answer != nil && ctx.Err() == nil {
					err = handle(ctx, topic.NodeMetricsResult.New(message.Resource{}, answer))
				}
				if err != nil {
					d.t.Error(err)
				}
			}
		}
	})
	both.Go(func() { run(ctx) })
	return func() { cancel(); both.Wait() }
}

// An hour's cut, in which edgecore is stopped and started, then a cut of two days: the samples of
// the hour and those of the last day arrive with their own times, each once, although answers are
// lost and the sink is down for a while.
func TestOperate_04_MetricsOfACutArriveWithTheirTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &receiver{through: map[uint64]uint64{}, times: map[int64]int{}}
		d := &device{t: t, path: filepath.Join(t.TempDir(), "samples"), cloud: sink}
		begin := time.Now()
		d.start()
		cut := d.link()
		time.Sleep(time.Hour + time.Second)
		cut()
		time.Sleep(25 * time.Minute)
		d.stop()
		d.start() // a second of which no sample is: the ticker begins anew
		time.Sleep(35 * time.Minute)
		sink.mu.Lock()
		sink.down = true
		sink.mu.Unlock()
		cut = d.link()
		time.Sleep(20 * time.Minute)
		sink.mu.Lock()
		sink.down = false
		sink.mu.Unlock()
		time.Sleep(40 * time.Minute)
		cut()
		expect := func(from, to time.Time, samples int) {
			t.Helper()
			sink.mu.Lock()
			defer sink.mu.Unlock()
			var got int
			last := int64(0)
			for at := from.Unix(); at <= to.Unix(); at++ {
				n := sink.times[at]
				if n > 1 {
					t.Errorf("the sample of %v came %d times", time.Unix(at, 0).Sub(begin), n)
				}
				if n > 0 {
					got++
					if last != 0 && at-last > 61 {
						t.Errorf("none came of %v to %v", time.Unix(last, 0).Sub(begin), time.Unix(at, 0).Sub(begin))
					}
					last = at
				}
			}
			if got < samples-1 || got > samples {
				t.Errorf("%d samples came of %v, want %d", got, to.Sub(from), samples)
			}
		}
		// The last five minutes may wait for their message.
		expect(begin, begin.Add(2*time.Hour+55*time.Minute), 175)

		start := time.Now()
		time.Sleep(48 * time.Hour)
		if s := d.agent.Status(); s.Waiting > 24*60+blockSamples || s.Waiting < 24*60-blockSamples || s.Lost == 0 {
			t.Errorf("after two days %+v", s)
		}
		cut = d.link()
		time.Sleep(2 * time.Hour)
		cut()
		expect(start, start.Add(23*time.Hour), 0)
		expect(start.Add(24*time.Hour+blockSamples*time.Minute), start.Add(48*time.Hour), 24*60-blockSamples+1)
		d.stop()
	})
}

// A busy machine takes a sample late, and the next one in the same second.
func TestSample_NoSecondOneOfASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := true
		a := New(Config{
			Read: func(context.Context) map[uint32]float64 {
				if slow {
					slow = false
					time.Sleep(1500 * time.Millisecond)
				}
				return map[uint32]float64{nodemetrics.CPUs: 4}
			},
			Path: filepath.Join(t.TempDir(), "samples"), Interval: time.Second, SendInterval: time.Minute, Keep: time.Hour,
		})
		ctx, cancel := context.WithTimeout(t.Context(), 9500*time.Millisecond)
		defer cancel()
		a.sampleUntil(ctx)
		seen := map[int64]int{}
		for _, one := range a.buffer.blocks {
			samples, err := unpack(one.packed)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range samples {
				seen[s.Unix]++
			}
		}
		if len(seen) != 8 { // of seconds 2 to 9
			t.Errorf("samples of %d seconds: %v", len(seen), seen)
		}
		for at, n := range seen {
			if n != 1 {
				t.Errorf("%d samples of second %d", n, at)
			}
		}
	})
}

func unpack(packed []byte) ([]nodemetrics.Sample, error) {
	var m topicpb.NodeMetrics
	if err := proto.Unmarshal(packed, &m); err != nil {
		return nil, err
	}
	return nodemetrics.Unpack(&m)
}
