package relay

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

const (
	maxRequests    = 16      // of one node at once
	maxRequestBody = 3 << 20 // as kube-apiserver's own bound
	maxAnswerBody  = 6 << 20 // always fits into one message of the link
	defaultTimeout = 30 * time.Second
	longestTimeout = time.Minute
)

// onRequest passes a request on, in its own goroutine: the link must not wait for kube-apiserver.
// Beyond the bound the edge is asked to retry.
func (s *session) onRequest(ctx context.Context, m message.Message, q *topicpb.APIRequest) error {
	select {
	case s.requests <- struct{}{}:
	default:
		s.relay.metrics.overload.Add(1)
		s.link.Charge(perRefusal)
		err := apierrors.NewTooManyRequests(fmt.Sprintf("node %s has %d requests on the way already", s.node, maxRequests), 1)
		return s.link.Send(ctx, m.Answer(answerOf(err)))
	}
	if err := s.requestOverQuota(q); err != nil {
		<-s.requests
		return s.link.Send(ctx, m.Answer(answerOf(err)))
	}
	s.begin(func() {
		defer func() { <-s.requests }()
		room := &room{bytes: &s.held, reserve: reserved(q) - len(q.GetBody())}
		defer room.end() // when the answer is queued on the link, which has bounds of its own
		answer := s.pass(ctx, q, room)
		s.held.Give(len(q.GetBody()))
		s.link.Charge(time.Duration(len(answer.GetBody())) * perAnsweredByte)
		if err := s.link.Send(ctx, m.Answer(answer)); err != nil {
			klog.FromContext(ctx).V(3).Info("Dropped an answer: the link has ended", "node", s.node, "path", q.GetPath(), "err", err)
		}
	})
	return nil
}

// pass makes one request as the node, or with the pod's token in it. Kubernetes authorizes it.
func (s *session) pass(ctx context.Context, q *topicpb.APIRequest, room *room) *topicpb.APIResponse {
	if err := s.permit(q); err != nil {
		return answerOf(err)
	}
	timeout := time.Duration(q.GetTimeoutMillis()) * time.Millisecond
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, min(timeout, longestTimeout))
	defer cancel()
	if q.GetMethod() != http.MethodGet {
		select {
		case <-s.lease.acquired: // only the newest session of a node writes
		case <-ctx.Done():
			return answerOf(apierrors.NewServiceUnavailable("this session of the node may not write yet"))
		}
	}
	if s.relay.serve != nil {
		if answer, ok := s.relay.serve(ctx, s.node, q); ok {
			return answer
		}
	}
	as := s.as
	if token := q.GetBearerToken(); token != "" {
		as = kube.Identity{Token: token}
	}
	if q.GetMethod() != http.MethodGet && len(q.GetBody()) > largeBody {
		defer s.relay.large.wait(ctx, s.node)()
	}
	s.relay.metrics.requests.Add(1)
	resp, err := s.relay.client.Do(ctx, as, kube.Request{
		Method: q.GetMethod(), Path: q.GetPath(), Query: q.GetQuery(), ContentType: q.GetContentType(), Accept: q.GetAccept(), Body: q.GetBody(),
		Limit: maxAnswerBody, Memory: room,
	})
	switch {
	case errors.Is(err, kube.ErrTooLarge):
		return answerOf(tooLarge())
	case errors.Is(err, kube.ErrNoRoom) && q.GetMethod() == http.MethodGet:
		return answerOf(s.exceeded(bytesQuota, 1))
	case errors.Is(err, kube.ErrNoRoom):
		return answerOf(apierrors.NewTimeoutError("the request was made; its answer does not fit into "+bytesQuota, 1))
	case err != nil:
		klog.FromContext(ctx).V(2).Info("Failed to pass on a request", "node", s.node, "method", q.GetMethod(), "path", q.GetPath(), "err", err)
		if ctx.Err() != nil {
			return answerOf(apierrors.NewTimeoutError("kube-apiserver did not answer in time", 1))
		}
		return answerOf(apierrors.NewServiceUnavailable("kube-apiserver can't be reached from cloudcore"))
	}
	if s.relay.hide && q.GetMethod() == http.MethodPost && q.GetPath() == "/api/v1/nodes" && resp.Code == http.StatusCreated {
		s.hideNow(ctx)
	}
	return &topicpb.APIResponse{
		Code: int32(resp.Code), ContentType: resp.Header.Get("Content-Type"), RetryAfter: resp.Header.Get("Retry-After"),
		Warnings: resp.Header.Values("Warning"), Body: resp.Body,
	}
}

func tooLarge() error {
	text := fmt.Sprintf("the answer is longer than %d bytes, too long for the link: use limit and continue", maxAnswerBody)
	return apierrors.NewRequestEntityTooLargeError(text)
}

// answerOf is a refusal as an HTTP answer.
func answerOf(err error) *topicpb.APIResponse {
	body := kube.StatusOf(err)
	a := &topicpb.APIResponse{Code: http.StatusInternalServerError, ContentType: "application/json", Body: body}
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		a.Code = status.ErrStatus.Code
		if d := status.ErrStatus.Details; d != nil && d.RetryAfterSeconds > 0 {
			a.RetryAfter = strconv.Itoa(int(d.RetryAfterSeconds))
		}
	}
	if a.Code == http.StatusServiceUnavailable && a.RetryAfter == "" {
		a.RetryAfter = "1"
	}
	return a
}

// plain are the paths outside /api and /apis that may be asked for.
func plain(p string) bool {
	switch p {
	case "/version", "/api", "/apis", "/healthz", "/livez", "/readyz", "/openapi/v2", "/openapi/v3", "/openid/v1/jwks",
		"/.well-known/openid-configuration":
		return true
	}
	return strings.HasPrefix(p, "/openapi/v3/")
}

// unprintable reports whether r can't be in a path or a header: all but printable ASCII.
func unprintable(r rune) bool { return r < ' ' || r > '~' }

// permit refuses requests that can't be passed on. It does not decide on the node's rights.
func (s *session) permit(q *topicpb.APIRequest) error {
	switch q.GetMethod() {
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
	default:
		return apierrors.NewBadRequest(fmt.Sprintf("method %q is not passed on", q.GetMethod()))
	}
	if len(q.GetBody()) > maxRequestBody {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("at most %d bytes are passed on", maxRequestBody))
	}
	for _, header := range []string{q.GetAccept(), q.GetContentType()} {
		if strings.ContainsFunc(header, unprintable) {
			return apierrors.NewBadRequest("a header with characters that can't be in one")
		}
	}
	p, err := url.PathUnescape(q.GetPath())
	if err != nil || !strings.HasPrefix(p, "/") || p != path.Clean(p) || strings.ContainsAny(p, "?#\\") || strings.ContainsFunc(p, unprintable) {
		return apierrors.NewBadRequest(fmt.Sprintf("%q is no clean path", q.GetPath()))
	}
	query, err := url.ParseQuery(q.GetQuery())
	if err != nil {
		return apierrors.NewBadRequest("query: " + err.Error())
	}
	for _, name := range []string{"watch", "follow"} {
		if query.Has(name) && query.Get(name) != "false" && query.Get(name) != "0" {
			return apierrors.NewBadRequest("a watch does not pass through the link: the edge API serves it from the store")
		}
	}
	if err := s.bearer(q.GetBearerToken()); err != nil {
		return err
	}
	if plain(p) {
		if q.GetMethod() != http.MethodGet {
			return apierrors.NewMethodNotSupported(metav1.SchemeGroupVersion.WithResource("paths").GroupResource(), q.GetMethod())
		}
		return nil
	}
	if !strings.HasPrefix(p, "/api/") && !strings.HasPrefix(p, "/apis/") {
		return apierrors.NewBadRequest(fmt.Sprintf("path %s is not passed on", p))
	}
	return s.permitResource(q, p)
}

// permitResource checks the resource in the path, with the parser that kube-apiserver itself uses.
func (s *session) permitResource(q *topicpb.APIRequest, p string) error {
	factory := request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	info, err := factory.NewRequestInfo(&http.Request{Method: q.GetMethod(), URL: &url.URL{Path: p, RawQuery: q.GetQuery()}})
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if !info.IsResourceRequest {
		if q.GetMethod() != http.MethodGet {
			return apierrors.NewBadRequest(fmt.Sprintf("path %s names no resource", p))
		}
		return nil // discovery of a group or version
	}
	if info.Verb == "watch" || info.Verb == "proxy" {
		return apierrors.NewBadRequest("a " + info.Verb + " does not pass through the link")
	}
	switch info.Subresource {
	case "exec", "attach", "portforward", "proxy", "log":
		return apierrors.NewBadRequest("subresource " + info.Subresource + " does not pass through the link")
	}
	if info.Resource == "events" && q.GetBearerToken() == "" && q.GetMethod() != http.MethodGet {
		return apierrors.NewBadRequest("a node's events are reported through its outbox")
	}
	return nil
}

// bearer checks a token before it is passed on; kube-apiserver verifies the signature. It must be a
// service account's, and if it has a node claim, that must name this node: no node lends its link
// to the pods of another.
func (s *session) bearer(token string) error {
	if token == "" {
		return nil
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 || strings.ContainsFunc(token, unprintable) || strings.Contains(token, " ") {
		return apierrors.NewUnauthorized("the token is not a service account's")
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return apierrors.NewUnauthorized("the token is not a service account's")
	}
	var claims struct {
		Subject    string `json:"sub"`
		Kubernetes struct {
			Node struct {
				Name string `json:"name"`
			} `json:"node"`
		} `json:"kubernetes.io"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil || !strings.HasPrefix(claims.Subject, "system:serviceaccount:") {
		return apierrors.NewUnauthorized("the token is not a service account's")
	}
	if bound := claims.Kubernetes.Node.Name; bound != "" && bound != string(s.node) {
		return apierrors.NewUnauthorized("the token belongs to a pod of another node")
	}
	return nil
}
