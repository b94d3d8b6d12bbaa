package kube

import (
	"context"
	"crypto/rand"
	"maps"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

const (
	accessTTL = time.Minute
	// sharedBound is how many questions are kept, and so how many are asked in a minute. A
	// cluster has some thirty; resources that a device makes up count too. At the bound nodes are
	// asked for alone.
	sharedBound = 128
)

// sharedAccess asks once for the rights of all nodes, or all devices, where an answer for one is an
// answer for the others (docs/dev/decisions/0066). It caches permissions only. It has two ways to
// find that a permission is not that node's own:
//
//   - a node that there is not may do the same: then Kubernetes lets every node;
//   - kube-apiserver names the binding of the rights of devices as the reason: then every subject
//     of this binding has it, as long as it is a subject.
//
// Both are valid where authorizers only ever add rights, as those of Kubernetes itself do. A
// webhook may refuse one node a right that another has: with a webhook no answer is shared.
type sharedAccess struct {
	client  kubernetes.Interface
	ask     func(context.Context, types.NodeName, Attributes) (Decision, error)
	devices *deviceRights
	absent  types.NodeName // of no node

	mu       sync.Mutex
	answers  map[string]sharedAnswer // by Attributes.key of absent
	checked  time.Time               // when kube-apiserver was asked which authorizers it has
	additive bool                    // they only add rights
}

// sharedAnswer has the subjects with the right.
type sharedAnswer struct {
	until    time.Time
	everyone bool      // every node
	binding  types.UID // those that this binding has; "": only the node that was asked for alone
}

func newSharedAccess(client kubernetes.Interface, ask func(context.Context, types.NodeName, Attributes) (Decision, error)) *sharedAccess {
	return &sharedAccess{
		client: client, ask: ask, devices: &deviceRights{client: client}, absent: types.NodeName("skerry-absent-" + rand.Text()[:16]),
		answers: map[string]sharedAnswer{},
	}
}

// allows reports whether the node is known to be allowed, by answers for others within the last
// minute, and asks where that is due. False: the node has to be asked for alone.
func (s *sharedAccess) allows(ctx context.Context, node types.NodeName, at Attributes) bool {
	if !s.onlyAdd(ctx) {
		return false
	}
	at = widen(node, at, s.absent)
	return s.remembered(node, at) || s.settle(ctx, node, at)
}

// widen turns a question into the one of another node about itself, as general as possible: without
// a namespace, labels, and names and fields that are not the node's own. A right to all objects
// includes the right to some: neither RBAC nor the Node authorizer removes a right for one of
// these. So names that a device makes up are no new question.
func widen(from types.NodeName, at Attributes, to types.NodeName) Attributes {
	wide := Attributes{Verb: at.Verb, Resource: at.Resource, Subresource: at.Subresource}
	if at.Name == string(from) {
		wide.Name = string(to)
	}
	var own []fields.Selector
	if at.Fields != nil {
		for _, r := range at.Fields.Requirements() {
			if r.Operator != selection.NotEquals && r.Value == string(from) {
				own = append(own, fields.OneTermEqualSelector(r.Field, string(to)))
			}
		}
	}
	if len(own) > 0 {
		wide.Fields = fields.AndSelectors(own...)
	}
	return wide
}

func (s *sharedAccess) remembered(node types.NodeName, at Attributes) bool {
	s.mu.Lock()
	a, ok := s.answers[at.key(s.absent)]
	s.mu.Unlock()
	return ok && time.Now().Before(a.until) && (a.everyone || s.devices.has(node, a.binding))
}

// settle asks which subjects have the right, unless that was asked within the last minute, and
// reports whether this node has it.
func (s *sharedAccess) settle(ctx context.Context, node types.NodeName, at Attributes) bool {
	key := at.key(s.absent)
	s.mu.Lock()
	before, ok := s.answers[key]
	if ok && time.Now().Before(before.until) {
		s.mu.Unlock()
		return false // a review is under way, or the answer is for others
	}
	if !ok && !s.room() {
		s.mu.Unlock()
		return false
	}
	s.answers[key] = sharedAnswer{until: time.Now().Add(accessTTL)} // callers that come until then are asked for alone
	s.mu.Unlock()

	answer, allowed := s.who(ctx, node, at, before.binding == "")
	answer.until = time.Now().Add(accessTTL)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[key] = answer
	return allowed
}

// who asks which subjects have the right. first selects the first question: whether every node has
// it, or whether this one has it as a device. An error is no answer: the node is asked for alone.
func (s *sharedAccess) who(ctx context.Context, node types.NodeName, at Attributes, first bool) (answer sharedAnswer, allowed bool) {
	everyone := func() bool {
		d, err := s.ask(ctx, s.absent, at)
		return err == nil && d.Allowed
	}
	if first && everyone() {
		return sharedAnswer{everyone: true}, true
	}
	reason, binding := s.devices.reason(node)
	d, err := s.ask(ctx, node, widen(s.absent, at, node))
	switch {
	case err != nil || !d.Allowed:
		return sharedAnswer{}, false
	case reason != "" && d.Reason == reason && s.devices.has(node, binding):
		return sharedAnswer{binding: binding}, true
	case !first && everyone():
		return sharedAnswer{everyone: true}, true
	}
	return sharedAnswer{}, true
}

// room reports whether another answer may be kept. mu is held.
func (s *sharedAccess) room() bool {
	if len(s.answers) < sharedBound {
		return true
	}
	now := time.Now()
	maps.DeleteFunc(s.answers, func(_ string, a sharedAnswer) bool { return now.After(a.until) })
	return len(s.answers) < sharedBound
}

// onlyAdd reports whether all authorizers of kube-apiserver only ever add rights, as those do that
// can list an account's rights: the Node authorizer, RBAC, ABAC. A webhook can't, and the list is
// marked as incomplete. It is asked for cloudcore itself, since for a node the Node authorizer's
// list is empty.
func (s *sharedAccess) onlyAdd(ctx context.Context) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.checked) < accessTTL {
		return s.additive
	}
	s.checked = time.Now()
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	rules, err := s.client.AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: metav1.NamespaceDefault},
	}, metav1.CreateOptions{})
	additive := err == nil && !rules.Status.Incomplete && rules.Status.EvaluationError == ""
	if !additive {
		klog.FromContext(ctx).V(4).Info("Reviewing the permissions of each node", "err", err)
	}
	s.mu.Lock()
	s.additive = additive
	return additive
}
