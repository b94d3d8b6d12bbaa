package edgeapi

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

const (
	// maxGrants and maxTokens bound the cached answers; at the bound the cache is cleared and
	// filled again as needed, which is rare and simple.
	maxGrants = 4096
	maxTokens = 1024
	// maxAudiences bounds the known audiences of the cluster; kube-apiserver has one, or a few. At
	// the bound no more are learnt.
	maxAudiences = 16
	// keysInterval is how often the cluster's keys are asked for at most.
	keysInterval = time.Minute
)

// grants caches kube-apiserver's answers on service accounts. With a link it is asked each time a
// read of cached objects begins, with the account's own token, so the token is checked with it.
// Without one the token must have been accepted before, or be signed by a key of the cluster and be
// for the API; and it must not have ended (alive). Then the last answer for the account counts,
// until it is contradicted. An action without an answer is refused with a 503: it may be allowed
// once there is a link.
type grants struct {
	backend Backend
	state   State

	load      sync.Once
	mu        sync.Mutex
	kept      keptGrants
	tokens    map[[sha256.Size]byte]struct{} // those that kube-apiserver accepted; the tokens themselves are not kept
	askedKeys time.Time
	own       string // the token that the kubelet was given last; not kept on disk
}

// keptGrants is stored as JSON. It has no secrets.
type keptGrants struct {
	Keys keySet `json:"keys"`
	// Audiences are those of the API: the audiences of tokens that it accepted and that had only
	// one.
	Audiences []string `json:"audiences,omitempty"`
	// Discovery is the issuer's discovery document, as kube-apiserver publishes it.
	Discovery json.RawMessage `json:"discovery,omitempty"`
	// Accounts has the answers for each account's actions.
	Accounts map[string]map[string]bool `json:"accounts,omitempty"`
}

// action is the operation to authorize.
type action struct {
	verb      string
	resource  schema.GroupVersionResource
	namespace string
	name      string
}

func (a action) String() string {
	return strings.Join([]string{a.verb, a.resource.Group, a.resource.Resource, a.namespace, a.name}, "/")
}

func newGrants(backend Backend, state State) *grants {
	return &grants{backend: backend, state: state, tokens: map[[sha256.Size]byte]struct{}{}}
}

// check returns nil where the bearer of token may do a.
func (g *grants) check(ctx context.Context, token string, a action) error {
	g.load.Do(g.read)
	hash := sha256.Sum256([]byte(token))
	allowed, err := g.ask(ctx, token, a)
	switch {
	case err == nil:
		g.remember(ctx, token, a, allowed)
	case apierrors.IsUnauthorized(err):
		g.mu.Lock()
		delete(g.tokens, hash)
		g.mu.Unlock()
		return err
	default:
		account, verifyErr := g.account(ctx, token)
		if verifyErr != nil {
			return verifyErr
		}
		var known bool
		if allowed, known = g.known(account, a); !known {
			return err // no link, no cached answer: retry later
		}
	}
	if !allowed {
		return apierrors.NewForbidden(a.resource.GroupResource(), a.name, fmt.Errorf("this service account may not %s it", a.verb))
	}
	return nil
}

// known looks an action up. A permission in all namespaces includes this one: Kubernetes'
// authorizers only ever add rights.
func (g *grants) known(account string, a action) (allowed, known bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	answers := g.kept.Accounts[account]
	if allowed, known = answers[a.String()]; known {
		return allowed, true
	}
	for _, wider := range []action{{a.verb, a.resource, a.namespace, ""}, {a.verb, a.resource, "", ""}} {
		if answers[wider.String()] {
			return true, true
		}
	}
	return false, false
}

// account returns the owner of a token, without asking kube-apiserver.
func (g *grants) account(ctx context.Context, bearer string) (string, error) {
	j, accepted, err := g.verified(bearer)
	switch {
	case errors.Is(err, errNoKey):
		return "", unavailable("there is no link, and this token can't be checked without one")
	case err != nil:
		return "", apierrors.NewUnauthorized(err.Error())
	}
	if !accepted {
		g.mu.Lock()
		kept := g.kept
		g.mu.Unlock()
		if err := kept.meant(j); err != nil {
			return "", err
		}
	}
	if err := g.alive(ctx, j, accepted); err != nil {
		return "", err
	}
	return j.claims.Subject, nil
}

// verified takes a token apart and checks its signature, unless kube-apiserver has
// accepted it before.
func (g *grants) verified(bearer string) (j token, accepted bool, err error) {
	g.mu.Lock()
	_, accepted = g.tokens[sha256.Sum256([]byte(bearer))]
	keys := g.kept.Keys
	g.mu.Unlock()
	if j, err = parseToken(bearer); err == nil && !accepted {
		err = verify(keys, j)
	}
	return j, accepted, err
}

// admit checks whether a token is one of this cluster before the request's body is read, and
// without asking over the link. Its permissions are checked later. The kubelet got the tokens of
// this device's pods over the link before any pod could send one: learn knows their keys. An
// unknown key is requested with the kubelet's last token, at a limited rate, and never with the
// token that names it.
func (g *grants) admit(ctx context.Context, bearer string) error {
	g.load.Do(g.read)
	_, _, err := g.verified(bearer)
	if errors.Is(err, errNoKey) {
		g.mu.Lock()
		own, empty := g.own, len(g.kept.Keys.Keys) == 0
		g.mu.Unlock()
		if empty && own != "" {
			g.learn(ctx, own)
			_, _, err = g.verified(bearer)
		}
	}
	if err != nil {
		return apierrors.NewUnauthorized(err.Error())
	}
	return nil
}

// learn learns the keys of this cluster's tokens and the audience of the API from a token that
// kube-apiserver gave to the kubelet.
func (g *grants) learn(ctx context.Context, bearer string) {
	g.load.Do(g.read)
	j, err := parseToken(bearer)
	if err != nil {
		return
	}
	keys := g.newKeys(ctx, bearer, j)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.own = bearer
	learnt := g.kept.with(j.claims.Audience...)
	changed := len(learnt) > len(g.kept.Audiences)
	g.kept.Audiences = learnt
	if keys != nil {
		g.kept.Keys, changed = *keys, true
		clear(g.tokens) // one of a key that is gone must not count without a link
	}
	if changed {
		g.write(ctx)
	}
}

// meant reports whether a token is for the API, and not for a vault that the same account
// speaks to.
func (k *keptGrants) meant(j token) error {
	for _, audience := range j.claims.Audience {
		if slices.Contains(k.Audiences, audience) {
			return nil
		}
	}
	switch {
	case len(j.claims.Audience) == 0: // before KEP-1205: for the API only
		return nil
	case len(k.Audiences) == 0:
		return unavailable("there is no link, and the cluster's audience is not known without one")
	}
	return apierrors.NewUnauthorized("the token is for another audience")
}

// with is the audiences with more of them.
func (k *keptGrants) with(more ...string) []string {
	all := slices.Clone(k.Audiences)
	for _, a := range more {
		if !slices.Contains(all, a) && len(all) < maxAudiences {
			all = append(all, a)
		}
	}
	return all
}

// deletedGrace is how long a token outlives the deletion of its pod, as in
// kube-apiserver's own validator.
const deletedGrace = time.Minute

// alive reports whether a token is still valid. A pod's token is valid as long as the pod: its
// expiry does not count, as it could not be renewed without a link. A token without a pod ends by
// its expiry; one without either never expires, and only kube-apiserver knows whether its Secret
// still exists.
func (g *grants) alive(ctx context.Context, j token, accepted bool) error {
	p := j.claims.Kubernetes.Pod
	if p == nil {
		switch {
		case j.claims.Expiry != nil && time.Now().After(j.claims.Expiry.Time()):
			return apierrors.NewUnauthorized("the token has expired")
		case j.claims.Expiry == nil && !accepted:
			return unavailable("there is no link, and a token without an end can't be checked without one")
		}
		return nil
	}
	items, _, err := g.backend.List(ctx, object.Selection{
		Resource:  schema.GroupVersionResource{Version: "v1", Resource: "pods"},
		Namespace: j.claims.Kubernetes.Namespace,
		Labels:    labels.Everything(),
		Fields:    fields.OneTermEqualSelector("metadata.name", p.Name),
	}, metamanager.ListOptions{Held: true})
	if err != nil {
		return err
	}
	if len(items) != 1 || items[0].UID != types.UID(p.UID) {
		return apierrors.NewUnauthorized("the token's pod is not on this node")
	}
	pod, err := object.Decode(items[0])
	if err != nil {
		return fmt.Errorf("reading the token's pod: %w", err)
	}
	if m, err := apimeta.Accessor(pod); err == nil && m.GetDeletionTimestamp() != nil && time.Since(m.GetDeletionTimestamp().Time) > deletedGrace {
		return apierrors.NewUnauthorized("the token's pod was deleted")
	}
	return nil
}

// remember keeps an answer, and with it that the token is good.
func (g *grants) remember(ctx context.Context, token string, a action, allowed bool) {
	j, err := parseToken(token)
	if err != nil {
		return // a token of another kind that kube-apiserver accepts: it is always asked
	}
	hash := sha256.Sum256([]byte(token))
	keys := g.newKeys(ctx, token, j)
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.tokens) >= maxTokens || keys != nil {
		clear(g.tokens)
	}
	g.tokens[hash] = struct{}{}
	account := j.claims.Subject
	audiences := g.kept.Audiences
	if len(j.claims.Audience) == 1 { // of several, it may be any that was meant
		audiences = g.kept.with(j.claims.Audience...)
	}
	if was, ok := g.kept.Accounts[account][a.String()]; ok && was == allowed && keys == nil && len(audiences) == len(g.kept.Audiences) {
		return
	}
	next := keptGrants{Keys: g.kept.Keys, Discovery: g.kept.Discovery, Audiences: audiences, Accounts: maps.Clone(g.kept.Accounts)}
	if keys != nil {
		next.Keys = *keys
	}
	total := 0
	for _, answers := range next.Accounts {
		total += len(answers)
	}
	if next.Accounts == nil || total >= maxGrants {
		next.Accounts = map[string]map[string]bool{}
	}
	answers := maps.Clone(next.Accounts[account])
	if answers == nil {
		answers = map[string]bool{}
	}
	answers[a.String()] = allowed
	next.Accounts[account] = answers
	g.kept = next
	g.write(ctx)
}

// newKeys requests the cluster's keys if they lack the one that signed j, which kube-apiserver has
// just accepted. Every service account may read them (ClusterRole
// system:service-account-issuer-discovery).
func (g *grants) newKeys(ctx context.Context, bearer string, j token) *keySet {
	g.mu.Lock()
	ask := errors.Is(verify(g.kept.Keys, j), errNoKey) && time.Since(g.askedKeys) >= keysInterval
	if ask {
		g.askedKeys = time.Now()
	}
	g.mu.Unlock()
	if !ask {
		return nil
	}
	answer, err := g.backend.Request(ctx, &topicpb.APIRequest{
		Method: http.MethodGet, Path: "/openid/v1/jwks", Accept: "application/jwk-set+json", BearerToken: bearer,
	})
	var keys keySet
	if err != nil || answer.GetCode() != http.StatusOK || json.Unmarshal(answer.GetBody(), &keys) != nil || len(keys.Keys) == 0 {
		return nil
	}
	return &keys
}

func (g *grants) read() {
	raw, err := g.state.Load(grantsKey)
	var kept keptGrants
	if err != nil || raw == nil || json.Unmarshal(raw, &kept) != nil {
		return // not stored yet, or unreadable: it is learnt again
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.kept = kept
}

// write keeps the grants. Called with g.mu held, and only if there is a change.
func (g *grants) write(ctx context.Context) {
	raw, err := json.Marshal(g.kept)
	if err == nil {
		err = g.state.Keep(ctx, grantsKey, raw)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to store the permissions of service accounts: after a reboot their requests have to wait for a link")
	}
}

// ask has kube-apiserver judge the bearer of token: every account may review itself
// (ClusterRole system:basic-user).
func (g *grants) ask(ctx context.Context, token string, a action) (bool, error) {
	body, err := json.Marshal(&authorizationv1.SelfSubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"},
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: a.verb, Group: a.resource.Group, Version: a.resource.Version, Resource: a.resource.Resource, Namespace: a.namespace, Name: a.name,
		}},
	})
	if err != nil {
		return false, fmt.Errorf("asking for the permissions of a service account: %w", err)
	}
	answer, err := g.backend.Request(ctx, &topicpb.APIRequest{
		Method:      http.MethodPost,
		Path:        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
		Accept:      runtime.ContentTypeJSON,
		ContentType: runtime.ContentTypeJSON,
		Body:        body,
		BearerToken: token,
	})
	if err != nil {
		return false, err
	}
	if code := answer.GetCode(); code != http.StatusCreated && code != http.StatusOK {
		return false, answerError(answer)
	}
	var review authorizationv1.SelfSubjectAccessReview
	if err := json.Unmarshal(answer.GetBody(), &review); err != nil {
		return false, fmt.Errorf("asking for the permissions of a service account: %w", err)
	}
	return review.Status.Allowed, nil
}

// answerError is the Status that kube-apiserver answered with.
func answerError(answer *topicpb.APIResponse) error {
	var status metav1.Status
	if err := json.Unmarshal(answer.GetBody(), &status); err != nil || status.Kind != "Status" {
		status = metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonUnknown, Message: string(answer.GetBody())}
	}
	if status.Code == 0 {
		status.Code = answer.GetCode()
	}
	return &apierrors.StatusError{ErrStatus: status}
}
