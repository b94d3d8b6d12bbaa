package relay

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/cloud/internal/core/fence"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// fencedWrite is one write of one object.
type fencedWrite struct {
	key     string
	uid     string // of the object, where known
	version string // that the edge had when it sent the write, where known
	// read gets the object. An error that is a Status refuses the write.
	read func(ctx context.Context) (*kube.Response, error)
	// write is conditional on the version. An error that is a Status was found before
	// anything was sent.
	write func(ctx context.Context, version string) (*kube.Response, error)
	// done, where set, reports whether the object that was read already equals the write: an
	// earlier attempt whose answer was lost has succeeded.
	done func(read []byte) bool
	// obsolete, where set, reports whether the object that was read supersedes the write, though
	// another writer made it. It is the answer only while the session has the Lease.
	obsolete func(read []byte) bool
	// missing, where set, is done instead when the object is not there. The session has
	// the Lease then.
	missing func(ctx context.Context) (*kube.Response, error)
}

// fenced makes a write that can't overwrite one of a newer session of the node. Where no version of
// the object is known, or on a conflict, that costs two reads: of the object, then of the Lease.
// Each attempt's reads are kept for the next one.
func (s *session) fenced(ctx context.Context, w fencedWrite) (o outcome, resp *kube.Response) {
	version := s.versions.newest(w.key, w.version)
	progressed, conflict := false, false
	// One that meets another writer again and again must back off, however much it learns
	// each time.
	defer func() { o.progressed = progressed && !conflict }()
	for range 2 {
		missing := false
		if version == "" {
			fresh := s.versions.awaiting(w.key) == nil
			version, missing, o, resp = s.confirm(ctx, w)
			// That an object is missing is read again by the next attempt.
			progressed = progressed || fresh && s.versions.awaiting(w.key) != nil || o.accepted() && !missing
			if !o.accepted() || o.done {
				return o, resp
			}
		}
		var err error
		if missing {
			resp, err = w.missing(ctx)
		} else {
			resp, err = w.write(ctx, version)
		}
		if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
			return refused(status), nil
		}
		if err == nil && resp.Code == http.StatusConflict {
			if otherUID(resp.Err()) {
				return refused(resp.Err()), resp
			}
			s.versions.forget(w.key)
			s.relay.metrics.conflicts.Add(1)
			version, conflict = "", true
			o = judge(resp, err)
			continue
		}
		if o = judge(resp, err); o.accepted() {
			s.versions.put(w.key, o.version)
		}
		return o, resp
	}
	return o, resp
}

// confirm reads an object, unless an interrupted attempt already has, and then checks that this
// session is still the newest one. o is accepted, done, or the error. A confirmed version is
// remembered: a write based on it is conditional on it, however much later it is made.
func (s *session) confirm(ctx context.Context, w fencedWrite) (version string, missing bool, o outcome, resp *kube.Response) {
	read := s.versions.awaiting(w.key)
	if read == nil {
		if read, o, resp = s.read(ctx, w); read == nil {
			return "", false, o, resp
		}
		if w.done != nil && !read.missing && w.done(resp.Body) {
			return read.version, false, outcome{version: read.version, done: true}, resp
		}
		read.obsolete = w.obsolete != nil && !read.missing && w.obsolete(resp.Body)
		s.versions.await(w.key, *read)
	}
	err := fence.Check(ctx, s.relay.client, s.link)
	switch end := final(err); {
	case err == nil:
		switch {
		case read.missing:
			s.versions.forget(w.key) // it may be there when the next attempt is made
		case read.obsolete:
			s.versions.forget(w.key) // the next write may be older than this one too
		default:
			s.versions.put(w.key, read.version)
		}
		if read.obsolete {
			return read.version, false, outcome{version: read.version, done: true}, resp
		}
		return read.version, read.missing, accepted(read.version), resp
	case end != nil:
		return "", false, outcome{ends: end, why: err}, nil
	case errors.Is(err, fence.ErrNotHeld):
		s.lease.lose()
		return "", false, outcome{retry: object, after: time.Second, why: err}, nil
	}
	return "", false, outcome{retry: wholeNode, why: err}, nil
}

// read gets the object of a write. Where r is nil, o gives the reason.
func (s *session) read(ctx context.Context, w fencedWrite) (r *reading, o outcome, resp *kube.Response) {
	s.relay.metrics.fenceReads.Add(1)
	resp, err := w.read(ctx)
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		return nil, refused(status), nil
	}
	gone := err == nil && resp.Code == http.StatusNotFound
	if gone && w.missing == nil || err != nil || !gone && resp.Err() != nil {
		return nil, judge(resp, err), resp
	}
	if gone {
		return &reading{missing: true}, outcome{}, resp
	}
	have, ok := metadataIn(resp.Body)
	if !ok || have.ResourceVersion == "" {
		return nil, outcome{retry: object, why: errors.New("kube-apiserver answered with an object without a version")}, nil
	}
	if w.uid != "" && w.uid != string(have.UID) {
		err := apierrors.NewConflict(schema.GroupResource{}, w.key, fmt.Errorf("UID in precondition: %s, UID in object meta: %s", w.uid, have.UID))
		return nil, refused(err), resp
	}
	return &reading{version: have.ResourceVersion}, outcome{}, resp
}

// patch makes a patch of one object, bound to that object by its uid, which the fence keeps from
// overwriting a newer session's writes. resp is nil without an answer.
func (s *session) patch(ctx context.Context, w *topicpb.Write) (o outcome, resp *kube.Response) {
	whole, err := pathTo(resourceOf(w), w.GetNamespace(), w.GetName(), "")
	if err != nil {
		return refused(err), nil
	}
	part, err := pathTo(resourceOf(w), w.GetNamespace(), w.GetName(), w.GetSubresource())
	if err != nil {
		return refused(err), nil
	}
	return s.fenced(ctx, fencedWrite{
		key: key(w), uid: w.GetUid(), version: w.GetResourceVersion(),
		read: func(ctx context.Context) (*kube.Response, error) { return s.do(ctx, http.MethodGet, whole, "", nil) },
		write: func(ctx context.Context, version string) (*kube.Response, error) {
			body, err := withPreconditions(w.GetBody(), w.GetUid(), version)
			if err != nil {
				return nil, err
			}
			return s.do(ctx, http.MethodPatch, part, w.GetPatchType(), body)
		},
	})
}
