package join

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
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
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/pki"
)

// The list is the data of a ConfigMap: NAME: TIME bans the certificates of a node that were issued before; SHA256.HEX: TEXT bans one certificate (no
// node's name has capitals). It holds about 10,000 entries.
const fingerprintKey = "SHA256."

// recheck is how often the sessions are held against the list although it didn't change: one that opened just as the list did could be missed.
const recheck = time.Minute

// Revoked is the list of revoked certificates. Kubernetes has none: kube-apiserver itself accepts a certificate until it expires, so what this list
// protects is the way through cloudcore.
type Revoked struct {
	client  kubernetes.Interface
	changed func(context.Context) // may be nil

	once  sync.Once
	known chan struct{} // closed when the list has been read once

	mu     sync.RWMutex
	nodes  map[types.NodeName]time.Time
	prints map[string]bool
}

// NewRevoked follows the list. changed is called after each change of it and once a minute: the sessions are then to be checked again.
func NewRevoked(client kubernetes.Interface, changed func(context.Context)) *Revoked {
	return &Revoked{client: client, changed: changed, known: make(chan struct{})}
}

// Run follows the list until ctx ends.
func (r *Revoked) Run(ctx context.Context) error {
	factory := informers.NewSharedInformerFactoryWithOptions(r.client, 0, informers.WithNamespace(Namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", revokedMap).String()
		}))
	informer := factory.Core().V1().ConfigMaps()
	update := make(chan struct{}, 1) // one is enough: the reader looks at the newest state
	poke := func() {
		select {
		case update <- struct{}{}:
		default:
		}
	}
	if _, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { poke() },
		UpdateFunc: func(_, _ any) { poke() },
		DeleteFunc: func(any) { poke() },
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

	lister := informer.Lister().ConfigMaps(Namespace)
	ticker := time.NewTicker(recheck)
	defer ticker.Stop()
	for {
		list, err := lister.Get(revokedMap)
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("reading the list of revoked certificates: %w", err)
		}
		r.set(ctx, list)
		r.once.Do(func() { close(r.known) })
		if r.changed != nil {
			r.changed(ctx)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-update:
		case <-ticker.C:
		}
	}
}

func (r *Revoked) set(ctx context.Context, list *corev1.ConfigMap) {
	nodes, prints := map[types.NodeName]time.Time{}, map[string]bool{}
	if list != nil {
		for key, value := range list.Data {
			if print, ok := strings.CutPrefix(key, fingerprintKey); ok {
				prints[strings.ToLower(print)] = true
				continue
			}
			before, err := time.Parse(time.RFC3339, value)
			if err != nil {
				// A list that can't be read must not let anybody in: without a time, all certificates of that node are meant.
				klog.FromContext(ctx).Error(err, "The list of revoked certificates has no valid time for a node; all its certificates are refused", "node", key)
				before = time.Unix(1<<40, 0)
			}
			nodes[types.NodeName(key)] = before
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nodes, r.prints = nodes, prints
}

// Listed reports whether certificates of node have ever been revoked.
func (r *Revoked) Listed(node types.NodeName) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	_, listed := r.nodes[node]
	return listed
}

// Check is nil unless the node's certificate is revoked; then it is a *pki.Refusal.
func (r *Revoked) Check(node types.NodeName, cert *x509.Certificate) error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if before, listed := r.nodes[node]; listed && cert.NotBefore.Before(before.Add(-signerBackdate)) {
		return pki.Refuse(pki.ReasonRevoked, "the certificates of %s issued before %s are revoked", node, before.UTC().Format(time.RFC3339))
	}
	if len(r.prints) > 0 && r.prints[pki.Fingerprint(cert)] {
		return pki.Refuse(pki.ReasonRevoked, "this certificate of %s is revoked", node)
	}
	return nil
}

// Admit is Check for a new session. It waits until the list has been read, for as long as ctx allows.
func (r *Revoked) Admit(ctx context.Context, node types.NodeName, cert *x509.Certificate) error {
	select {
	case <-r.known:
		return r.Check(node, cert)
	case <-ctx.Done():
		return fmt.Errorf("waiting for the list of revoked certificates: %w", context.Cause(ctx))
	}
}

// Revocation is what Revoke did.
type Revocation struct {
	Node         types.NodeName `json:"node"`
	Before       time.Time      `json:"before"`
	Certificates []string       `json:"certificates"` // fingerprints of those listed one by one
	NodeDeleted  bool           `json:"nodeDeleted"`  // false: there was none
}

// Revoke bans every certificate that node has, then deletes the Node. It needs an administrator's rights. A device may join under that name again.
func Revoke(ctx context.Context, client kubernetes.Interface, node types.NodeName) (Revocation, error) {
	if err := pki.ValidNodeName(node); err != nil {
		return Revocation{}, err
	}
	done := Revocation{Node: node, Before: time.Now().UTC().Truncate(time.Second)}
	bans := map[string]string{string(node): done.Before.Format(time.RFC3339)}
	// The time alone would miss what a signer without backdating issued in the last minutes. Kubernetes keeps requests for an hour after approval.
	prints, open, err := issued(ctx, client, node)
	if err != nil {
		return done, err
	}
	maps.Copy(bans, prints)
	if err := ban(ctx, client, bans); err != nil {
		return done, err
	}
	err = client.CoreV1().Nodes().Delete(ctx, string(node), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return done, fmt.Errorf("the certificates of %s are banned, but deleting the node failed: %w", node, err)
	}
	done.NodeDeleted = err == nil
	// What was approved already is issued in a moment, with a time that is not before ours.
	if open {
		wait, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		err := until(wait, func() (bool, error) {
			prints, open, err = issued(ctx, client, node)
			return !open, err
		})
		if err != nil && wait.Err() == nil {
			return done, err
		}
		if err := ban(ctx, client, prints); err != nil {
			return done, err
		}
	}
	for key := range prints {
		done.Certificates = append(done.Certificates, strings.TrimPrefix(key, fingerprintKey))
	}
	return done, nil
}

// issued is the entries for all of node's certificates that the cluster still remembers, and whether more are on their way.
func issued(ctx context.Context, client kubernetes.Interface, node types.NodeName) (bans map[string]string, open bool, err error) {
	list, err := client.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.signerName", Signer).String(),
	})
	if err != nil {
		return nil, false, fmt.Errorf("listing the certificates of %s: %w", node, err)
	}
	bans = map[string]string{}
	for i := range list.Items {
		csr := &list.Items[i]
		if _, name, err := pki.ParseNodeCSR(csr.Spec.Request); err != nil || name != node {
			continue
		}
		if len(csr.Status.Certificate) == 0 {
			for _, c := range csr.Status.Conditions {
				open = open || c.Type == certificatesv1.CertificateApproved
			}
			continue
		}
		certs, err := pki.ParseCertificates(csr.Status.Certificate)
		if err != nil {
			return nil, false, fmt.Errorf("reading the certificate in %s: %w", csr.Name, err)
		}
		bans[fingerprintKey+pki.Fingerprint(certs[0])] = string(node)
	}
	return bans, open, nil
}

func ban(ctx context.Context, client kubernetes.Interface, bans map[string]string) error {
	if len(bans) == 0 {
		return nil
	}
	lists := client.CoreV1().ConfigMaps(Namespace)
	list := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: revokedMap, Namespace: Namespace}, Data: bans}
	_, err := lists.Create(ctx, list, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		var patch []byte
		if patch, err = json.Marshal(map[string]any{"data": bans}); err == nil {
			_, err = lists.Patch(ctx, revokedMap, types.MergePatchType, patch, metav1.PatchOptions{}) // no read first: nothing to lose in a race
		}
	}
	if err != nil {
		return errors.Join(fmt.Errorf("writing the list of revoked certificates %s/%s", Namespace, revokedMap), err)
	}
	return nil
}
