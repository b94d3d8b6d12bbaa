package meta

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/object"
	"github.com/skerry-io/skerry/edge/internal/store"
	"github.com/skerry-io/skerry/edge/internal/store/storepb"
)

// writeToken asks for a token of a ServiceAccount. The last answer to each request is kept, sealed, and served while the cloud can't be asked, past
// its expiry if need be: a pod that starts on an island needs the file, and what runs without the cloud can't be refused by it.
func (m *Manager) writeToken(ctx context.Context, w Write) (Result, error) {
	k, bound, err := tokenKey(w)
	if err != nil {
		return Result{}, apierrors.NewBadRequest(err.Error())
	}
	w.Accept = runtime.ContentTypeJSON // one answer for every client: a protobuf client reads JSON too
	if w.Caller.BearerToken == "" {
		if result, ok := m.freshAnswer(k); ok {
			return result, nil
		}
	}
	result, err := m.passThrough(ctx, w)
	if w.Caller.BearerToken != "" {
		return result, err // what an account may ask for is for the cloud to say, each time
	}
	switch {
	case err == nil && result.Response.Code/100 == 2:
		if keepErr := m.keepAnswer(ctx, k, bound, w, result.Response, false); keepErr != nil {
			klog.FromContext(ctx).Error(keepErr, "A token could not be kept for times without a link",
				"serviceAccount", klog.KRef(w.Ref.Namespace, w.Ref.Name))
		}
		return result, nil
	case err == nil && !passing(int(result.Response.Code)):
		return result, nil
	}
	if ctx.Err() != nil {
		return result, err
	}
	kept, readErr := m.keptAnswer(k)
	if readErr != nil || kept == nil {
		return result, err
	}
	klog.FromContext(ctx).V(2).Info("Served a kept token", "serviceAccount", klog.KRef(w.Ref.Namespace, w.Ref.Name))
	return resultOf(kept), nil
}

func resultOf(kept *storepb.Answer) Result {
	return Result{Code: int(kept.Code), Response: &topicpb.APIResponse{Code: kept.Code, ContentType: kept.ContentType, Body: kept.Body}}
}

// passing: failures that say nothing about the request itself.
func passing(code int) bool { return code == http.StatusTooManyRequests || code >= 500 }

// tokenKey names a request for a token by all that shapes its answer.
func tokenKey(w Write) (k []byte, bound types.UID, err error) {
	obj, err := object.DecodeRaw(w.Body)
	if err != nil {
		return nil, "", err
	}
	r, ok := obj.(*authenticationv1.TokenRequest)
	if !ok {
		return nil, "", errors.New("the object is no TokenRequest")
	}
	text, err := json.Marshal([]any{w.Ref.Namespace, w.Ref.Name, r.Spec})
	if err != nil {
		return nil, "", err
	}
	sum := sha256.Sum256(text)
	if r.Spec.BoundObjectRef != nil {
		bound = r.Spec.BoundObjectRef.UID
	}
	return sum[:], bound, nil
}

// keepAnswer keeps the answer to a request with the request itself. fresh: nobody has asked for it.
func (m *Manager) keepAnswer(ctx context.Context, k []byte, bound types.UID, w Write, r *topicpb.APIResponse, fresh bool) error {
	record := &storepb.Answer{
		Code: r.Code, ContentType: r.ContentType, Body: r.Body, UnixMillis: time.Now().UnixMilli(), BoundUid: string(bound),
		Request: w.Body, RequestType: w.ContentType, Path: w.Path,
	}
	return m.do(ctx, func(b *batch) error {
		if _, replaces := m.answers[string(k)]; !replaces && len(m.answers) >= m.config.Limits.Answers {
			oldest := slices.MinFunc(slices.Collect(maps.Keys(m.answers)), func(x, y string) int {
				return cmp.Compare(m.answers[x].at, m.answers[y].at)
			})
			b.save(func(tx *store.Tx) error { return tx.DeleteAnswer([]byte(oldest)) })
			b.after(func() { delete(m.answers, oldest) })
		}
		b.save(func(tx *store.Tx) error { return tx.PutAnswer(k, record) })
		b.after(func() { m.answers[string(k)] = answerInfo{at: record.UnixMillis, bound: bound, fresh: fresh} })
		return nil
	})
}

func (m *Manager) keptAnswer(k []byte) (*storepb.Answer, error) {
	var kept *storepb.Answer
	err := m.config.Store.View(func(tx *store.Tx) error {
		var err error
		kept, err = tx.Answer(k)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading a kept token: %w", err)
	}
	return kept, nil
}

// old reports whether a kubelet would ask again: when less than a fifth of the token's life is left.
func old(a *storepb.Answer, now time.Time) bool {
	var r authenticationv1.TokenRequest
	if err := json.Unmarshal(a.Body, &r); err != nil || r.Status.ExpirationTimestamp.IsZero() {
		return false
	}
	life := time.Hour
	if r.Spec.ExpirationSeconds != nil {
		life = time.Duration(*r.Spec.ExpirationSeconds) * time.Second
	}
	return now.After(r.Status.ExpirationTimestamp.Add(-life / 5))
}

// freshAnswer is an answer that was renewed and that no client has had yet. It is given out once.
func (m *Manager) freshAnswer(k []byte) (Result, bool) {
	m.mu.Lock()
	info, ok := m.answers[string(k)]
	ok = ok && info.fresh && m.linked
	if ok {
		info.fresh = false
		m.answers[string(k)] = info
	}
	m.mu.Unlock()
	if !ok {
		return Result{}, false
	}
	kept, err := m.keptAnswer(k)
	if err != nil || kept == nil || old(kept, time.Now()) {
		return Result{}, false
	}
	return resultOf(kept), true
}
