package relay

import (
	"context"
	"net/http"
	"path"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/skerry-io/skerry/cloud/internal/core/quota"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// The names of the quotas in cloudcore.yaml.
const (
	eventsQuota   = "relay.quotas.eventsPerSecond"
	requestsQuota = "relay.quotas.requestsPerSecond"
	bytesQuota    = "relay.quotas.bytesInFlight"

	statusesQuota    = "relay.quotas.statusesPerSecond"
	statusBytesQuota = "relay.quotas.statusBytesPerSecond"

	certificatesQuota = "relay.quotas.certificateRequestsPerHour"
)

// certificateRequests is where CertificateSigningRequests are made.
const certificateRequests = "/apis/certificates.k8s.io/v1/certificatesigningrequests"

// perWrite is a write's memory without its body, about: the decoded message, its job, its lane.
const perWrite = 1 << 10

// The charge for a refusal (cloudhub.Session): an edge that waits as long as it is asked to is
// refused at most its writes in flight, 64 of a class.
const (
	perRefusal     = 20 * time.Millisecond
	perRefusedByte = time.Second / (1 << 20)
)

// perAnsweredByte is the charge for answers to requests: 2 MB a second, above 20 MB at once.
const perAnsweredByte = time.Second / (2 << 20)

func sizeOf(w *topicpb.Write) int { return len(w.GetBody()) + perWrite }

// overQuota holds the bytes of a write, or names which quota it does not fit into.
func (s *session) overQuota(w *topicpb.Write) error {
	err := s.overRate(w)
	if err == nil && !s.held.Take(sizeOf(w)) {
		err = s.exceeded(bytesQuota, 1)
	}
	if err != nil {
		s.link.Charge(perRefusal + time.Duration(len(w.GetBody()))*perRefusedByte)
	}
	return err
}

// overRate takes a write off the node's rate, or names the quota that it exceeds.
func (s *session) overRate(w *topicpb.Write) error {
	q := &s.relay.quotas
	if kindOf(w) == events {
		if ok, after := q.events.Take(s.node); !ok {
			return s.exceeded(eventsQuota, after)
		}
		return nil
	}
	if ok, after := q.statuses.Take(s.node); !ok {
		return s.exceeded(statusesQuota, after)
	}
	if ok, after := q.statusBytes.TakeN(s.node, len(w.GetBody())); !ok {
		q.statuses.Give(s.node, 1)
		return s.exceeded(statusBytesQuota, after)
	}
	return nil
}

// turnOf returns the function by which a write waits for its turn, or nil: nodes that have made
// many writes of its kind lately take turns, and so do large writes.
func (s *session) turnOf(w *topicpb.Write) func(context.Context) (leave func()) {
	q, t := &s.relay.quotas, (*turns)(nil)
	switch {
	case len(w.GetBody()) > largeBody && kindOf(w) == events:
		t = s.relay.largeEvents
	case len(w.GetBody()) > largeBody:
		t = s.relay.large
	case kindOf(w) == events:
		if q.events.Heavy(s.node) {
			t = s.relay.heavyEvents
		}
	case q.statuses.Heavy(s.node) || q.statusBytes.Heavy(s.node):
		t = s.relay.heavy
	}
	if t == nil {
		return nil
	}
	return func(ctx context.Context) func() { return t.wait(ctx, s.node) }
}

// largeBody is more than a pod's status has with all its containers, and a Node with its images.
const largeBody = 64 << 10

// requestOverQuota is overQuota of a request.
func (s *session) requestOverQuota(q *topicpb.APIRequest) error {
	err := s.requestOverRate(q)
	if err == nil && !s.held.Take(reserved(q)) {
		err = s.exceeded(bytesQuota, 1)
	}
	if err != nil {
		s.link.Charge(perRefusal + time.Duration(len(q.GetBody()))*perRefusedByte)
	}
	return err
}

func (s *session) requestOverRate(q *topicpb.APIRequest) error {
	if ok, after := s.relay.quotas.requests.Take(s.node); !ok {
		return s.exceeded(requestsQuota, after)
	}
	if q.GetMethod() == http.MethodPost && path.Clean(q.GetPath()) == certificateRequests {
		if ok, after := s.relay.quotas.certificates.Take(s.node); !ok {
			return s.exceeded(certificatesQuota, after)
		}
	}
	return nil
}

// Memory reserved for the answer to a write from the beginning: an object. Dropping the answer
// would leave the client in the dark, for the write was made.
const (
	perAnswer = 512 << 10
	perNew    = 64 << 10 // to a POST or DELETE: tokens, reviews, requests for certificates, pods
)

// reserved is the memory held for a request before its answer is there.
func reserved(q *topicpb.APIRequest) int {
	switch q.GetMethod() {
	case http.MethodPut, http.MethodPatch:
		return len(q.GetBody()) + perAnswer
	case http.MethodPost, http.MethodDelete:
		return len(q.GetBody()) + perNew
	}
	return len(q.GetBody()) + perWrite
}

// room is the buffer for the answer to one request: first the bytes reserved for it, then further
// bytes of the session's quota.
type room struct {
	bytes   *quota.Bytes
	reserve int // of the held bytes, not used yet
	held    int // used
}

// Take implements kube.Memory.
func (r *room) Take(n int) bool {
	own := min(n, r.reserve)
	if n > own && !r.bytes.Take(n-own) {
		return false
	}
	r.reserve -= own
	r.held += n
	return true
}

// Give implements kube.Memory.
func (r *room) Give(n int) {
	r.held -= n
	r.bytes.Give(n)
}

// end gives all of it back.
func (r *room) end() {
	r.bytes.Give(r.held + r.reserve)
	r.held, r.reserve = 0, 0
}

func (s *session) exceeded(name string, after int) *apierrors.StatusError {
	s.relay.metrics.quota(name)
	return quota.Refusal(name, after)
}
