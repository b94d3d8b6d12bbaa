package reports

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

const (
	// maxReports and maxBytes bound the reports of one session that have not been answered. An edge
	// keeps 64 writes on the way; one that doesn't is disconnected.
	maxReports = 256
	maxBytes   = 1 << 20
)

// report is a node's report of an object.
type report struct {
	from *reporter
	uid  types.UID
	body []byte // nil: the entry goes
	// writes are those that this report answers: an older one and the newer one that replaced it.
	writes []write
}

type write struct {
	id    uint64
	bytes int
}

// reporter is a session that reports. It is the hub's Service for it.
type reporter struct {
	cloudhub.Session
	gone    func(*reporter) // removes its pending reports
	sending *cloudhub.Loop  // sends answers: only this session waits for its device

	mu      sync.Mutex
	fail    func(error)
	waiting int               // writes without an answer
	bytes   int               // of their bodies
	answers []message.Message // at most one for each write that waited
	ended   bool
}

func newReporter(s cloudhub.Session, gone func(*reporter)) *reporter {
	r := &reporter{Session: s, gone: gone}
	r.sending = cloudhub.NewLoop(r.send)
	return r
}

// Start implements cloudhub.Service.
func (r *reporter) Start(ctx context.Context, fail func(error)) {
	r.mu.Lock()
	r.fail = fail
	r.mu.Unlock()
	r.sending.Start(ctx, fail)
}

// Stop implements cloudhub.Service.
func (r *reporter) Stop() {
	r.mu.Lock()
	r.ended = true
	r.answers = nil
	r.mu.Unlock()
	r.sending.Stop()
	r.gone(r)
}

// over reports whether the session has ended.
func (r *reporter) over() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

// replaced ends the session: a newer one of the node has the Lease.
func (r *reporter) replaced(why error) {
	r.mu.Lock()
	fail := r.fail
	r.ended = true
	r.mu.Unlock()
	if fail != nil {
		fail(&link.CloseError{Code: link.CloseReplaced, Reason: why.Error()})
	}
}

// admit counts a write of so many bytes. Its error ends the session.
func (r *reporter) admit(bytes int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting >= maxReports || r.bytes+bytes > maxBytes {
		return &link.CloseError{Code: link.CloseProtocol, Reason: fmt.Sprintf("more than %d reports or %d bytes of them without an answer", maxReports, maxBytes)}
	}
	r.waiting++
	r.bytes += bytes
	return nil
}

// answer sends a write's result to the edge; in its next session the edge repeats unanswered
// writes.
func (r *reporter) answer(t target, id uint64, bytes int, version string, refusal *apierrors.StatusError) error {
	result := &topicpb.WriteResult{Id: id, Accepted: refusal == nil, ResourceVersion: version}
	if refusal != nil {
		status := refusal.ErrStatus
		status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		raw, err := json.Marshal(&status)
		if err != nil {
			return fmt.Errorf("writing a refusal: %w", err)
		}
		result.Status = raw
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting--
	r.bytes -= bytes
	if !r.ended {
		r.answers = append(r.answers, topic.ReportResult.New(message.Resource{Namespace: t.namespace, Name: t.name}, result))
		r.sending.Signal()
	}
	return nil
}

// send is the Loop's step.
func (r *reporter) send(ctx context.Context) error {
	for {
		r.mu.Lock()
		if len(r.answers) == 0 || r.ended {
			r.mu.Unlock()
			return nil
		}
		m := r.answers[0]
		r.answers = r.answers[1:]
		r.mu.Unlock()
		if err := r.Send(ctx, m); err != nil {
			return nil //nolint:nilerr // the link has ended, and the session with it
		}
	}
}
