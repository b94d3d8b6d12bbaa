package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/pki"
)

// devicesBinding is the ClusterRoleBinding that gives nodes the rights of devices by their names
// (docs/dev/decisions/0055).
const devicesBinding = "skerry:edge-nodes"

// deviceRights tracks the subjects with the rights of devices, by a watch of their binding.
type deviceRights struct {
	client kubernetes.Interface

	mu    sync.Mutex
	known bool      // the watch is open and its state is current
	uid   types.UID // of the binding; "": absent
	role  string    // that it binds, as kube-apiserver writes it in the reason of a review
	nodes map[types.NodeName]struct{}
}

// has reports whether a node is known to have them now, by the binding with this UID.
func (d *deviceRights) has(node types.NodeName, by types.UID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.nodes[node]
	return ok && d.known && by != "" && d.uid == by
}

// reason returns kube-apiserver's explanation for a permission that a node has by these rights, and
// the UID of the binding, or "" while the binding is unknown. RBAC names the first binding that
// allows it, and quotes names (k8s.io/kubernetes, plugin/pkg/auth/authorizer/rbac): if that text
// changes some day, it does not match, and every node is asked for alone.
func (d *deviceRights) reason(node types.NodeName) (string, types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.known || d.uid == "" {
		return "", ""
	}
	return fmt.Sprintf("RBAC: allowed by ClusterRoleBinding %q of %s to User %q", devicesBinding, d.role, NodeUser(node)), d.uid
}

func (d *deviceRights) set(b *rbacv1.ClusterRoleBinding) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known, d.uid, d.role, d.nodes = true, "", "", nil
	if b == nil {
		return
	}
	d.uid, d.role, d.nodes = b.UID, fmt.Sprintf("%s %q", b.RoleRef.Kind, b.RoleRef.Name), make(map[types.NodeName]struct{}, len(b.Subjects))
	for _, s := range b.Subjects {
		if name, ok := strings.CutPrefix(s.Name, pki.NodeUserPrefix); ok && s.Kind == rbacv1.UserKind {
			d.nodes[types.NodeName(name)] = struct{}{}
		}
	}
}

// forget is called when the watch has ended: its state is unknown from then on.
func (d *deviceRights) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known, d.uid, d.role, d.nodes = false, "", "", nil
}

// follow keeps it up to date until ctx ends.
func (d *deviceRights) follow(ctx context.Context) {
	const pause, longPause = 2 * time.Second, 5 * time.Minute
	for ctx.Err() == nil {
		err := d.watch(ctx)
		d.forget()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil: // kube-apiserver ends watches now and then
			continue
		case apierrors.IsForbidden(err): // a cluster with the rights of an older Skerry
			klog.FromContext(ctx).V(2).Info("Failed to watch the permissions of devices, reviewing each node", "err", err)
			sleep(ctx, longPause, nil)
		default:
			klog.FromContext(ctx).V(2).Info("Failed to watch the permissions of devices", "err", err)
			sleep(ctx, pause, nil)
		}
	}
}

// watch reads the binding, consistently, and follows it until the watch ends.
func (d *deviceRights) watch(ctx context.Context) error {
	bindings := d.client.RbacV1().ClusterRoleBindings()
	o := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", devicesBinding).String()}
	read, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := bindings.List(read, o)
	if err != nil {
		return err
	}
	o.ResourceVersion = list.ResourceVersion
	w, err := openWatch(ctx, func(ctx context.Context) (watch.Interface, error) { return bindings.Watch(ctx, o) })
	if err != nil {
		return err
	}
	defer w.Stop()
	d.set(nil)
	for i := range list.Items {
		d.set(&list.Items[i])
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-w.ResultChan():
			if !ok {
				return nil
			}
			b, is := e.Object.(*rbacv1.ClusterRoleBinding)
			switch {
			case e.Type == watch.Error:
				return apierrors.FromObject(e.Object)
			case !is:
				return errors.New("the watch of a ClusterRoleBinding sent an object of another kind")
			case e.Type == watch.Deleted:
				d.set(nil)
			default:
				d.set(b)
			}
		}
	}
}
