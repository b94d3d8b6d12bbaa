package relay

import (
	"net/http"
	"path"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/skerry-io/skerry/cloud/internal/quota"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// The names of the quotas in cloudcore.yaml.
const (
	eventsQuota   = "relay.quotas.eventsPerSecond"
	requestsQuota = "relay.quotas.requestsPerSecond"
	bytesQuota    = "relay.quotas.bytesInFlight"

	certificatesQuota = "relay.quotas.certificateRequestsPerHour"
)

// certificateRequests is where CertificateSigningRequests are made.
const certificateRequests = "/apis/certificates.k8s.io/v1/certificatesigningrequests"

// perWrite is what a write takes beside its body, about: the decoded message, its job, its lane.
const perWrite = 1 << 10

func sizeOf(w *topicpb.Write) int { return len(w.GetBody()) + perWrite }

// overQuota holds the bytes of a write, or says which quota it does not fit into.
func (s *session) overQuota(w *topicpb.Write) error {
	if w.GetResource().GetResource() == "events" {
		if ok, after := s.relay.quotas.events.Take(s.node); !ok {
			return s.exceeded(eventsQuota, after)
		}
	}
	if !s.held.Take(sizeOf(w)) {
		return s.exceeded(bytesQuota, 1)
	}
	return nil
}

// requestOverQuota is overQuota of a request.
func (s *session) requestOverQuota(q *topicpb.APIRequest) error {
	if ok, after := s.relay.quotas.requests.Take(s.node); !ok {
		return s.exceeded(requestsQuota, after)
	}
	if q.GetMethod() == http.MethodPost && path.Clean(q.GetPath()) == certificateRequests {
		if ok, after := s.relay.quotas.certificates.Take(s.node); !ok {
			return s.exceeded(certificatesQuota, after)
		}
	}
	if !s.held.Take(reserved(q)) {
		return s.exceeded(bytesQuota, 1)
	}
	return nil
}

// perAnswer is held for the answer to a write: an object. It can't be dropped, for the write was made.
const perAnswer = 512 << 10

// reserved is what is held for a request before its answer is there.
func reserved(q *topicpb.APIRequest) int {
	switch q.GetMethod() {
	case http.MethodPut, http.MethodPatch:
		return len(q.GetBody()) + perAnswer
	}
	return len(q.GetBody()) + perWrite
}

func (s *session) exceeded(name string, after int) *apierrors.StatusError {
	s.relay.metrics.quota(name)
	return quota.Refusal(name, after)
}
