package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/protocol"
)

const (
	// rescueTimeout bounds a question in a rescue session, over a thin link.
	rescueTimeout = 30 * time.Second
	// maxRescue bounds an answer, in bytes.
	maxRescue = 1 << 20
)

// rescue is a client of a cloud that has no version of the link's protocol in common with this
// edgecore. Its requests are frozen, as in cloud/internal/access/rescue: the cloud may be years
// newer. It may be used by many goroutines at once.
type rescue struct {
	dial    func(ctx context.Context, target string) (net.Conn, error)
	open    atomic.Bool
	changed chan struct{}
}

func newRescue(dial func(ctx context.Context, target string) (net.Conn, error)) *rescue {
	return &rescue{dial: dial, changed: make(chan struct{}, 1)}
}

// opened notes that a rescue session has begun, or has ended.
func (r *rescue) opened(open bool) {
	r.open.Store(open)
	select {
	case r.changed <- struct{}{}:
	default: // the one that waits is for this change too
	}
}

// Open implements drain.Rescue.
func (r *rescue) Open() bool { return r.open.Load() }

// Changed implements drain.Rescue.
func (r *rescue) Changed() <-chan struct{} { return r.changed }

// Operations implements drain.Rescue.
func (r *rescue) Operations(ctx context.Context) ([]v1alpha1.NodeOperation, error) {
	var list v1alpha1.NodeOperationList
	err := r.ask(ctx, http.MethodGet, "/operations", nil, &list)
	return list.Items, err
}

// Report implements drain.Rescue.
func (r *rescue) Report(ctx context.Context, name string, uid types.UID, status []byte) error {
	return r.ask(ctx, http.MethodPut, "/operations/"+url.PathEscape(name)+"?uid="+url.QueryEscape(string(uid)), status, nil)
}

type rescueFacts struct {
	Kubernetes  string `json:"kubernetes"`
	Protocol    uint32 `json:"protocol"`
	ProtocolMin uint32 `json:"protocolMin"`
}

func (r *rescue) facts(ctx context.Context) (f rescueFacts, err error) {
	err = r.ask(ctx, http.MethodGet, "/facts", nil, &f)
	return f, err
}

// ask sends one request by a stream of its own.
func (r *rescue) ask(ctx context.Context, method, path string, body []byte, into any) error {
	ctx, cancel := context.WithTimeout(ctx, rescueTimeout)
	defer cancel()
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 16 << 10,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return r.dial(ctx, protocol.RescueTarget) },
	}}
	question, err := http.NewRequestWithContext(ctx, method, "http://cloudcore"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	answer, err := client.Do(question)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(answer.Body, maxRescue+1))
	switch {
	case err != nil:
		return fmt.Errorf("reading the cloud's answer: %w", err)
	case len(raw) > maxRescue:
		return fmt.Errorf("the cloud's answer has more than %d bytes", maxRescue)
	case answer.StatusCode != http.StatusOK:
		return fmt.Errorf("the cloud refuses: %s", strings.TrimSpace(string(raw[:min(len(raw), 512)])))
	case into == nil:
		return nil
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("reading the cloud's answer: %w", err)
	}
	return nil
}
