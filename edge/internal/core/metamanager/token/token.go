// Package token keeps tokens of ServiceAccounts on the device: the last answer to each request,
// sealed, and served while the cloud can't be asked, past its expiry if need be. A pod that starts
// without a link needs the file, and clients that run without the cloud can't be refused by it.
//
// A cluster may replace the key that signs its tokens. Kept tokens of an earlier key are renewed as
// soon as the cloud has signed one with another, or refused a kept one. The kubelet would keep a
// token for most of an hour; so it is given tokens that seem to expire sooner, and asks each minute
// for the kept one.
//
// It owns which answers are kept; the store has them. It does not refuse requests: those with a
// ServiceAccount's own token are authorized by the cloud, each time. All methods may be called by
// many goroutines at once; its state changes with a Batch of its user.
package token

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
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/request"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/edge/internal/core/store/storepb"
)

// Batch is a set of changes that reaches the disk as a whole, or not at all.
type Batch interface {
	// Save adds a write to the store.
	Save(func(*store.Tx) error)
	// After adds a function to run once the batch is on disk.
	After(func())
}

// Config configures a Keeper.
type Config struct {
	Store *store.Store
	Limit int // answers that are kept; the oldest go first
	// Commit works out a Batch, and returns when it is on the disk.
	Commit func(context.Context, func(Batch) error) error
	// Ask sends a request to the cloud.
	Ask    func(context.Context, request.Write) (request.Result, error)
	Linked func() bool
}

// Keeper is the kept answers.
type Keeper struct {
	config Config // set by New, never changed

	due chan struct{} // one slot: some answers have to be renewed

	mu      sync.Mutex // guards the fields below
	answers Stored
	keyID   string // of the key that signed the newest token
}

// Stored has the stored answers, by the key of their request.
type Stored map[string]info

// info is the unsealed part of a kept answer.
type info struct {
	at      int64 // unix milliseconds
	bound   types.UID
	current bool   // requested by this process: a kubelet that asks again gets it again
	keyID   string // of the key that signed the token; "" where it can't be read
	sum     [sha256.Size]byte
	stale   bool      // the cloud has refused it
	refused time.Time // when that was last taken for a reason to renew it
}

// New returns an empty Keeper.
func New(config Config) *Keeper {
	return &Keeper{config: config, due: make(chan struct{}, 1), answers: Stored{}}
}

// Read reads which answers are kept.
func Read(tx *store.Tx) (Stored, error) {
	s := Stored{}
	return s, tx.Answers(func(k []byte, a *storepb.Answer) error {
		i := info{at: a.UnixMillis, bound: types.UID(a.BoundUid)}
		i.keyID, i.sum = signed(a.Body)
		s[string(k)] = i
		return nil
	})
}

// Restore replaces the answers by the stored ones.
func (t *Keeper) Restore(s Stored) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answers, t.keyID = s, ""
	newest := int64(0)
	for _, a := range s {
		if a.at > newest && a.keyID != "" {
			newest, t.keyID = a.at, a.keyID
		}
	}
}

// Len counts the answers.
func (t *Keeper) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.answers)
}

// Forget has the batch end the answers that were bound to an object.
func (t *Keeper) Forget(b Batch, bound types.UID) {
	if bound == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, a := range t.answers {
		if a.bound == bound {
			t.delete(b, k)
		}
	}
}

func (t *Keeper) delete(b Batch, k string) {
	b.Save(func(tx *store.Tx) error { return tx.DeleteAnswer([]byte(k)) })
	b.After(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.answers, k)
	})
}

// Write answers a request for a token.
func (t *Keeper) Write(ctx context.Context, w request.Write) (request.Result, error) {
	k, bound, err := keyOf(w)
	if err != nil {
		return request.Result{}, apierrors.NewBadRequest(err.Error())
	}
	w.Accept = runtime.ContentTypeJSON // one answer for every client: a protobuf client reads JSON too
	if w.Caller.Kubelet {
		if result, ok := t.current(k); ok {
			return forKubelet(result), nil
		}
	}
	result, err := t.config.Ask(ctx, w)
	if w.Caller.BearerToken != "" {
		return result, err // the cloud decides each time which tokens an account may request
	}
	switch {
	case err == nil && result.Response.Code/100 == 2:
		if keepErr := t.keep(ctx, k, bound, w, result.Response); keepErr != nil {
			klog.FromContext(ctx).Error(keepErr, "Failed to store a token for use without a link: after a reboot its pod waits for a link",
				"serviceAccount", klog.KRef(w.Ref.Namespace, w.Ref.Name))
		}
		if w.Caller.Kubelet {
			result = forKubelet(result)
		}
		return result, nil
	case err == nil && !passing(int(result.Response.Code)):
		return result, nil
	}
	if ctx.Err() != nil {
		return result, err
	}
	kept, readErr := t.kept(k)
	if readErr != nil || kept == nil {
		return result, err
	}
	klog.FromContext(ctx).V(2).Info("Served a kept token", "serviceAccount", klog.KRef(w.Ref.Namespace, w.Ref.Name))
	if w.Caller.Kubelet {
		return forKubelet(resultOf(kept)), nil
	}
	return resultOf(kept), nil
}

func resultOf(kept *storepb.Answer) request.Result {
	return request.Result{Code: int(kept.Code), Response: &topicpb.APIResponse{Code: kept.Code, ContentType: kept.ContentType, Body: kept.Body}}
}

// passing reports a failure that is not caused by the request.
func passing(code int) bool { return code == http.StatusTooManyRequests || code >= 500 }

// keyOf returns the key of a token request: all fields that determine its answer.
func keyOf(w request.Write) (k []byte, bound types.UID, err error) {
	obj, err := object.DecodeRaw(w.Body)
	if err != nil {
		return nil, "", err
	}
	r, ok := obj.(*authenticationv1.TokenRequest)
	if !ok {
		return nil, "", errors.New("the object is no TokenRequest")
	}
	if k, err = hash(w.Ref.Namespace, w.Ref.Name, r.Spec); err != nil {
		return nil, "", err
	}
	if r.Spec.BoundObjectRef != nil {
		bound = r.Spec.BoundObjectRef.UID
	}
	return k, bound, nil
}

func hash(namespace, name string, spec authenticationv1.TokenRequestSpec) ([]byte, error) {
	text, err := json.Marshal([]any{namespace, name, spec})
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	return sum[:], nil
}

// Holds reports whether the answer to a request is kept.
func (t *Keeper) Holds(namespace, serviceAccount string, spec authenticationv1.TokenRequestSpec) bool {
	k, err := hash(namespace, serviceAccount, spec)
	if err != nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	_, held := t.answers[string(k)]
	return held
}

// keep keeps the answer to a request with the request itself.
func (t *Keeper) keep(ctx context.Context, k []byte, bound types.UID, w request.Write, r *topicpb.APIResponse) error {
	record := &storepb.Answer{
		Code: r.Code, ContentType: r.ContentType, Body: r.Body, UnixMillis: time.Now().UnixMilli(), BoundUid: string(bound),
		Request: w.Body, RequestType: w.ContentType, Path: w.Path,
	}
	keyID, sum := signed(r.Body)
	return t.config.Commit(ctx, func(b Batch) error {
		t.mu.Lock()
		defer t.mu.Unlock()
		if _, replaces := t.answers[string(k)]; !replaces && len(t.answers) >= t.config.Limit {
			t.delete(b, slices.MinFunc(slices.Collect(maps.Keys(t.answers)), func(x, y string) int {
				return cmp.Compare(t.answers[x].at, t.answers[y].at)
			}))
		}
		b.Save(func(tx *store.Tx) error { return tx.PutAnswer(k, record) })
		b.After(func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.answers[string(k)] = info{
				at: record.UnixMillis, bound: bound, current: ends(r.Body), keyID: keyID, sum: sum, refused: t.answers[string(k)].refused,
			}
			if keyID != "" && keyID != t.keyID {
				t.keyID = keyID
				t.renew()
			}
		})
		return nil
	})
}

func (t *Keeper) kept(k []byte) (*storepb.Answer, error) {
	var kept *storepb.Answer
	err := t.config.Store.View(func(tx *store.Tx) error {
		var err error
		kept, err = tx.Answer(k)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading a kept token: %w", err)
	}
	return kept, nil
}

// old reports whether a kubelet would ask again: when less than a fifth of the token's
// life is left.
func old(a *storepb.Answer, now time.Time) bool {
	var r authenticationv1.TokenRequest
	if err := json.Unmarshal(a.Body, &r); err != nil || r.Status.ExpirationTimestamp.IsZero() {
		return false
	}
	return now.After(r.Status.ExpirationTimestamp.Add(-life(&r) / 5))
}

// refusedAgain is how long a kept token that the cloud refuses is not renewed again for that: the
// cause may be another than its key.
const refusedAgain = 10 * time.Minute

// current returns a kept answer that this process has requested: a repeated request need not ask
// the cloud. It returns no answer if the token is near its expiry or of a replaced key.
func (t *Keeper) current(k []byte) (request.Result, bool) {
	t.mu.Lock()
	a, ok := t.answers[string(k)]
	ok = ok && a.current && a.keyID == t.keyID && !a.stale
	t.mu.Unlock()
	if !ok || !t.config.Linked() {
		return request.Result{}, false
	}
	kept, err := t.kept(k)
	if err != nil || kept == nil || old(kept, time.Now()) {
		return request.Result{}, false
	}
	return resultOf(kept), true
}

// Judged records kube-apiserver's answer to a token, "" for no token. A refused kept token is
// renewed, and if the new one has another key, all others are.
func (t *Keeper) Judged(bearer string, code int32) {
	if bearer == "" || code != http.StatusUnauthorized {
		return
	}
	sum := sha256.Sum256([]byte(bearer))
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, a := range t.answers {
		if a.sum == sum && time.Since(a.refused) >= refusedAgain {
			a.stale, a.refused = true, time.Now()
			t.answers[k] = a
			t.renew()
		}
	}
}

// renew wakes Refresh.
func (t *Keeper) renew() {
	select {
	case t.due <- struct{}{}:
	default:
	}
}

// replaced reports whether an answer has to be renewed although its token is recent.
func (t *Keeper) replaced(k []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	a, ok := t.answers[string(k)]
	return ok && (a.stale || a.keyID != "" && t.keyID != "" && a.keyID != t.keyID)
}
