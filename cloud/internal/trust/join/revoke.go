package join

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/common/pki"
)

// requestsPage is how many certificate requests are listed at a time, when those of a node are
// removed: each may be as large as etcd lets it be, 1.5 MiB.
const requestsPage = 50

// Revocation is the result of Revoke.
type Revocation struct {
	Node types.NodeName `json:"node"`
	// At is when, by kube-apiserver's clock. Every certificate from before is banned, and so
	// is every request.
	At          time.Time `json:"at"`
	NodeDeleted bool      `json:"nodeDeleted"` // false: there was none
	// Known: a device has joined with that name, and was not revoked since. Otherwise the name may
	// be mistyped.
	Known           bool `json:"known"`
	RequestsDeleted int  `json:"requestsDeleted"` // certificate requests without a certificate yet
}

// Revoke bans every certificate that node has, deletes the Node, and removes its certificate
// requests that wait. It needs an administrator's rights. A device may join under that name again.
//
// The ban is first, alone and of one size, so that the device can't delay it: one write, which
// every replica of cloudcore, the approver and the admission policy skerry-revoked see. Its time is
// kube-apiserver's: an administrator's clock may be wrong. With an error after the ban, the ban
// stands.
func Revoke(ctx context.Context, client kubernetes.Interface, node types.NodeName) (Revocation, error) {
	done := Revocation{Node: node}
	if err := pki.ValidNodeName(node); err != nil {
		return done, err
	}
	at, err := serverTime(ctx, client)
	if err != nil {
		return done, err
	}
	done.At = at
	if err := writeBan(ctx, client, node, newBan(at)); err != nil {
		return done, err
	}
	if done.Known, err = removeEdge(ctx, client, node); err != nil {
		return done, fmt.Errorf("the certificates of %s are banned, but cloudcore may still act as it: %w", node, err)
	}
	err = client.CoreV1().Nodes().Delete(ctx, string(node), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return done, fmt.Errorf("the certificates of %s are banned, but deleting the node failed: %w", node, err)
	}
	done.NodeDeleted = err == nil
	done.Known = done.Known || done.NodeDeleted
	if done.RequestsDeleted, err = removeRequests(ctx, client, node, at); err != nil {
		return done, fmt.Errorf("the certificates of %s are banned, but not all of its certificate requests could be removed: %w", node, err)
	}
	return done, nil
}

// serverTime is the time by kube-apiserver's clock, to the second: a review of oneself is dated by
// it, and every authenticated user may request one.
func serverTime(ctx context.Context, client kubernetes.Interface) (time.Time, error) {
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return time.Time{}, fmt.Errorf("asking kube-apiserver for its time: %w", err)
	}
	if review.CreationTimestamp.IsZero() {
		return time.Time{}, errors.New("reading kube-apiserver's time: the answer has no creationTimestamp")
	}
	return review.CreationTimestamp.UTC(), nil
}

func writeBan(ctx context.Context, client kubernetes.Interface, node types.NodeName, b ban) error {
	entry := map[string]string{string(node): b.String()}
	lists := client.CoreV1().ConfigMaps(Namespace)
	patch, err := json.Marshal(map[string]any{"data": entry})
	if err == nil {
		_, err = lists.Patch(ctx, revokedMap, types.MergePatchType, patch, metav1.PatchOptions{}) // no read first: an empty list can't be overwritten in a race
	}
	if apierrors.IsNotFound(err) {
		list := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: revokedMap, Namespace: Namespace}, Data: entry}
		if _, err = lists.Create(ctx, list, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			_, err = lists.Patch(ctx, revokedMap, types.MergePatchType, patch, metav1.PatchOptions{})
		}
	}
	if err != nil {
		return fmt.Errorf("writing the list of revoked certificates %s/%s: %w", Namespace, revokedMap, err)
	}
	return nil
}

// removeRequests deletes the node's requests that have no certificate yet: one approved before the
// ban would be issued in a moment, with a time that a signer may set after it.
func removeRequests(ctx context.Context, client kubernetes.Interface, node types.NodeName, before time.Time) (int, error) {
	csrs := client.CertificatesV1().CertificateSigningRequests()
	options, deleted := metav1.ListOptions{Limit: requestsPage}, 0
	for {
		page, err := csrs.List(ctx, options)
		if err != nil {
			return deleted, fmt.Errorf("listing certificate requests: %w", err)
		}
		for i := range page.Items {
			csr := &page.Items[i]
			if len(csr.Status.Certificate) > 0 || !requestOf(csr, node, before) {
				continue
			}
			err := csrs.Delete(ctx, csr.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(csr.UID))})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				return deleted, fmt.Errorf("deleting the certificate request %s: %w", csr.Name, err)
			}
			deleted++
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return deleted, nil
		}
	}
}

// requestOf reports whether a request was made by a node, or would have made its maker that node. A
// device that joins in its place after the revocation is left alone.
func requestOf(csr *certificatesv1.CertificateSigningRequest, node types.NodeName, before time.Time) bool {
	if csr.Spec.Username == pki.NodeUserPrefix+string(node) {
		return true
	}
	if csr.Spec.SignerName != Signer || !csr.CreationTimestamp.Time.Before(before) {
		return false
	}
	_, name, err := pki.ParseNodeCSR(csr.Spec.Request)
	return err == nil && name == node
}
