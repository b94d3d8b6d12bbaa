// Package table makes kubectl's tables of a device's objects, with the columns and cells of
// kube-apiserver.
//
// It stands in for k8s.io/kubernetes/pkg/printers/internalversion, which knows the internal
// versions only and so brings every API group with its conversions into the process: a sixth of
// edgecore's memory, on each device, for output that is read now and then
// (docs/dev/decisions/0009-tables.md). The tests compare each kind, and pods in thousands of
// states, with that package.
//
// It is stateless. Every function may be called concurrently.
package table

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
)

// Of makes the table of an object or a list. The rows carry their objects, in the version that
// they have. It is false for a kind that has no columns of its own here, and where a list holds
// more than one kind.
func Of(o runtime.Object) (*metav1.Table, bool) {
	objects, table := []runtime.Object{o}, &metav1.Table{}
	if meta.IsListType(o) {
		list, err := meta.ListAccessor(o)
		if err != nil {
			return nil, false
		}
		table.ListMeta = metav1.ListMeta{ResourceVersion: list.GetResourceVersion(), Continue: list.GetContinue(), RemainingItemCount: list.GetRemainingItemCount()}
		if objects, err = meta.ExtractList(o); err != nil {
			return nil, false
		}
		columns, ok := listColumns(o)
		if !ok {
			return nil, false
		}
		table.ColumnDefinitions = columns
	} else if accessor, err := meta.Accessor(o); err == nil {
		table.ResourceVersion = accessor.GetResourceVersion()
	}
	for _, o := range objects {
		columns, row, ok := of(o)
		if !ok {
			return nil, false
		}
		if table.ColumnDefinitions == nil {
			table.ColumnDefinitions = columns
		}
		row.Object = runtime.RawExtension{Object: o}
		table.Rows = append(table.Rows, row)
	}
	return table, true
}

// of gives an object's columns and its row.
func of(o runtime.Object) ([]metav1.TableColumnDefinition, metav1.TableRow, bool) {
	switch o := o.(type) {
	case *corev1.Pod:
		return podColumns(), podRow(o), true
	case *corev1.Node:
		return nodeColumns(), nodeRow(o), true
	case *corev1.Service:
		return serviceColumns(), serviceRow(o), true
	case *corev1.Event:
		return eventColumns(), eventRow(o), true
	case *corev1.PersistentVolume:
		return volumeColumns(), volumeRow(o), true
	case *corev1.PersistentVolumeClaim:
		return claimColumns(), claimRow(o), true
	case *corev1.ConfigMap:
		return named("Data", age), cells(o.Name, int64(len(o.Data)+len(o.BinaryData)), since(o.CreationTimestamp)), true
	case *corev1.Secret:
		return named("Type", "Data", age), cells(o.Name, string(o.Type), int64(len(o.Data)), since(o.CreationTimestamp)), true
	case *corev1.ServiceAccount:
		return named(age), cells(o.Name, since(o.CreationTimestamp)), true
	case *corev1.Namespace:
		return named("Status", age), cells(o.Name, string(o.Status.Phase), since(o.CreationTimestamp)), true
	case *coordinationv1.Lease:
		holder := ""
		if o.Spec.HolderIdentity != nil {
			holder = *o.Spec.HolderIdentity
		}
		return named("Holder", age), cells(o.Name, holder, since(o.CreationTimestamp)), true
	case *nodev1.RuntimeClass:
		return named("Handler", age), cells(o.Name, o.Handler, since(o.CreationTimestamp)), true
	}
	return nil, metav1.TableRow{}, false
}

// listColumns returns the columns also for an empty list: kubectl prints them.
func listColumns(o runtime.Object) ([]metav1.TableColumnDefinition, bool) {
	var item runtime.Object
	switch o.(type) {
	case *corev1.PodList:
		item = &corev1.Pod{}
	case *corev1.NodeList:
		item = &corev1.Node{}
	case *corev1.ServiceList:
		item = &corev1.Service{}
	case *corev1.EventList:
		item = &corev1.Event{}
	case *corev1.PersistentVolumeList:
		item = &corev1.PersistentVolume{}
	case *corev1.PersistentVolumeClaimList:
		item = &corev1.PersistentVolumeClaim{}
	case *corev1.ConfigMapList:
		item = &corev1.ConfigMap{}
	case *corev1.SecretList:
		item = &corev1.Secret{}
	case *corev1.ServiceAccountList:
		item = &corev1.ServiceAccount{}
	case *corev1.NamespaceList:
		item = &corev1.Namespace{}
	case *coordinationv1.LeaseList:
		item = &coordinationv1.Lease{}
	case *nodev1.RuntimeClassList:
		item = &nodev1.RuntimeClass{}
	default:
		return nil, false
	}
	columns, _, ok := of(item)
	return columns, ok
}

const age = "Age"

// named are the columns of a kind: its name first, then the given ones.
func named(more ...string) []metav1.TableColumnDefinition {
	return append([]metav1.TableColumnDefinition{{Name: "Name", Type: "string", Format: "name"}}, columns(0, more...)...)
}

// columns of one priority; 1 is for kubectl's -o wide.
func columns(priority int32, names ...string) []metav1.TableColumnDefinition {
	all := make([]metav1.TableColumnDefinition, len(names))
	for i, name := range names {
		all[i] = metav1.TableColumnDefinition{Name: name, Type: "string", Priority: priority}
	}
	return all
}

func cells(all ...any) metav1.TableRow { return metav1.TableRow{Cells: all} }

const (
	none    = "<none>"
	unknown = "<unknown>"
	unset   = "<unset>"
)

// since returns the age of a time in human-readable form.
func since(t metav1.Time) string { return sinceTime(t.Time) }

func sinceTime(t time.Time) string {
	if t.IsZero() {
		return unknown
	}
	return duration.HumanDuration(time.Since(t))
}
