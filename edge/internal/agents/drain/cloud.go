package drain

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// Requester asks kube-apiserver through the link, as the node; a *metamanager.Manager. It doesn't
// queue: without a link its answer is a 503.
type Requester interface {
	Request(ctx context.Context, r *topicpb.APIRequest) (*topicpb.APIResponse, error)
}

// maxBody bounds a request's body, in bytes: cordons and evictions are small.
const maxBody = 1 << 20

// Through returns a client configuration for kube-apiserver itself, not for the device's cache: the
// device can't decide whether a pod is gone.
func Through(r Requester) *rest.Config {
	return &rest.Config{
		Host: "http://kube-apiserver.invalid", Transport: &through{r}, // the name is never resolved
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf, AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON},
	}
}

type through struct{ requester Requester }

// RoundTrip implements http.RoundTripper.
func (t *through) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		defer r.Body.Close()
		var err error
		if body, err = io.ReadAll(io.LimitReader(r.Body, maxBody+1)); err != nil {
			return nil, fmt.Errorf("reading a request: %w", err)
		}
		if len(body) > maxBody {
			return nil, fmt.Errorf("a request of more than %d bytes", maxBody)
		}
	}
	answer, err := t.requester.Request(r.Context(), &topicpb.APIRequest{
		Method: r.Method, Path: r.URL.EscapedPath(), Query: r.URL.RawQuery, Accept: r.Header.Get("Accept"), ContentType: r.Header.Get("Content-Type"), Body: body,
	})
	if err != nil {
		if r.Context().Err() != nil {
			return nil, context.Cause(r.Context())
		}
		var status apierrors.APIStatus
		if !errors.As(err, &status) {
			return nil, err
		}
		s := status.Status()
		raw, err := json.Marshal(&s)
		if err != nil {
			return nil, fmt.Errorf("writing an answer: %w", err)
		}
		answer = &topicpb.APIResponse{Code: s.Code, ContentType: runtime.ContentTypeJSON, Body: raw}
	}
	header := http.Header{}
	header.Set("Content-Type", answer.GetContentType())
	// A client retries by itself after Retry-After. The agent does so too, and reports the reason
	// of the delay.
	if after := answer.GetRetryAfter(); after != "" && answer.GetCode() == http.StatusTooManyRequests {
		header.Set("Retry-After", after)
	}
	for _, w := range answer.GetWarnings() {
		header.Add("Warning", w)
	}
	code := int(answer.GetCode())
	return &http.Response{
		Status: strconv.Itoa(code) + " " + http.StatusText(code), StatusCode: code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, Body: io.NopCloser(bytes.NewReader(answer.GetBody())), ContentLength: int64(len(answer.GetBody())), Request: r,
	}, nil
}
