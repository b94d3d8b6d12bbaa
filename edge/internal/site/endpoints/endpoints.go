// Package endpoints corrects the visible EndpointSlices of the device: the cloud decides which pods
// back a Service, the kubelets of their devices report their addresses and readiness, and this
// device's own contact reports whether those are reachable.
//
// It owns the correction, a pure function of a slice and of the device's data (Correct), and the
// agent that presents slices again when that data changes. It adds no endpoint that the cloud's
// slice does not have, except the device itself in the slices of default/kubernetes and
// kube-system/kube-dns, and it neither stores nor sends: the cloud's slices stay in the store
// unchanged. It gets the peers' statuses from a Knowledge.
//
// A Correction may be used by any goroutine. It calls its Knowledge with its lock held, so a
// Knowledge must be quick and must not call back.
package endpoints

import (
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Contact is the state of this device's own way to another device.
type Contact uint8

// The states of a contact.
const (
	// Unmet: there was never a connection to that device. The cloud's status of its pods holds.
	Unmet Contact = iota
	// Met: there is a connection, and the device's statuses hold.
	Met
	// Dead: it does not answer, or it was met in an earlier boot of this device and not yet in this
	// one. Its pods are out.
	Dead
	// Mute: its kernel answers and its edgecore does not. The last statuses hold, for as long as
	// the Knowledge returns Mute.
	Mute
)

// PodStatus is the status of a pod by the kubelet of its own device.
type PodStatus struct {
	Addresses   []netip.Addr
	Ready       bool // the condition Ready
	Terminating bool
}

func (w PodStatus) equal(o PodStatus) bool {
	return w.Ready == o.Ready && w.Terminating == o.Terminating && slices.Equal(w.Addresses, o.Addresses)
}

// Knowledge is the state of the other devices of the site. Correction.PeerChanged has to be
// called after each change.
type Knowledge interface {
	Contact(device string) Contact
	// PodStatus returns the last status of a device about a pod; false if the device does not have
	// the pod.
	PodStatus(device string, pod types.UID) (PodStatus, bool)
	// Reaches reports whether a device's pods are reached by addresses of a family.
	Reaches(device string, v4 bool) bool
}

// Strangers is the Knowledge of a device that has no contact with others.
type Strangers struct{}

// Contact implements Knowledge.
func (Strangers) Contact(string) Contact { return Unmet }

// PodStatus implements Knowledge.
func (Strangers) PodStatus(string, types.UID) (PodStatus, bool) { return PodStatus{}, false }

// Reaches implements Knowledge.
func (Strangers) Reaches(string, bool) bool { return true }
