// Package endpoints corrects the visible EndpointSlices of the device: the cloud decides which pods
// back a Service, the kubelets of their devices report their addresses and readiness, and this
// device's own contact reports whether those are reachable.
//
// It owns the correction, a pure function of a slice and of the device's data (Correct), and the
// agent that presents slices again when that data changes. It adds no endpoint that the cloud's
// slice does not have, except the device itself in the slices of default/kubernetes and
// kube-system/kube-dns, and it neither stores nor sends: the cloud's slices stay in the store
// unchanged. It gets the peers' words from a Knowledge.
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
	// Met: there is a connection, and the device's words hold.
	Met
	// Dead: it does not answer, or it was met in an earlier boot of this device and not yet in this
	// one. Its pods are out.
	Dead
	// Mute: its kernel answers and its edgecore does not. The last words hold, for as long as the
	// Knowledge returns Mute.
	Mute
)

// Word is the status of a pod by the kubelet of its own device.
type Word struct {
	Addresses   []netip.Addr
	Ready       bool // the condition Ready
	Terminating bool
}

func (w Word) equal(o Word) bool {
	return w.Ready == o.Ready && w.Terminating == o.Terminating && slices.Equal(w.Addresses, o.Addresses)
}

// Knowledge is the state of the other devices of the site. Correction.PeerChanged has to be
// called after each change.
type Knowledge interface {
	Contact(device string) Contact
	// Word returns the last word of a device about a pod; false if the device does not have the
	// pod.
	Word(device string, pod types.UID) (Word, bool)
	// Reaches reports whether a device's pods are reached by addresses of a family.
	Reaches(device string, v4 bool) bool
}

// Strangers is the Knowledge of a device that has no contact with others.
type Strangers struct{}

// Contact implements Knowledge.
func (Strangers) Contact(string) Contact { return Unmet }

// Word implements Knowledge.
func (Strangers) Word(string, types.UID) (Word, bool) { return Word{}, false }

// Reaches implements Knowledge.
func (Strangers) Reaches(string, bool) bool { return true }
