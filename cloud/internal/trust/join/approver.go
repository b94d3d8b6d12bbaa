package join

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/pki"
)

// credentialID is set by kube-apiserver in the extra fields of a user that authenticated with a
// certificate or a token, and is absent from an impersonated user (KEP-4193).
const credentialID = "authentication.kubernetes.io/credential-id"

const (
	// The delays before a request that could not be judged is retried.
	retryMin = 200 * time.Millisecond
	retryMax = 30 * time.Second
)

// ApproverConfig configures an Approver.
type ApproverConfig struct {
	Client kubernetes.Interface
	Tokens *Tokens
	// Linked reports whether the node has a session here. It may be nil: the Lease of a node shows
	// as much, a little later.
	Linked func(types.NodeName) bool
	// Revoked is consulted for every request, as kube-apiserver has it at that moment. It
	// may be nil.
	Revoked *Revoked
}

// Approver judges the requests for node certificates of devices: those made with a token of ours,
// and renewals that came through a link. It leaves all others to the cluster's other approvers. One
// at a time should run (under a Lease); two do no harm.
type Approver struct {
	cfg ApproverConfig
	now func() time.Time
}

// judge is one run of an Approver. One goroutine owns it.
type judge struct {
	*Approver
	requests cache.Indexer                // all of the signer; Kubernetes keeps approved ones for an hour
	approved map[types.NodeName]types.UID // joins that the informer may not show as approved yet
}

// byNode indexes requests by the node they ask for.
const byNode = "node"

// NewApprover makes an approver.
func NewApprover(cfg ApproverConfig) *Approver {
	return &Approver{cfg: cfg, now: time.Now}
}

// Run approves and denies until ctx ends. It may be run again, as the Lease comes and goes.
func (a *Approver) Run(ctx context.Context) error {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryMin, retryMax))
	defer queue.ShutDown()

	factory := informers.NewSharedInformerFactoryWithOptions(a.cfg.Client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.signerName", Signer).String()
	}))
	informer := factory.Certificates().V1().CertificateSigningRequests()
	add := func(obj any) {
		if csr, ok := obj.(*certificatesv1.CertificateSigningRequest); ok && ours(csr) {
			queue.Add(csr.Name)
		}
	}
	if err := informer.Informer().AddIndexers(cache.Indexers{byNode: func(obj any) ([]string, error) {
		if csr, ok := obj.(*certificatesv1.CertificateSigningRequest); ok && isBootstrap(csr) {
			if _, node, err := pki.ParseNodeCSR(csr.Spec.Request); err == nil {
				return []string{string(node)}, nil
			}
		}
		return nil, nil
	}}); err != nil {
		return fmt.Errorf("watching certificate requests: %w", err)
	}
	if _, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    add,
		UpdateFunc: func(_, obj any) { add(obj) },
	}); err != nil {
		return fmt.Errorf("watching certificate requests: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	factory.Start(ctx.Done())
	defer factory.Shutdown() // waits for the informers, which cancel ends, also in a panic
	defer cancel()

	j := &judge{Approver: a, requests: informer.Informer().GetIndexer(), approved: map[types.NodeName]types.UID{}}
	if !cache.WaitForCacheSync(ctx.Done(), informer.Informer().HasSynced) {
		return nil // without all requests, it is unknown which names have just been given away
	}

	stop := context.AfterFunc(ctx, queue.ShutDown)
	defer stop()
	// One at a time: two requests for one name must not be judged side by side. Each costs some
	// round trips; 100 a second are no problem.
	for {
		name, shutdown := queue.Get()
		if shutdown {
			return nil
		}
		j.work(ctx, queue, name)
	}
}

func (j *judge) work(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string], name string) {
	defer queue.Done(name)
	obj, exists, err := j.requests.GetByKey(name)
	if csr, ok := obj.(*certificatesv1.CertificateSigningRequest); ok && exists && err == nil {
		err = j.decide(ctx, csr)
	}
	switch {
	case err == nil || apierrors.IsNotFound(err):
		queue.Forget(name)
	case ctx.Err() != nil:
	default:
		if !apierrors.IsConflict(err) { // another client wrote it: the informer will deliver that
			klog.FromContext(ctx).Error(err, "Failed to decide on a certificate request, retrying", "csr", name)
		}
		queue.AddRateLimited(name)
	}
}

// ours reports whether csr waits for a decision that is ours to take.
func ours(csr *certificatesv1.CertificateSigningRequest) bool {
	if csr.Spec.SignerName != Signer || len(csr.Status.Certificate) > 0 {
		return false
	}
	for _, c := range csr.Status.Conditions {
		if c.Type == certificatesv1.CertificateApproved || c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed {
			return false
		}
	}
	return isBootstrap(csr) || isRenewal(csr)
}

func isBootstrap(csr *certificatesv1.CertificateSigningRequest) bool {
	return strings.HasPrefix(csr.Spec.Username, bootstrapPrefix) && slices.Contains(csr.Spec.Groups, BootstrapGroup)
}

func isRenewal(csr *certificatesv1.CertificateSigningRequest) bool {
	return strings.HasPrefix(csr.Spec.Username, pki.NodeUserPrefix) && slices.Contains(csr.Spec.Groups, pki.NodesGroup)
}

// decide approves csr, denies it with a reason, or leaves it alone because it isn't ours. An error
// means that it could not be judged now.
func (j *judge) decide(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) error {
	if !ours(csr) {
		return nil
	}
	rule := j.join
	if isRenewal(csr) {
		rule = j.renewal
	}
	node, mine, err := types.NodeName(""), true, checkRequest(csr)
	var request *x509.CertificateRequest
	if err == nil {
		request, node, err = pki.ParseNodeCSR(csr.Spec.Request)
		if err != nil {
			err = pki.Refuse(pki.ReasonBadCSR, "%v", err)
		}
	}
	if err == nil && j.cfg.Revoked != nil {
		err = j.cfg.Revoked.permit(ctx, node, csr.CreationTimestamp.Time, isBootstrap(csr))
	}
	if err == nil {
		mine, err = rule(ctx, csr, node)
	}
	if err == nil && mine && j.cfg.Revoked != nil {
		err = j.cfg.Revoked.note(ctx, node, csr.CreationTimestamp.Time, isBootstrap(csr), request.RawSubjectPublicKeyInfo)
	}
	if !mine && err == nil {
		return nil
	}
	if err == nil && isBootstrap(csr) {
		err = addEdge(ctx, j.cfg.Client, node)
	}
	var refusal *pki.Refusal
	if err != nil && !errors.As(err, &refusal) {
		return err
	}
	condition := certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue,
		Reason: "SkerryApproved", Message: "approved by cloudcore",
	}
	if refusal != nil {
		condition.Type, condition.Reason, condition.Message = certificatesv1.CertificateDenied, string(refusal.Reason), refusal.Message
	}
	condition.LastUpdateTime = metav1.NewTime(j.now())
	csr = csr.DeepCopy()
	csr.Status.Conditions = append(csr.Status.Conditions, condition)
	// The resourceVersion that we judged goes along: a decision by another approver in between is a
	// conflict, and stands.
	if _, err := j.cfg.Client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("writing the decision on %s: %w", csr.Name, err)
	}
	if refusal == nil && isBootstrap(csr) {
		j.noteApproved(node, csr.UID)
	}
	logger := klog.FromContext(ctx).WithValues("csr", csr.Name, "node", node, "requester", csr.Spec.Username)
	if refusal != nil {
		logger.Info("Denied a node certificate", "reason", refusal.Reason, "why", refusal.Message)
	} else {
		logger.Info("Approved a node certificate")
	}
	return nil
}

// approvedKept bounds the approvals remembered until the informer has caught up, which takes
// milliseconds.
const approvedKept = 1000

func (j *judge) noteApproved(node types.NodeName, uid types.UID) {
	if len(j.approved) >= approvedKept {
		clear(j.approved)
	}
	j.approved[node] = uid
}

// checkRequest holds the usages to those of a kubelet's client certificate, as
// kube-apiserver-client-kubelet permits them.
func checkRequest(csr *certificatesv1.CertificateSigningRequest) error {
	usages := slices.Clone(csr.Spec.Usages)
	slices.Sort(usages)
	usages = slices.Compact(usages)
	with := []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment}
	without := []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature}
	if !slices.Equal(usages, with) && !slices.Equal(usages, without) {
		return pki.Refuse(pki.ReasonBadCSR, "the usages are %q; a node's certificate is for %q", usages, without)
	}
	return nil
}

func (j *judge) join(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, node types.NodeName) (bool, error) {
	id := strings.TrimPrefix(csr.Spec.Username, bootstrapPrefix)
	if err := j.free(ctx, id, node, csr.UID); err != nil {
		return true, err
	}
	// Last, so that a refusal costs no use.
	return true, j.cfg.Tokens.Spend(ctx, id, node, csr.UID)
}

// free refuses a name that is taken. A live node's is taken for every requester. That of a node
// which is not live (an island out of reach, perhaps, whose device still holds a valid certificate)
// or of a device that has only just joined is given only to the holder of a token made for just
// this name.
func (j *judge) free(ctx context.Context, id string, node types.NodeName, uid types.UID) error {
	if j.cfg.Linked != nil && j.cfg.Linked(node) {
		return pki.Refuse(pki.ReasonNodeLive, "a device named %s is linked now: choose another name, or stop that device first", node)
	}
	_, err := j.cfg.Client.CoreV1().Nodes().Get(ctx, string(node), metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("looking for the node %s: %w", node, err)
	}
	exists := err == nil
	if exists {
		if err := live(ctx, j.cfg.Client, node, j.now()); err != nil {
			return err
		}
	}
	if !exists {
		joined, err := j.joined(ctx, node, uid)
		if err != nil || !joined {
			return err
		}
	}
	_, info, err := j.cfg.Tokens.record(ctx, id)
	switch {
	case err != nil:
		return err
	case info.Node == node:
		return nil
	case exists:
		return pki.Refuse(pki.ReasonNodeExists, "the node %s exists already and may only be out of reach: to put this device in its place, make a token "+
			"with `cloudcore token create --node %s`, or remove the old one with `cloudcore node revoke %s`", node, node, node)
	default:
		return pki.Refuse(pki.ReasonNodeExists, "another device joined as %s within the last hour: choose another name, or make a token with "+
			"`cloudcore token create --node %s`", node, node)
	}
}

const (
	// skew is how far the clocks of cloudcore's replicas may be apart.
	skew = time.Minute
	// longestLease bounds a Lease after its last renewal. A node that reaches kube-apiserver itself
	// writes the duration of its own, up to 68 years.
	longestLease = 10 * time.Minute
)

// live returns a refusal if the node's Lease is valid: another device must not take its name. A
// Lease with a renewal in the future was written by a cloudcore with a wrong clock, and is no
// evidence.
func live(ctx context.Context, client kubernetes.Interface, node types.NodeName, now time.Time) error {
	lease, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, string(node), metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && (lease.Spec.RenewTime == nil || lease.Spec.LeaseDurationSeconds == nil) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking for the Lease of the node %s: %w", node, err)
	}
	end := lease.Spec.RenewTime.Add(min(time.Duration(*lease.Spec.LeaseDurationSeconds)*time.Second, longestLease))
	if !now.Before(end) || lease.Spec.RenewTime.After(now.Add(skew)) {
		return nil
	}
	return pki.Refuse(pki.ReasonNodeLive, "the node %s is alive (last heard of at %s): choose another name; if it is this very device, stop edgecore "+
		"on it and try again after %s", node, lease.Spec.RenewTime.UTC().Format(time.RFC3339), end.UTC().Format(time.RFC3339))
}

// joined reports whether a request other than uid was approved lately for a device of this name,
// and the certificate is good.
func (j *judge) joined(ctx context.Context, node types.NodeName, uid types.UID) (bool, error) {
	var revoked *ban
	if j.cfg.Revoked != nil {
		var err error
		if revoked, _, err = j.cfg.Revoked.banOf(ctx, node); err != nil {
			return false, err
		}
	}
	objs, _ := j.requests.ByIndex(byNode, string(node)) // fails only for an index that does not exist
	for _, obj := range objs {
		csr, ok := obj.(*certificatesv1.CertificateSigningRequest)
		if !ok || csr.UID == uid || !slices.ContainsFunc(csr.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
			return c.Type == certificatesv1.CertificateApproved
		}) {
			continue
		}
		if j.approved[node] == csr.UID {
			delete(j.approved, node) // the informer has caught up
		}
		certs, err := pki.ParseCertificates(csr.Status.Certificate)
		if err == nil && revoked != nil && revoked.refuses(certs[0]) {
			continue
		}
		return true, nil
	}
	last, ok := j.approved[node]
	if !ok || last == uid {
		return false, nil
	}
	// Not shown as approved: either the informer is behind, or the request is gone by now.
	for _, obj := range objs {
		if csr, ok := obj.(*certificatesv1.CertificateSigningRequest); ok && csr.UID == last {
			return true, nil
		}
	}
	delete(j.approved, node)
	return false, nil
}

// renewal judges the request of a node that has a certificate. Only a request that came through a
// link is ours; a kubelet that connects to kube-apiserver itself is the cluster's own business,
// unless its name is on our list.
func (j *judge) renewal(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, node types.NodeName) (bool, error) {
	if csr.Spec.Username != pki.NodeUserPrefix+string(node) {
		return true, pki.Refuse(pki.ReasonBadName, "%s may not ask for the certificate of %s", csr.Spec.Username, node)
	}
	if _, direct := csr.Spec.Extra[credentialID]; direct {
		if j.cfg.Revoked == nil {
			return false, nil
		}
		b, _, err := j.cfg.Revoked.banOf(ctx, node)
		if b != nil {
			return true, pki.Refuse(pki.ReasonRevoked, "certificates of %s were revoked: it can renew only through cloudcore", node)
		}
		return false, err
	}
	_, err := j.cfg.Client.CoreV1().Nodes().Get(ctx, string(node), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, pki.Refuse(pki.ReasonNodeGone, "the node %s was removed from the cluster; join again", node)
	}
	if err != nil {
		return false, fmt.Errorf("looking for the node %s: %w", node, err)
	}
	return true, nil
}

// decision is the outcome of a certificate request: its certificate, a refusal, or neither yet.
func decision(csr *certificatesv1.CertificateSigningRequest) ([]byte, error) {
	for _, c := range csr.Status.Conditions {
		switch c.Type {
		case certificatesv1.CertificateDenied:
			return nil, refusalOf(c)
		case certificatesv1.CertificateFailed:
			return nil, pki.Refuse(pki.ReasonDenied, "the cluster's signer failed: %s (%s)", c.Message, c.Reason)
		}
	}
	return csr.Status.Certificate, nil
}

// refusalOf passes our own reasons on; a denial by another approver is reported as such.
func refusalOf(c certificatesv1.CertificateSigningRequestCondition) *pki.Refusal {
	switch r := pki.Reason(c.Reason); r {
	case pki.ReasonBadCSR, pki.ReasonBadName, pki.ReasonTokenUnknown, pki.ReasonTokenExpired, pki.ReasonTokenUsedUp, pki.ReasonTokenNode,
		pki.ReasonNodeLive, pki.ReasonNodeExists, pki.ReasonNodeGone, pki.ReasonRevoked:
		return pki.Refuse(r, "%s", c.Message)
	}
	return pki.Refuse(pki.ReasonDenied, "the certificate request was denied: %s (%s)", c.Message, c.Reason)
}

// until calls fn with growing pauses until it reports that it is done.
func until(ctx context.Context, fn func() (bool, error)) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := 50 * time.Millisecond; ; pause = min(pause*3/2, time.Second) {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
		}
		if done, err := fn(); done || err != nil {
			return err
		}
		timer.Reset(pause)
	}
}
