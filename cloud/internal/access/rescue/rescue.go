// Package rescue serves devices that have no version of the link's protocol in common with this
// cloudcore, so that they can be upgraded: their NodeOperations of type Upgrade, their reports of
// these, and artefacts. It annotates their Nodes, so that NodeOperationSets upgrade them.
//
// It owns the streams of rescue sessions, each with one question in HTTP/1.1. It refuses every
// other message, target and operation, and reports of a session that the node has replaced. Its
// answers are frozen: fields are added, never changed, since devices are years old. A Part may be
// used by many goroutines at once.
package rescue

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/cloud/internal/core/fence"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/protocol"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/common/tunnel"
)

const (
	// maxStreams bounds the open streams of a device: at the bound the next is refused.
	maxStreams = 4
	// maxQuestion bounds a question with its body, in bytes; a status is 12 KiB at most.
	maxQuestion = 32 << 10
	// maxOperations bounds the operations of an answer. Those that have not ended come first: the
	// device cancels an operation that the answer lacks.
	maxOperations = 64
	// cost is charged for a request: a device sends two or three in 15 s.
	cost = 200 * time.Millisecond
	// maxLogged bounds a path in the log, in characters.
	maxLogged = 100
	// timeout bounds a question and its answer.
	timeout = 30 * time.Second
)

// Client makes requests at kube-apiserver.
type Client interface {
	Do(ctx context.Context, as kube.Identity, r kube.Request) (*kube.Response, error)
}

// Config configures a Part.
type Config struct {
	Client Client
	// Protocols are the versions that this cloudcore supports.
	Protocols protocol.Window
	// Artefact connects a stream to an artefact; its targets begin with Prefix.
	Artefact func(ctx context.Context, node types.NodeName, target string) (net.Conn, error)
	Prefix   string
	// Merge replaces the status by a node's report.
	Merge func(o *v1alpha1.NodeOperation, node string, status []byte) error
}

// Facts is the answer to GET /facts: the facts by which a device judges a version.
type Facts struct {
	Kubernetes  string `json:"kubernetes"`
	Protocol    uint32 `json:"protocol"`
	ProtocolMin uint32 `json:"protocolMin"`
}

// Part is a cloudhub.Part of rescue sessions.
type Part struct{ config Config }

var _ cloudhub.Part = (*Part)(nil)

// New returns a Part.
func New(c Config) *Part { return &Part{c} }

// session is the streams of one device.
type session struct {
	cloudhub.Session
	part *Part
	mux  *tunnel.Mux

	mu    sync.Mutex
	noted time.Time // when the Node was last annotated
}

// Attach implements cloudhub.Part.
func (p *Part) Attach(s cloudhub.Session, mux *message.Mux) cloudhub.Service {
	own := &session{Session: s, part: p}
	own.mux = tunnel.New(s, tunnel.Config{Peer: string(s.Node()), MaxStreams: maxStreams, MaxAccepted: maxStreams, Accept: own.accept})
	message.Handle(mux, topic.StreamOpen, handler[*topicpb.StreamOpen](own.mux))
	message.Handle(mux, topic.StreamWindow, handler[*topicpb.StreamWindow](own.mux))
	message.Handle(mux, topic.StreamData, handler[*topicpb.StreamData](own.mux))
	message.Handle(mux, topic.StreamClose, handler[*topicpb.StreamClose](own.mux))
	return own
}

func handler[T any](mux *tunnel.Mux) func(context.Context, message.Message, T) error {
	return func(ctx context.Context, m message.Message, _ T) error { return mux.Handle(ctx, m) }
}

// Start implements cloudhub.Service.
func (s *session) Start(context.Context, func(error)) { s.mux.Start() }

// Stop implements cloudhub.Service.
func (s *session) Stop() { s.mux.Stop() }

func (s *session) accept(ctx context.Context, target string) (net.Conn, error) {
	switch {
	case strings.HasPrefix(target, s.part.config.Prefix):
		return s.part.config.Artefact(ctx, s.Node(), target)
	case target == protocol.RescueTarget:
		s.Charge(cost)
		near, far := net.Pipe()
		go s.answer(klog.FromContext(ctx), far) // ends with the session, or after timeout
		return near, nil
	}
	return nil, fmt.Errorf("a rescue session leads to operations and artefacts, not to %.64q", target)
}

// answer serves one question. It ends with the session, after which no report is written, and at
// the latest after timeout.
func (s *session) answer(logger klog.Logger, conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(timeout))
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	go func() { // Done is closed before a newer session begins
		select {
		case <-s.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	question, err := http.ReadRequest(bufio.NewReader(io.LimitReader(conn, maxQuestion)))
	if err != nil {
		return
	}
	value, err := s.handle(ctx, question)
	answer := http.Response{StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{"Content-Type": {"application/json"}}, Close: true}
	var body []byte
	if err == nil {
		body, err = json.Marshal(value)
	}
	if err != nil {
		logger.V(2).Info("Refused a question of a device that is rescued", "node", s.Node(), "path", fmt.Sprintf("%.*s", maxLogged, question.URL.Path), "reason", err.Error())
		answer.StatusCode, body = codeOf(err), []byte(err.Error())
		answer.Header.Set("Content-Type", "text/plain")
	}
	answer.ContentLength, answer.Body = int64(len(body)), io.NopCloser(bytes.NewReader(body))
	_ = answer.Write(conn) // the device may be gone
}

// refusal is an error with the code of its answer.
type refusal struct {
	error
	code int
}

func codeOf(err error) int {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r.code
	}
	return http.StatusServiceUnavailable
}

func refuse(code int, format string, args ...any) error {
	return &refusal{fmt.Errorf(format, args...), code}
}

func (s *session) handle(ctx context.Context, r *http.Request) (any, error) {
	name, status := strings.CutPrefix(r.URL.Path, "/operations/")
	switch {
	case r.Method == http.MethodGet && r.URL.Path == "/facts":
		return s.facts(ctx)
	case r.Method == http.MethodGet && r.URL.Path == "/operations":
		if err := s.note(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to annotate the Node of a device that is rescued: NodeOperationSets leave it out", "node", s.Node())
		}
		return s.operations(ctx)
	case r.Method == http.MethodPut && status:
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, refuse(http.StatusBadRequest, "reading a report: %w", err)
		}
		return struct{}{}, s.report(ctx, name, types.UID(r.URL.Query().Get("uid")), body)
	}
	return nil, refuse(http.StatusNotFound, "%s %.64q: want GET /facts, GET /operations or PUT /operations/NAME", r.Method, r.URL.Path)
}

func (s *session) facts(ctx context.Context) (*Facts, error) {
	answer, err := s.part.config.Client.Do(ctx, kube.Identity{}, kube.Request{Method: http.MethodGet, Path: "/version"})
	if err == nil {
		err = answer.Err()
	}
	var v struct {
		GitVersion string `json:"gitVersion"`
	}
	if err == nil {
		err = json.Unmarshal(answer.Body, &v)
	}
	if err != nil {
		return nil, fmt.Errorf("asking for kube-apiserver's version: %w", err)
	}
	oldest, newest := s.part.config.Protocols.Bounds()
	return &Facts{Kubernetes: v.GitVersion, Protocol: newest, ProtocolMin: oldest}, nil
}

// note annotates the Node, as that node, each v1alpha1.RescuedInterval: the device asks more often.
func (s *session) note(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Before(s.noted.Add(v1alpha1.RescuedInterval)) {
		return nil
	}
	s.noted = now // also if it fails: as seldom
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{v1alpha1.RescuedAtAnnotation: now.UTC().Format(time.RFC3339)}}})
	if err != nil {
		return err
	}
	answer, err := s.part.config.Client.Do(ctx, kube.Identity{Node: s.Node()}, kube.Request{
		Method: http.MethodPatch, Path: "/api/v1/nodes/" + url.PathEscape(string(s.Node())), ContentType: string(types.MergePatchType), Body: body,
	})
	if err == nil {
		err = answer.Err()
	}
	return err
}

func operationsPath() string {
	return "/apis/" + v1alpha1.SchemeGroupVersion.String() + "/" + v1alpha1.NodeOperations
}

// operations returns those of type Upgrade, as the node reads them.
func (s *session) operations(ctx context.Context) (*v1alpha1.NodeOperationList, error) {
	query := url.Values{"fieldSelector": {"spec.nodeName=" + string(s.Node())}, "resourceVersion": {"0"}}
	answer, err := s.part.config.Client.Do(ctx, kube.Identity{Node: s.Node()}, kube.Request{Method: http.MethodGet, Path: operationsPath(), Query: query.Encode()})
	if err == nil {
		err = answer.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("listing NodeOperations: %w", err)
	}
	all := &v1alpha1.NodeOperationList{}
	if err := json.Unmarshal(answer.Body, all); err != nil {
		return nil, fmt.Errorf("listing NodeOperations: %w", err)
	}
	upgrades := &v1alpha1.NodeOperationList{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "NodeOperationList"}, Items: []v1alpha1.NodeOperation{}}
	for _, o := range all.Items {
		if o.Spec.NodeName == string(s.Node()) && o.Spec.Operation == v1alpha1.OperationUpgrade {
			o.ManagedFields = nil
			upgrades.Items = append(upgrades.Items, o)
		}
	}
	slices.SortStableFunc(upgrades.Items, func(a, b v1alpha1.NodeOperation) int {
		if x, y := ended(&a), ended(&b); x != y {
			return map[bool]int{false: -1, true: 1}[x]
		} else if x {
			return b.CreationTimestamp.Compare(a.CreationTimestamp.Time) // the newest first
		}
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	upgrades.Items = upgrades.Items[:min(len(upgrades.Items), maxOperations)]
	return upgrades, nil
}

// ended reports whether a device has no more to do for an operation.
func ended(o *v1alpha1.NodeOperation) bool {
	return o.Status.CompletedAt != nil && o.Spec.Retry <= o.Status.ObservedRetry
}

// report writes a status, on condition that the object is the version that was read and that the
// node has no newer session.
func (s *session) report(ctx context.Context, name string, uid types.UID, body []byte) error {
	path := operationsPath() + "/" + url.PathEscape(name)
	answer, err := s.part.config.Client.Do(ctx, kube.Identity{Node: s.Node()}, kube.Request{Method: http.MethodGet, Path: path})
	if err == nil {
		err = answer.Err()
	}
	if err != nil {
		return fmt.Errorf("reading NodeOperation %s: %w", name, err)
	}
	o := &v1alpha1.NodeOperation{}
	if err := json.Unmarshal(answer.Body, o); err != nil {
		return fmt.Errorf("reading NodeOperation %s: %w", name, err)
	}
	if o.UID != uid || o.Spec.NodeName != string(s.Node()) || o.Spec.Operation != v1alpha1.OperationUpgrade {
		return refuse(http.StatusConflict, "NodeOperation %s is no upgrade of this device by that uid", name)
	}
	if err := s.part.config.Merge(o, string(s.Node()), body); err != nil {
		return refuse(http.StatusBadRequest, "NodeOperation %s: %w", name, err)
	}
	// After the read: who took the node over since then has changed the object, or will.
	err = fence.Check(ctx, s.part.config.Client, s)
	if _, newer := errors.AsType[*fence.Superseded](err); newer {
		return refuse(http.StatusConflict, "a newer session of this node is open")
	}
	if err != nil && !errors.Is(err, fence.ErrNotHeld) { // rescue sessions take no Lease
		return err
	}
	raw, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("writing NodeOperation %s: %w", name, err)
	}
	answer, err = s.part.config.Client.Do(ctx, kube.Identity{}, kube.Request{Method: http.MethodPut, Path: path + "/status", ContentType: "application/json", Body: raw})
	if err == nil {
		err = answer.Err()
	}
	if err != nil {
		return fmt.Errorf("writing NodeOperation %s: %w", name, err)
	}
	return nil
}
