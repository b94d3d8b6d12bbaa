package drain

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// endedBefore is the reason of an operation that was over before anything was kept here.
const endedBefore = "EndedBefore"

// askTimeout bounds one question to kube-apiserver about an operation.
const askTimeout = 30 * time.Second

// take passes the cloud's operations to the agent. The result has an entry for each followed
// operation, nil for those that the agent has.
func (f *follower) take(ctx context.Context) map[string]error {
	results := map[string]error{}
	wanted := f.operations.List()
	present := map[types.UID]bool{}
	for _, n := range wanted {
		present[n.UID] = true
	}
	known := map[types.UID]Operation{}
	for _, o := range f.agent.Status().Operations {
		if o.UID == "" {
			continue
		}
		known[o.UID] = o
		// A recently adopted operation may not have been delivered yet.
		if !present[o.UID] && !o.Gone && f.vanished(ctx, o, results) {
			results[o.Name] = f.agent.Gone(ctx, o.Name, o.UID)
		}
	}
	slices.SortFunc(wanted, func(a, b *v1alpha1.NodeOperation) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	for _, n := range wanted {
		o, old := known[n.UID]
		switch {
		case old && (!n.Spec.Cancel || o.Spec.Cancel) && n.Spec.Retry <= o.Spec.Retry:
			results[n.Name] = nil
		case old:
			results[n.Name] = f.agent.Request(ctx, operationOf(n))
		default:
			results[n.Name] = f.begin(ctx, n)
		}
	}
	return results
}

func operationOf(n *v1alpha1.NodeOperation) Operation {
	return Operation{
		Name: n.Name, UID: n.UID, Spec: n.Spec, RequestedBy: n.Annotations[v1alpha1.RequestedByAnnotation], Request: n.Annotations[v1alpha1.DeviceRequestAnnotation],
	}
}

// vanished asks kube-apiserver whether an operation without a cached object is gone: its absence
// from the cache is no proof.
func (f *follower) vanished(ctx context.Context, o Operation, results map[string]error) bool {
	now, err := f.get(ctx, o.Name)
	switch {
	case apierrors.IsNotFound(err):
		return true
	case err != nil:
		results[o.Name] = fmt.Errorf("asking whether it is gone: %w", err)
		return false
	}
	return now.UID != o.UID
}

// begin adopts a new operation. Its status is read first: a device whose store was lost must not
// repeat an old operation.
func (f *follower) begin(ctx context.Context, n *v1alpha1.NodeOperation) error {
	if n.Annotations[v1alpha1.DeviceRequestAnnotation] != "" { // made here: it is adopted
		for _, o := range f.agent.Status().Operations {
			if o.Name == n.Name && o.Request == n.Annotations[v1alpha1.DeviceRequestAnnotation] {
				return f.agent.Adopt(ctx, o.Name, o.Request, n.UID)
			}
		}
	}
	now, err := f.get(ctx, n.Name)
	if apierrors.IsNotFound(err) || err == nil && now.UID != n.UID {
		return nil // the device will receive it
	}
	if err != nil {
		return fmt.Errorf("asking how it stands: %w", err)
	}
	return f.accept(ctx, n, now)
}

// accept adds an operation, by the cloud's present state of it.
func (f *follower) accept(ctx context.Context, n, now *v1alpha1.NodeOperation) error {
	o := operationOf(now)
	if now.Spec.NodeName != f.agent.config.NodeName {
		return nil
	}
	switch s := now.Status; {
	case s.CompletedAt != nil && o.Spec.Operation == v1alpha1.OperationDrain && s.Phase == v1alpha1.DrainComplete && !o.Spec.Cancel && s.BootIDBefore == f.agent.config.Boot:
		o.Phase, o.BootBefore = s.Phase, s.BootIDBefore // it holds the node still
		return f.agent.Refuse(ctx, o, Done, endedBefore, "the node was drained before; what the device had kept of it was lost")
	case s.CompletedAt != nil && (!o.own() || o.Spec.Retry <= s.ObservedRetry):
		if err := f.agent.Refuse(ctx, o, Done, endedBefore, ""); err != nil {
			return err
		}
		return f.agent.Reported(ctx, o.Name, o.UID)
	case s.BootIDBefore != "" && s.BootIDBefore != f.agent.config.Boot && o.Spec.Operation != v1alpha1.OperationDrain:
		return f.agent.Refuse(ctx, o, Done, "Booted", "the device has booted since; what it had kept of the operation was lost")
	case s.BootIDBefore != "":
		return f.agent.Refuse(ctx, o, Failed, "StateLost", "it had gone ahead, but what the device had kept of it was lost")
	}
	err := f.agent.Request(ctx, o)
	switch {
	case errors.Is(err, ErrInvalid):
		return f.agent.Refuse(ctx, o, Failed, "Refused", err.Error())
	case errors.Is(err, ErrFull), errors.Is(err, ErrExists): // it is taken in later, and its maker need not wonder
		o.Stage, o.RequestedAt, o.Message = Waiting, now.CreationTimestamp.Time, err.Error()
		return errors.Join(err, f.say(o, ""))
	}
	return err
}

func (f *follower) get(ctx context.Context, name string) (*v1alpha1.NodeOperation, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	u, err := f.cloud.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	n := &v1alpha1.NodeOperation{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, n); err != nil {
		return nil, fmt.Errorf("reading NodeOperation %s: %w", name, err)
	}
	return n, nil
}

// publish creates the NodeOperation of a local request. Kubernetes allows a node to create only its
// own.
func (f *follower) publish(ctx context.Context, o Operation) error {
	n := &v1alpha1.NodeOperation{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "NodeOperation"},
		ObjectMeta: metav1.ObjectMeta{Name: o.Name, Annotations: map[string]string{v1alpha1.DeviceRequestAnnotation: o.Request}},
		Spec:       o.Spec,
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(n)
	if err != nil {
		return fmt.Errorf("writing NodeOperation %s: %w", o.Name, err)
	}
	delete(content, "status")
	asked, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	made, err := f.cloud.Create(asked, &unstructured.Unstructured{Object: content}, metav1.CreateOptions{FieldManager: fieldManager})
	if apierrors.IsAlreadyExists(err) {
		have, getErr := f.get(ctx, o.Name)
		if getErr != nil {
			return getErr
		}
		if have.Annotations[v1alpha1.DeviceRequestAnnotation] != o.Request {
			return fmt.Errorf("the cloud has another NodeOperation of this name: the one made on this device is not shown there: %w", err)
		}
		return f.agent.Adopt(ctx, o.Name, o.Request, have.UID)
	}
	if err != nil {
		return err
	}
	return f.agent.Adopt(ctx, o.Name, o.Request, made.GetUID())
}

// say reports the state of an operation to the cloud.
func (f *follower) say(o Operation, drainMessage string) error {
	body, err := reportOf(statusOf(o, drainMessage))
	if err != nil {
		return err
	}
	f.reported[o.Name] = o.UID
	return f.kit.Reports.Set(refOf(o.Name), o.UID, json.RawMessage(body))
}

// report sends the operations' states to the cloud, and records the reported ends.
func (f *follower) report(ctx context.Context) error {
	var errs []error
	var over []Operation
	if f.again = f.kit.Repeated() || f.again; f.again {
		if err := f.agent.ReportAgain(ctx); err != nil {
			return fmt.Errorf("reporting ended operations again: %w", err)
		}
		f.again = false
	}
	s := f.agent.Status()
	current := map[string]bool{}
	for _, o := range s.Operations {
		if o.UID == "" || o.Gone || o.Reported {
			continue
		}
		current[o.Name] = true
		errs = append(errs, f.say(o, s.Drain.Message))
		if o.ended() && !o.holds() {
			over = append(over, o)
		}
	}
	for _, n := range f.operations.List() { // some wait to be taken in
		current[n.Name] = current[n.Name] || f.reported[n.Name] == n.UID
	}
	errs = append(errs, f.kit.Reports.Flush(ctx))
	for _, o := range over {
		if f.kit.Reports.Sent(refOf(o.Name)) {
			current[o.Name] = false
			errs = append(errs, f.agent.Reported(ctx, o.Name, o.UID))
		}
	}
	for name := range f.reported {
		if !current[name] {
			f.kit.Reports.Drop(refOf(name))
			delete(f.reported, name)
		}
	}
	return errors.Join(errs...)
}

// rescued exchanges operations and reports in a rescue session, and returns when to do so again.
func (f *follower) rescued(ctx context.Context) (time.Duration, error) {
	if f.rescue == nil || !f.rescue.Open() {
		f.rescueReports = nil // a later session may be with another cloud
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	wanted, err := f.rescue.Operations(ctx)
	if err != nil {
		return rescueEvery, fmt.Errorf("asking for upgrades: %w", err)
	}
	var errs []error
	known, present := map[types.UID]Operation{}, map[types.UID]v1alpha1.NodeOperationStatus{}
	for _, o := range f.agent.Status().Operations {
		known[o.UID] = o
	}
	for i := range wanted {
		n := &wanted[i]
		present[n.UID] = n.Status
		if o, old := known[n.UID]; !old {
			errs = append(errs, f.accept(ctx, n, n))
		} else if n.Spec.Cancel && !o.Spec.Cancel || n.Spec.Retry > o.Spec.Retry {
			errs = append(errs, f.agent.Request(ctx, operationOf(n)))
		}
	}
	if f.rescueReports == nil {
		f.rescueReports = map[types.UID]string{}
	}
	for _, o := range f.agent.Status().Operations {
		status, there := present[o.UID]
		switch {
		case o.UID == "" || o.Spec.Operation != v1alpha1.OperationUpgrade || o.Gone:
		case !there:
			errs = append(errs, f.agent.Gone(ctx, o.Name, o.UID))
		case o.ended() && status.CompletedAt != nil && status.ObservedRetry >= o.Spec.Retry: // the cloud has it
		default:
			errs = append(errs, f.rescueReport(ctx, o))
		}
	}
	return rescueEvery, errors.Join(errs...)
}

// rescueReport reports an operation that has changed since its last report. The outbox has the same
// for a link of later.
func (f *follower) rescueReport(ctx context.Context, o Operation) error {
	body, err := reportOf(statusOf(o, ""))
	if err != nil || f.rescueReports[o.UID] == string(body) {
		return err
	}
	if err := f.rescue.Report(ctx, o.Name, o.UID, body); err != nil {
		return err
	}
	f.rescueReports[o.UID] = string(body)
	return nil
}

func refOf(name string) object.Ref {
	return object.Ref{Resource: v1alpha1.Resource(v1alpha1.NodeOperations), Name: name}
}
