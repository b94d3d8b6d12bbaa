package console

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"
)

// Machines are KubeVirt's VirtualMachineInstances.
func Machines() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstances"}
}

const (
	// watchFor is how long one watch lasts, so that one whose connection hangs is noticed.
	watchFor = 5 * time.Minute
	// watchAgain is the time between two tries to watch, and unknownFor how long a machine is
	// believed to run after kube-apiserver's last answer.
	watchAgain = 2 * time.Second
	unknownFor = 2 * time.Minute
)

// machine is a VirtualMachineInstance as one node may see it.
type machine struct {
	client dynamic.ResourceInterface
	node   types.NodeName
	vmi    types.NamespacedName
}

// here reports whether the machine runs on the node, and by which version of it. A refusal
// gives the reason it does not; a machine of another node is refused in the words of one that is
// nowhere.
func (m machine) here(ctx context.Context) (version string, err error) {
	o, err := m.client.Get(ctx, m.vmi.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && noSuchKind(err):
		return "", refuse("kubevirt", "the cluster has no virtual machines: KubeVirt is not installed")
	case apierrors.IsNotFound(err):
		return "", m.gone()
	case err != nil:
		return "", fmt.Errorf("reading VirtualMachineInstance %s: %w", m.vmi, err)
	}
	return o.GetResourceVersion(), m.judge(o)
}

// noSuchKind distinguishes a path that kube-apiserver does not serve from an object that is not
// there: the former it answers with no Status.
func noSuchKind(err error) bool {
	return apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

func (m machine) gone() error {
	return refuse("machine", "no virtual machine %s runs on this device", m.vmi)
}

// judge gives the reason the object does not run on the node; nil: it does.
func (m machine) judge(o *unstructured.Unstructured) error {
	node, _, _ := unstructured.NestedString(o.Object, "status", "nodeName")
	phase, _, _ := unstructured.NestedString(o.Object, "status", "phase")
	switch {
	case node != string(m.node):
		return m.gone()
	case o.GetDeletionTimestamp() != nil:
		return refuse("machine", "the virtual machine %s is being deleted", m.vmi)
	case phase != "Running":
		return refuse("machine", "the virtual machine %s is not running: its phase is %q", m.vmi, phase)
	}
	return nil
}

// ended waits until the machine no longer runs on the node, or ctx ends, and returns why.
func (m machine) ended(ctx context.Context, version string) error {
	seen := time.Now()
	for {
		err := m.follow(ctx, version)
		if err == nil { // the watch is over; the machine runs
			seen = time.Now()
		} else if _, ok := err.(*refusal); ok {
			return err
		}
		if ctx.Err() == nil && time.Since(seen) > unknownFor {
			return refuse("machine", "the status of the virtual machine %s has been unknown for %v", m.vmi, unknownFor)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(watchAgain):
		}
		once, cancel := context.WithTimeout(ctx, unknownFor/4)
		now, err := m.here(once)
		cancel()
		if _, ok := err.(*refusal); ok {
			return err
		}
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Failed to read a virtual machine", "err", err)
			continue
		}
		version, seen = now, time.Now()
	}
}

// follow watches the machine from a version on. nil: the watch ended before the machine did.
func (m machine) follow(ctx context.Context, version string) error {
	seconds := int64(watchFor / time.Second)
	ctx, cancel := context.WithTimeout(ctx, watchFor+watchAgain)
	defer cancel()
	w, err := m.client.Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, m.vmi.Name).String(), ResourceVersion: version, TimeoutSeconds: &seconds,
	})
	if err != nil {
		return fmt.Errorf("watching VirtualMachineInstance %s: %w", m.vmi, err)
	}
	defer w.Stop()
	for {
		var event watch.Event
		var open bool
		select {
		case <-ctx.Done():
			return nil
		case event, open = <-w.ResultChan():
		}
		o, ok := event.Object.(*unstructured.Unstructured)
		switch {
		case open && event.Type == watch.Deleted:
			return refuse("machine", "the virtual machine %s has ended", m.vmi)
		case !open || event.Type == watch.Error || !ok:
			return nil // the version is too old, for one: it is read again
		}
		if err := m.judge(o); err != nil {
			return err
		}
	}
}
