package relay

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
)

// outcome is how one attempt of a write went. Neither err nor retry nor ends: accepted.
type outcome struct {
	version string // of the object after the write, where known
	err     error  // refused for good, a Status error
	retry   retry
	after   time.Duration // kube-apiserver asked to wait that long
	ends    error         // the session must end, and the edge gets no answer to this write: a newer session makes it
	why     error         // of retry, for the log
	// progressed: before it failed, the attempt read something that the next one reuses.
	progressed bool
	done       bool // accepted: the object already had the written state
}

func (o outcome) accepted() bool { return o.err == nil && o.retry == never && o.ends == nil }

type retry int

const (
	never     retry = iota
	object          // this object's writes wait
	wholeNode       // the node's writes wait: kube-apiserver is away or has too much to do
	unsure          // refused, but perhaps only because an authorizer lags behind; believed after a time
)

func accepted(version string) outcome { return outcome{version: version} }
func refused(err error) outcome       { return outcome{err: err} }

// judge maps an answer to a write's outcome, unless the write itself has a better one.
func judge(resp *kube.Response, err error) outcome {
	if err != nil {
		if errors.Is(err, kube.ErrTooLarge) { // it was made: only the answer was too long
			return accepted("")
		}
		return outcome{retry: wholeNode, why: err}
	}
	failure := resp.Err()
	if failure == nil {
		return accepted(versionOf(resp.Body))
	}
	after := retryAfter(resp.Header)
	switch resp.Code {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return outcome{retry: wholeNode, after: after, why: failure}
	case http.StatusUnauthorized: // cloudcore's own credentials: no fault of the edge
		return outcome{retry: wholeNode, after: after, why: failure}
	case http.StatusConflict, http.StatusRequestTimeout:
		return outcome{retry: object, after: after, why: failure}
	case http.StatusForbidden:
		if ours(failure) {
			return outcome{retry: object, after: 5 * time.Second, why: failure}
		}
		return outcome{retry: unsure, why: failure, err: failure}
	}
	if resp.Code >= 500 || resp.Code < 400 {
		return outcome{retry: object, after: after, why: failure}
	}
	return refused(failure)
}

// ours reports whether a refusal means that cloudcore may not act as nodes: a mistake in its roles,
// which must not lose a node's write.
func ours(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	return ok && strings.Contains(status.ErrStatus.Message, "impersonate")
}

func retryAfter(h http.Header) time.Duration {
	seconds, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return min(time.Duration(seconds)*time.Second, 5*time.Minute)
}

// versionOf reads the resource version of the object that kube-apiserver answered with.
func versionOf(body []byte) string {
	o, ok := metadataIn(body)
	if !ok || o.Kind == "Status" {
		return ""
	}
	return o.ResourceVersion
}

// metadataIn reads the answer to a request of metadataOnly.
func metadataIn(body []byte) (o metav1.PartialObjectMetadata, ok bool) {
	if kube.IsProtobuf(body) {
		return o, kube.FromProtobuf(body, metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata"), &o) == nil
	}
	return o, json.Unmarshal(body, &o) == nil
}
