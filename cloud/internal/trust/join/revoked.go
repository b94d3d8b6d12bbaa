package join

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"golang.org/x/time/rate"

	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/rerun"
)

// The list is the data of a ConfigMap: a node's name leads to a ban; SHA256.HEX: TEXT, which
// people may add, bans one certificate (no node's name has capitals). It holds about 10,000
// entries (1 MiB).
const fingerprintKey = "SHA256."

// recheck is how often the sessions are compared with the list although it didn't change: one that
// opened just as the list did could be missed.
const recheck = time.Minute

// Revoked is the list of revoked certificates. Kubernetes has no such list: kube-apiserver itself
// accepts a certificate until it expires, so this list protects only the way through cloudcore.
type Revoked struct {
	// Set by NewRevoked, never changed.
	client  kubernetes.Interface
	changed func(context.Context) // may be nil
	reads   *rate.Limiter         // of the list itself, when a certificate was issued around a revocation

	once  sync.Once
	known chan struct{} // closed when the list has been read once

	mu     sync.RWMutex
	nodes  map[types.NodeName]ban
	prints map[string]bool
}

// NewRevoked follows the list. changed is called after each change of it and once a minute: the
// sessions are then to be checked again.
func NewRevoked(client kubernetes.Interface, changed func(context.Context)) *Revoked {
	return &Revoked{client: client, changed: changed, reads: rate.NewLimiter(20, 20), known: make(chan struct{})}
}

// Run follows the list until ctx ends.
func (r *Revoked) Run(ctx context.Context) error {
	factory := informers.NewSharedInformerFactoryWithOptions(r.client, 0, informers.WithNamespace(Namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", revokedMap).String()
		}))
	informer := factory.Core().V1().ConfigMaps()
	lister := informer.Lister().ConfigMaps(Namespace)
	loop := rerun.New(func(ctx context.Context) (time.Duration, error) {
		list, err := lister.Get(revokedMap)
		if err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("reading the list of revoked certificates: %w", err)
		}
		r.set(ctx, list)
		r.once.Do(func() { close(r.known) })
		if r.changed != nil {
			r.changed(ctx)
		}
		return recheck, nil
	}, rerun.Config{Failed: func(ctx context.Context, err error, retry time.Duration) {
		klog.FromContext(ctx).Error(err, "Failed to watch the list of revoked certificates, retrying", "in", retry)
	}})
	if _, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { loop.Wake() },
		UpdateFunc: func(_, _ any) { loop.Wake() },
		DeleteFunc: func(any) { loop.Wake() },
	}); err != nil {
		return fmt.Errorf("watching the list of revoked certificates: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	factory.Start(ctx.Done())
	defer factory.Shutdown() // waits for the informers, which cancel ends, also in a panic
	defer cancel()
	if !cache.WaitForCacheSync(ctx.Done(), informer.Informer().HasSynced) {
		return nil
	}
	loop.Run(ctx)
	return nil
}

func (r *Revoked) set(ctx context.Context, list *corev1.ConfigMap) {
	nodes, prints := map[types.NodeName]ban{}, map[string]bool{}
	if list != nil {
		for key, value := range list.Data {
			if print, ok := strings.CutPrefix(key, fingerprintKey); ok {
				prints[strings.ToLower(print)] = true
				continue
			}
			b, err := parseBan(value)
			if err != nil {
				klog.FromContext(ctx).Error(err, "Refusing all certificates of a node: its revocation entry is invalid", "node", key)
			}
			nodes[types.NodeName(key)] = b
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nodes, r.prints = nodes, prints
}

// Check is nil unless the node's certificate is revoked; then it is a *pki.Refusal.
func (r *Revoked) Check(node types.NodeName, cert *x509.Certificate) error {
	if b, listed := r.cached(node); listed && b.refuses(cert) {
		return refusal(node, b)
	}
	if r.printed(cert) {
		return pki.Refuse(pki.ReasonRevoked, "this certificate of %s is revoked", node)
	}
	return nil
}

// Known are the nodes whose certificates are revoked, with the time before which they are and the
// keys of those that are good all the same, and the fingerprints of single certificates.
func (r *Revoked) Known() (nodes map[types.NodeName]Ban, prints []string) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	nodes = make(map[types.NodeName]Ban, len(r.nodes))
	for node, b := range r.nodes {
		nodes[node] = Ban{b.since, b.keys}
	}
	return nodes, slices.Collect(maps.Keys(r.prints))
}

func (r *Revoked) cached(node types.NodeName) (b ban, listed bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	b, listed = r.nodes[node]
	return b, listed
}

func refusal(node types.NodeName, b ban) error {
	return pki.Refuse(pki.ReasonRevoked, "the certificates of %s issued before %s are revoked", node, b.since.UTC().Format(time.RFC3339))
}

// Admit is Check for a new session. It waits until the list has been read, for as long as ctx
// allows. A certificate that was issued around a revocation is judged by the list itself: the
// approver's note may be newer than the informer.
func (r *Revoked) Admit(ctx context.Context, node types.NodeName, cert *x509.Certificate) error {
	select {
	case <-r.known:
	case <-ctx.Done():
		return fmt.Errorf("waiting for the list of revoked certificates: %w", context.Cause(ctx))
	}
	err := r.Check(node, cert)
	b, listed := r.cached(node)
	if err == nil || !listed || !b.near(cert) {
		return err
	}
	if r.reads.Wait(ctx) != nil {
		return err
	}
	now, _, errRead := r.banOf(ctx, node)
	switch {
	case errRead != nil:
		return errors.Join(err, errRead)
	case now != nil && now.refuses(cert):
		return refusal(node, *now)
	case r.printed(cert):
		return err
	}
	return nil
}

// printed reports whether this one certificate is banned.
func (r *Revoked) printed(cert *x509.Certificate) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.prints) > 0 && r.prints[pki.Fingerprint(cert)]
}

// read is the list as kube-apiserver has it now; nil without one.
func (r *Revoked) read(ctx context.Context) (*corev1.ConfigMap, error) {
	list, err := r.client.CoreV1().ConfigMaps(Namespace).Get(ctx, revokedMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the list of revoked certificates: %w", err)
	}
	return list, nil
}

// banOf is the node's entry as kube-apiserver has it now, and the list that contains it; nil
// without an entry.
func (r *Revoked) banOf(ctx context.Context, node types.NodeName) (*ban, *corev1.ConfigMap, error) {
	list, err := r.read(ctx)
	if err != nil || list == nil {
		return nil, nil, err
	}
	value, listed := list.Data[string(node)]
	if !listed {
		return nil, list, nil
	}
	b, err := parseBan(value)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to parse a revocation entry, refusing all certificates of the node: correct the ConfigMap skerry-revoked", "node", node)
	}
	return &b, list, nil
}

// permit judges a request for a certificate of node by the list as it is now, and notes the key of
// one that may be approved, so that its certificate is good although it may be dated before the
// revocation. A refusal is a *pki.Refusal; any other error means that it could not be judged now.
func (r *Revoked) permit(ctx context.Context, node types.NodeName, created time.Time, join bool) error {
	b, _, err := r.banOf(ctx, node)
	if err != nil || b == nil {
		return err
	}
	return b.judge(created, join)
}

// note is called right before a request for a client certificate is approved.
func (r *Revoked) note(ctx context.Context, node types.NodeName, created time.Time, join bool, spki []byte) error {
	b, list, err := r.banOf(ctx, node)
	if err != nil || b == nil {
		return err
	}
	if err := b.judge(created, join); err != nil {
		return err
	}
	next, changed := b.noted(created, spki)
	if !changed {
		return nil
	}
	list.Data[string(node)] = next.String()
	// The resourceVersion goes along: a revocation in between is a conflict, and the request
	// is judged again.
	if _, err := r.client.CoreV1().ConfigMaps(Namespace).Update(ctx, list, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("writing the list of revoked certificates: %w", err)
	}
	return nil
}
