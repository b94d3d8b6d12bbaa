package relay

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
)

// hiddenPrefix makes the type of a node's IP address one that no client dials. The type is free
// text (core/v1, NodeAddressType); kube-apiserver, metrics-server and Prometheus have a list of
// preferred types and skip all others, so they fall back to the node's name.
const hiddenPrefix = "skerry.io/"

// hidden are the types that an edge node's kubelet reports and that lead nowhere in the cluster.
func hidden(t string) bool {
	return t == string(corev1.NodeInternalIP) || t == string(corev1.NodeExternalIP)
}

// HideAddresses has the nodes' IP addresses written under types that no client dials, so that a
// kubelet's clients use the node's name. The edges never see it: RevealAddresses undoes it on their
// way down. It is called before the first Attach.
func (r *Relay) HideAddresses() { r.hide = true }

// RevealAddresses gives the addresses of a Node the types that its kubelet reported.
func RevealAddresses(o runtime.Object) {
	n, ok := o.(*corev1.Node)
	if !ok {
		return
	}
	for i, a := range n.Status.Addresses {
		if t, ok := strings.CutPrefix(string(a.Type), hiddenPrefix); ok && hidden(t) {
			n.Status.Addresses[i].Type = corev1.NodeAddressType(t)
		}
	}
}

// hideInPatch changes the types in a patch of a node's status. A malformed patch stays as it is:
// kube-apiserver reports the error.
func hideInPatch(patch []byte) []byte {
	p, err := fieldsOf(patch, "patch")
	if err != nil {
		return patch
	}
	status, err := fieldsOf(p["status"], "patch's status")
	if err != nil {
		return patch
	}
	changed := false
	for _, field := range []string{"addresses", "$setElementOrder/addresses"} {
		var list []map[string]any
		if err := json.Unmarshal(status[field], &list); err != nil {
			continue // not there
		}
		for _, a := range list {
			if t, ok := a["type"].(string); ok && hidden(t) {
				a["type"], changed = hiddenPrefix+t, true
			}
		}
		if status[field], err = json.Marshal(list); err != nil {
			return patch
		}
	}
	if !changed {
		return patch
	}
	if p["status"], err = json.Marshal(status); err != nil {
		return patch
	}
	if patched, err := json.Marshal(p); err == nil {
		return patched
	}
	return patch
}

// hideNow changes the addresses already in the Node: those of a node registered by an older
// version, or of one that has just registered, whose kubelet chooses the encoding.
func (s *session) hideNow(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	var failed error
	// A Node that was just made is written by several controllers at once: each write in between is
	// a conflict. Other answers of kube-apiserver count.
	err := wait.ExponentialBackoffWithContext(ctx, hideBackoff, func(ctx context.Context) (done bool, err error) {
		failed = s.tryHide(ctx)
		if status := apierrors.APIStatus(nil); errors.As(failed, &status) && !apierrors.IsConflict(failed) {
			return false, failed
		}
		return failed == nil, nil
	})
	if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
		klog.FromContext(ctx).Info("Failed to hide a node's addresses; its next session retries", "node", s.node, "err", cmp.Or(failed, err))
	}
}

// hideBackoff spaces the attempts of hideNow: 50 ms at first, some 13 s in all.
var hideBackoff = wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 9}

func (s *session) tryHide(ctx context.Context) error {
	path, err := pathTo(schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, "", string(s.node), "")
	if err != nil {
		return err
	}
	resp, err := s.relay.client.Do(ctx, s.as, kube.Request{Method: http.MethodGet, Path: path, Accept: "application/json"})
	if err != nil {
		return err
	}
	if resp.Code == http.StatusNotFound {
		return nil // it registers later
	}
	if err := resp.Err(); err != nil {
		return err
	}
	var node struct {
		Metadata struct {
			UID             types.UID `json:"uid"`
			ResourceVersion string    `json:"resourceVersion"`
		} `json:"metadata"`
		Status struct {
			Addresses []corev1.NodeAddress `json:"addresses"`
		} `json:"status"`
	}
	if err := json.Unmarshal(resp.Body, &node); err != nil {
		return fmt.Errorf("reading the Node: %w", err)
	}
	changed := false
	for i, a := range node.Status.Addresses {
		if hidden(string(a.Type)) {
			node.Status.Addresses[i].Type, changed = corev1.NodeAddressType(hiddenPrefix+string(a.Type)), true
		}
	}
	if !changed {
		return nil
	}
	// A merge patch replaces the list; resourceVersion keeps it from undoing a concurrent write of
	// the kubelet.
	body, err := json.Marshal(node)
	if err != nil {
		return fmt.Errorf("encoding the addresses: %w", err)
	}
	resp, err = s.do(ctx, http.MethodPatch, path+"/status", string(types.MergePatchType), body)
	if err != nil {
		return err
	}
	return resp.Err()
}
