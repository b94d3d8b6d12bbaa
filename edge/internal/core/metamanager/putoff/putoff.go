// Package putoff is the writes that cloudcore did not take because this node has used up a quota of
// its (topic.QuotaKind), and when they are sent again.
//
// It owns which they are and until when, no more; the outbox has the writes. All methods may be
// called by many goroutines at once.
package putoff

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// longestPutOff bounds the delay that the cloud may ask for.
const longestPutOff = time.Minute

// Queue has the numbers of deferred writes. They stay in the outbox, and in flight: at most the
// window of their class waits. They are sent again when the delay that cloudcore named last has
// passed, or on a new link.
type Queue struct {
	timer *time.Timer // when the next are due

	mu    sync.Mutex // guards the fields below
	ids   []uint64
	until time.Time
	quota Status
}

// Status is a quota of cloudcore's that this node has used up.
type Status struct {
	Quota string    `json:"quota"` // its field in cloudcore.yaml
	Until time.Time `json:"until"` // time of the next attempt
	Times uint64    `json:"times"` // that this node was put off, since edgecore started
}

// New returns an empty Queue.
func New() *Queue {
	p := &Queue{timer: time.NewTimer(time.Hour)}
	p.timer.Stop()
	return p
}

// quotaOf reads which quota a Status names, and how long to wait.
func quotaOf(raw []byte) (quota string, after time.Duration, ok bool) {
	var s metav1.Status
	if json.Unmarshal(raw, &s) != nil || s.Code != http.StatusTooManyRequests || s.Details == nil || s.Details.Kind != topic.QuotaKind {
		return "", 0, false
	}
	return s.Details.Name, min(max(time.Duration(s.Details.RetryAfterSeconds)*time.Second, time.Second), longestPutOff), true
}

// note keeps which quota was used up, for the status. The lock is held.
func (p *Queue) note(quota string, after time.Duration) {
	p.until = time.Now().Add(after)
	p.quota = Status{Quota: quota, Until: p.until, Times: p.quota.Times + 1}
}

// Put processes a result, and reports whether it defers its write.
func (p *Queue) Put(ctx context.Context, r *topicpb.WriteResult) bool {
	if r.GetAccepted() {
		return false
	}
	quota, after, ok := quotaOf(r.GetStatus())
	if !ok {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ids) == 0 {
		klog.FromContext(ctx).V(2).Info("Deferring writes: a quota of this node is exhausted", "quota", quota, "retryIn", after)
	}
	p.ids = append(p.ids, r.GetId())
	p.note(quota, after)
	p.timer.Reset(after)
	return true
}

// Answered notes the answer to a request where a quota is the reason.
func (p *Queue) Answered(a *topicpb.APIResponse) {
	if a.GetCode() != http.StatusTooManyRequests {
		return
	}
	if quota, after, ok := quotaOf(a.GetBody()); ok {
		p.mu.Lock()
		p.note(quota, after)
		p.mu.Unlock()
	}
}

// Status is nil where no quota was used up.
func (p *Queue) Status() *Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.quota.Times == 0 {
		return nil
	}
	s := p.quota
	return &s
}

// Forget drops the writes deferred on an ended link: a new one sends all pending writes.
func (p *Queue) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ids = nil
}

// Due fires when deferred writes are due.
func (p *Queue) Due() <-chan time.Time { return p.timer.C }

// Take takes all deferred writes.
func (p *Queue) Take() []uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	ids := p.ids
	p.ids = nil
	return ids
}
