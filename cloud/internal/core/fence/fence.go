// Package fence decides whether a session may still write for its node.
//
// It owns the epoch in a node's Lease: each session of a node has a higher one than all before it,
// writes it there before any other write, and finds by it that a newer session, on whichever
// replica, has taken over. It refuses to guess: without kube-apiserver's answer it returns an
// error.
//
// How a write is fenced: read the object, then Check, then write with the resourceVersion that was
// read. A newer session either wrote before the read, and Check finds its epoch, or it writes after
// it, and kube-apiserver refuses the older session's write for its resourceVersion. No clock is in
// it, so it holds for a process that was stopped for an hour at any point. A resourceVersion that
// this session has written itself, or that the edge held when it sent the write over this session,
// needs no Check: no newer session had begun when that was made.
//
// Its functions may be called by many goroutines at once.
package fence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
)

// Annotations of a node's Lease, by the replica of cloudcore that has the node's link.
const (
	// EpochAnnotation is the epoch of the session that writes for the node.
	EpochAnnotation = "skerry.io/epoch"
	// InstanceAnnotation is the replica's name, and TunnelAnnotation where it is asked for streams
	// to the node's kubelet.
	InstanceAnnotation = "skerry.io/cloudcore"
	TunnelAnnotation   = "skerry.io/tunnel"
)

// metadataOnly is all that Check needs of a Lease.
const metadataOnly = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

// ErrNotHeld is returned where the Lease is not there or has an older epoch: the session must
// acquire it before it writes.
var ErrNotHeld = errors.New("the node's Lease does not bear this session's epoch")

// Superseded is returned where a newer session of the node has the Lease. The older session ends.
type Superseded struct{ Epoch, Ours uint64 }

// Error contains "epoch=": an edge that has lost its count, with its store, learns from it the
// epoch to continue from.
func (e *Superseded) Error() string {
	return fmt.Sprintf("a session of this node has had epoch=%d, this one has %d", e.Epoch, e.Ours)
}

// mostAhead is how far an epoch may be above the cloud's time, in milliseconds, or above the last
// epoch, whichever is higher: 139 years. Epochs are usually times, of clocks that may be wrong; but
// an epoch of 2^64-1 would lock the device out, since no later session could exceed it.
const mostAhead = 1 << 42

// mostEpoch is the highest epoch that sessions reach, by two million jumps of mostAhead. The device
// itself may write a higher one into its Lease, at kube-apiserver: that is no session's.
const mostEpoch = 1 << 63

// TooFar is the error for an epoch that is too high for later sessions to exceed.
type TooFar struct{ Epoch, Most uint64 }

func (e *TooFar) Error() string {
	return fmt.Sprintf("the session's epoch is %d, and may be %d at most", e.Epoch, e.Most)
}

// Plausible returns a TooFar if the epoch of a session is too high to acquire the Lease with these
// annotations; nil annotations if there is no Lease.
func Plausible(annotations map[string]string, ours uint64, now time.Time) error {
	last, err := strconv.ParseUint(annotations[EpochAnnotation], 10, 64)
	if err != nil || last > mostEpoch && ours <= mostEpoch {
		last = 0
	}
	most := max(last, uint64(max(now.UnixMilli(), 0)))
	if most += mostAhead; most < mostAhead || ours <= most { // the first: a Lease of before this rule
		return nil
	}
	return &TooFar{Epoch: ours, Most: most}
}

// Client makes requests at kube-apiserver.
type Client interface {
	Do(ctx context.Context, as kube.Identity, r kube.Request) (*kube.Response, error)
}

// Session has the epoch of a node's connection.
type Session interface {
	Node() types.NodeName
	Epoch() uint64
}

// Compare judges the annotations of a node's Lease: nil, ErrNotHeld or a *Superseded. The age of
// the Lease makes no difference: a node whose kubelet is dead doesn't renew it, and clocks differ.
func Compare(annotations map[string]string, ours uint64) error {
	epoch, err := strconv.ParseUint(annotations[EpochAnnotation], 10, 64)
	switch {
	case epoch > mostEpoch && ours <= mostEpoch:
		return ErrNotHeld
	case err != nil || epoch < ours:
		return ErrNotHeld
	case epoch > ours:
		return &Superseded{Epoch: epoch, Ours: ours}
	}
	return nil
}

// Check reads the Lease as the node, at kube-apiserver and from no cache. nil: when it was read,
// the session was the newest that may write.
func Check(ctx context.Context, client Client, s Session) error {
	resp, err := client.Do(ctx, kube.Identity{Node: s.Node()}, kube.Request{
		Method: http.MethodGet, Path: "/apis/coordination.k8s.io/v1/namespaces/" + corev1.NamespaceNodeLease + "/leases/" + url.PathEscape(string(s.Node())), Accept: metadataOnly,
	})
	if err != nil {
		return fmt.Errorf("reading the node's Lease: %w", err)
	}
	if resp.Code == http.StatusNotFound {
		return ErrNotHeld
	}
	if err := resp.Err(); err != nil {
		return fmt.Errorf("reading the node's Lease: %w", err)
	}
	var lease metav1.PartialObjectMetadata
	if err := json.Unmarshal(resp.Body, &lease); err != nil {
		return fmt.Errorf("reading the node's Lease: %w", err)
	}
	return Compare(lease.Annotations, s.Epoch())
}
