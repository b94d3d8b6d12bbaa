package clusterinfo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// shortest and longest bound the duration that a device may ask for, in seconds.
const shortest, longest = 1, 3600

// Lease is the Lease of the election, as devices read and write it. NodeRestriction lets a node
// write no Lease but its own in kube-node-lease, so cloudcore writes this one for them, with its
// own rights: the holder is the node of the session, whatever the request has, and all times are of
// cloudcore's clock.
type Lease struct {
	client    kubernetes.Interface
	namespace string
	candidate func(node string) bool
	now       func() time.Time
}

// NewLease makes a Lease. candidate reports whether a node may be the leader.
func NewLease(client kubernetes.Interface, namespace string, candidate func(node string) bool) *Lease {
	return &Lease{client, namespace, candidate, time.Now}
}

// Path is where devices ask for the Lease.
func (l *Lease) Path() string {
	return "/apis/coordination.k8s.io/v1/namespaces/" + l.namespace + "/leases/" + v1alpha1.StatsLeaderLease
}

// Serve answers a device's request for the Lease; ok is false for every other request.
func (l *Lease) Serve(ctx context.Context, node types.NodeName, q *topicpb.APIRequest) (answer *topicpb.APIResponse, ok bool) {
	if q.GetPath() != l.Path() || q.GetBearerToken() != "" {
		return nil, false
	}
	var lease *coordinationv1.Lease
	var err error
	switch q.GetMethod() {
	case http.MethodGet:
		lease, err = l.get(ctx)
	case http.MethodPut:
		lease, err = l.put(ctx, string(node), q.GetBody())
	default:
		return nil, false // as the node: kube-apiserver will refuse
	}
	if err == nil {
		lease.TypeMeta = metav1.TypeMeta{APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease"}
		lease.ManagedFields = nil
		var body []byte
		if body, err = json.Marshal(lease); err == nil {
			return &topicpb.APIResponse{Code: http.StatusOK, ContentType: "application/json", Body: body}, true
		}
	}
	a := &topicpb.APIResponse{Code: http.StatusServiceUnavailable, ContentType: "application/json", RetryAfter: "1", Body: kube.StatusOf(err)}
	if status, is := errors.AsType[*apierrors.StatusError](err); is {
		a.Code, a.RetryAfter = status.ErrStatus.Code, ""
	}
	return a, true
}

// get reads the Lease. The manifests make it.
func (l *Lease) get(ctx context.Context) (*coordinationv1.Lease, error) {
	return l.client.CoordinationV1().Leases(l.namespace).Get(ctx, v1alpha1.StatsLeaderLease, metav1.GetOptions{})
}

func (l *Lease) put(ctx context.Context, node string, body []byte) (*coordinationv1.Lease, error) {
	var asked coordinationv1.Lease
	if err := json.Unmarshal(body, &asked); err != nil {
		return nil, apierrors.NewBadRequest("the Lease is no JSON: " + err.Error())
	}
	have, err := l.get(ctx)
	if err != nil {
		return nil, err
	}
	if asked.ResourceVersion != have.ResourceVersion {
		return nil, apierrors.NewConflict(coordinationv1.Resource("leases"), have.Name, errors.New("the Lease has been modified; read it again"))
	}
	want, err := l.next(node, have, &asked)
	if err != nil {
		return nil, err
	}
	return l.client.CoordinationV1().Leases(l.namespace).Update(ctx, want, metav1.UpdateOptions{})
}

func forbidden(format string, args ...any) error {
	return apierrors.NewForbidden(coordinationv1.Resource("leases"), v1alpha1.StatsLeaderLease, fmt.Errorf(format, args...))
}

// next is the Lease after a node's write, or the reason for a refusal.
func (l *Lease) next(node string, have, asked *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	now, was := l.now(), readLease(have)
	want := have.DeepCopy()
	stamp := metav1.NewMicroTime(now.UTC())
	want.Spec.RenewTime = &stamp
	holder := ""
	if asked.Spec.HolderIdentity != nil {
		holder = *asked.Spec.HolderIdentity
	}
	switch {
	case holder == "" && was.holder != node:
		return nil, forbidden("%s does not hold it", node)
	case holder == "":
		want.Spec.HolderIdentity, want.Spec.AcquireTime = &holder, nil
		return want, nil
	case holder != node:
		return nil, forbidden("a node holds it in its own name")
	case !l.candidate(node):
		return nil, forbidden("%s is no candidate: there is no ClusterInfo that selects it", node)
	case was.holder != node && was.valid(now):
		return nil, forbidden("%s holds it until %s", was.holder, text(was.until))
	}
	d := asked.Spec.LeaseDurationSeconds
	if d == nil || *d < shortest || *d > longest {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("leaseDurationSeconds must be %d to %d", shortest, longest))
	}
	if was.holder != node {
		transitions := int32(1)
		if have.Spec.LeaseTransitions != nil {
			transitions += *have.Spec.LeaseTransitions
		}
		want.Spec.LeaseTransitions, want.Spec.AcquireTime = &transitions, &stamp
	}
	want.Spec.HolderIdentity, want.Spec.LeaseDurationSeconds = &node, d
	return want, nil
}
